"""Owns when a host is back near its baseline between two cells. Pure: readings and times come in as values.

Does not wait and does not read; sweep.py does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.watchdog.sample import HostReading

_NEAR_FRAC = 0.05  # of memory: as close to the baseline as makes no difference
_STABLE_FRAC = 0.005  # of memory: how little may still move for a reading to count as standing still
_STABLE_S = 5.0
_SWAP_FRAC_PER_S = 0.0005  # of memory: paging below this is the background's
_STALL_FRAC = 0.05  # of the time


@dataclass(frozen=True, slots=True)
class Baseline:
    """The host before the first cell."""

    memory_bytes: int
    reading: HostReading


@dataclass(frozen=True, slots=True)
class Step:
    """Two readings, `seconds` apart, and since when memory has stood still (None: it moves)."""

    before: HostReading
    after: HostReading
    seconds: float
    stood_still_s: float


def moving(step: Step, memory_bytes: int) -> bool:
    """Whether free memory still changes."""
    before, after = step.before.memory_available_bytes, step.after.memory_available_bytes
    if before is None or after is None:
        return False
    return abs(after - before) > _STABLE_FRAC * memory_bytes


def unsettled(baseline: Baseline, step: Step) -> str | None:
    """What keeps the host from taking the next cell, in words; None where nothing does.

    Memory that stands still below the baseline for five seconds counts as settled: systems give swap back late,
    and somebody may have opened a program. Paging and pressure have to be over in any case.
    """
    quiet = _paging(baseline.memory_bytes, step) or _pressure(step)
    if quiet is not None:
        return quiet
    if step.stood_still_s >= _STABLE_S:
        return None
    return _short_of_memory(baseline, step.after)


def _paging(memory_bytes: int, step: Step) -> str | None:
    allowed = _SWAP_FRAC_PER_S * memory_bytes * step.seconds
    pairs = (
        ("swapping in", step.before.swapin_total_bytes, step.after.swapin_total_bytes),
        ("swapping out", step.before.swapout_total_bytes, step.after.swapout_total_bytes),
    )
    for words, before, after in pairs:
        if before is not None and after is not None and after - before > allowed:
            return f"still {words} {(after - before) / step.seconds / 1e6:.1f} MB/s"
    return None


def _pressure(step: Step) -> str | None:
    level = step.after.pressure_level
    if level is not None and level > 1:
        return f"memory pressure is still at level {level}"
    before, after = step.before.pressure_stall_total_s, step.after.pressure_stall_total_s
    if before is not None and after is not None and after - before > _STALL_FRAC * step.seconds:
        return f"processes still stall on memory {100 * (after - before) / step.seconds:.0f} % of the time"
    return None


def _short_of_memory(baseline: Baseline, after: HostReading) -> str | None:
    near = _NEAR_FRAC * baseline.memory_bytes
    had, has = baseline.reading.memory_available_bytes, after.memory_available_bytes
    if had is not None and has is not None and had - has > near:
        return f"{(had - has) / 1e9:.2f} GB of memory have not come back"
    wired_before, wired = baseline.reading.wired_bytes, after.wired_bytes
    if wired_before is not None and wired is not None and wired - wired_before > near:
        return f"{(wired - wired_before) / 1e9:.2f} GB are still wired"
    return None

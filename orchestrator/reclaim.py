"""Owns when a host is back near its baseline between two cells. Pure: readings and times come in as values.

Does not wait and does not read; cooldown.py does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.watchdog.memory import TIGHT_AVAILABLE_FRAC

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
class CameBack:
    """What a pause gave back, in bytes (negative: taken meanwhile); None where the platform does not say."""

    available_bytes: int | None
    swap_bytes: int | None
    wired_bytes: int | None

    def to_json(self) -> dict[str, int | None]:
        """Under names that say what it is."""
        return {
            "available_came_back_bytes": self.available_bytes,
            "swap_came_back_bytes": self.swap_bytes,
            "wired_came_back_bytes": self.wired_bytes,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """Two readings, `seconds` apart, and since when memory has stood still (None: it moves)."""

    before: HostReading
    after: HostReading
    seconds: float
    stood_still_s: float


def came_back(first: HostReading, last: HostReading) -> CameBack:
    """What came back between the first and the last reading of a pause."""
    return CameBack(
        available_bytes=_rise(first.memory_available_bytes, last.memory_available_bytes),
        swap_bytes=_rise(last.swap_used_bytes, first.swap_used_bytes),
        wired_bytes=_rise(last.wired_bytes, first.wired_bytes),
    )


def _rise(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def moving(step: Step, memory_bytes: int) -> bool:
    """Whether available or wired memory still changes."""
    pairs = (
        (step.before.memory_available_bytes, step.after.memory_available_bytes),
        (step.before.wired_bytes, step.after.wired_bytes),
    )
    return any(
        before is not None and after is not None and abs(after - before) > _STABLE_FRAC * memory_bytes
        for before, after in pairs
    )


def unsettled(baseline: Baseline, step: Step) -> str | None:
    """What keeps the host from taking the next cell, in words; None where nothing does.

    Available memory that stands still below the baseline for five seconds counts as settled: somebody may have
    opened a program. Paging and pressure have to be over in any case, and wired memory has to come back: what a killed
    worker left wired stays so until the machine is restarted.
    """
    if not _is_somebody_elses(step.after):
        trouble = _paging(baseline.memory_bytes, step) or _pressure(step)
        if trouble is not None:
            return trouble
    wired = _still_wired(baseline, step.after)
    if wired is not None or step.stood_still_s >= _STABLE_S:
        return wired
    return _short_of_memory(baseline, step.after)


def _is_somebody_elses(reading: HostReading) -> bool:
    """Whether the host has memory to spare: then paging and stalls are those of a group with a bound of its own.

    Only Linux can tell; macOS does not page with a fifth of its memory available.
    """
    available, total = reading.memory_available_bytes, reading.memory_total_bytes
    if available is None or total is None or reading.pressure_level is not None:
        return False
    return available > TIGHT_AVAILABLE_FRAC * total


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
    had, has = baseline.reading.memory_available_bytes, after.memory_available_bytes
    if had is None or has is None or had - has <= _NEAR_FRAC * baseline.memory_bytes:
        return None
    return f"{(had - has) / 1e9:.2f} GB of memory have not come back"


def _still_wired(baseline: Baseline, after: HostReading) -> str | None:
    had, has = baseline.reading.wired_bytes, after.wired_bytes
    if had is None or has is None or has - had <= _NEAR_FRAC * baseline.memory_bytes:
        return None
    return f"{(has - had) / 1e9:.2f} GB are still wired"

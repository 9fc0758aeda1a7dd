"""Owns whether our probe's readings can be believed: each is held against psutil's, or against what it can be at all.

Comparing is pure; the functions named `read...` are not. A wrong structure layout misreads without a word, so a reading
that disagrees is refused.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from orchestrator.errors import HostUnfit
from orchestrator.watchdog.probe import select_probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.watchdog.sample import HostReading, WorkerReading

_NEAR_BYTES, _NEAR_FRAC = 64_000_000, 0.05  # of memory: it moves between two readings
_SWAP_NEAR_BYTES, _SWAP_NEAR_FRAC = 64 << 20, 0.02  # of all swap
_OWN_NEAR_BYTES, _OWN_NEAR_FRAC = 4 << 20, 0.05  # of what this process holds
_PROBE_FILES = 8  # that a probe holds open
_TRIES, _BETWEEN_S = 3, 0.02  # one look may fall beside another program's large step
# What comes out of one structure of the kernel's (macOS: vm_statistics64, rusage_info_v4) is right or wrong together:
# a layout that is read a few bytes off misreads all of it, also where a wrong figure looks possible.
_STRUCTURES = (
    frozenset(
        ("wired_bytes", "compressor_bytes", "swapin_total_bytes", "swapout_total_bytes", "decompression_total_bytes")
    ),
    frozenset(("footprint_bytes", "peak_footprint_bytes", "resident_bytes")),
)
# The host is readable at all by one of these; what only the worker tells is not enough to see a wall.
HOST_SIGNS = ("memory_available_bytes", "swap_used_bytes", "memory_free_frac", "pressure_level")


@dataclass(frozen=True, slots=True)
class Reference:
    """psutil's figures in bytes; None where this platform, or this psutil on this system, has none."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    wired_bytes: int | None = None
    swap_used_bytes: int | None = None
    swap_total_bytes: int | None = None
    own_resident_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """One reading. `agrees` is None where there is nothing to hold it against; `against` says in words what was."""

    name: str
    ours: float
    against: str
    agrees: bool | None


def read_reference() -> Reference:
    """What psutil says now. psutil raises RuntimeError where a new macOS changed a structure."""
    total = available = wired = swap = swap_total = own = None
    with contextlib.suppress(OSError, RuntimeError, psutil.Error):
        memory = psutil.virtual_memory()
        total, available, wired = memory.total, memory.available, getattr(memory, "wired", None)
    with contextlib.suppress(OSError, RuntimeError, psutil.Error):
        swap_memory = psutil.swap_memory()  # its sin and sout are page-ins of everything on macOS: not compared
        swap, swap_total = swap_memory.used, swap_memory.total
    with contextlib.suppress(OSError, RuntimeError, psutil.Error):
        own = psutil.Process().memory_info().rss
    return Reference(total, available, wired, swap, swap_total, own)


def compare_readings(host: HostReading, own: WorkerReading, reference: Reference) -> list[Compared]:
    """Every reading that there is, held against psutil's. `own` is this process as the probe sees it."""
    total = reference.total_bytes or host.memory_total_bytes or 0
    near = max(_NEAR_BYTES, _NEAR_FRAC * total)
    swap_near = max(_SWAP_NEAR_BYTES, _SWAP_NEAR_FRAC * (reference.swap_total_bytes or 0))
    own_near = max(_OWN_NEAR_BYTES, _OWN_NEAR_FRAC * (reference.own_resident_bytes or 0))
    pairs = (
        ("memory_total_bytes", host.memory_total_bytes, reference.total_bytes, 0),
        ("memory_available_bytes", host.memory_available_bytes, reference.available_bytes, near),
        ("swap_used_bytes", host.swap_used_bytes, reference.swap_used_bytes, swap_near),
        ("wired_bytes", host.wired_bytes, reference.wired_bytes, near),
        ("resident_bytes", own.resident_bytes, reference.own_resident_bytes, own_near),
    )
    found = [_held(name, ours, theirs, allowed) for name, ours, theirs, allowed in pairs if ours is not None]
    if host.swap_used_bytes is not None and reference.swap_total_bytes is not None:
        holds = host.swap_used_bytes <= reference.swap_total_bytes
        found.append(Compared("swap_used_bytes", host.swap_used_bytes, "at most all swap", holds))
    return [*found, *_possible(host, own, total)]


def readings_refused() -> frozenset[str]:
    """The readings of this machine's probe that cannot be believed: those that disagreed three times in a row.

    Raises:
        HostUnfit: none that shows the host's memory is left.
    """
    host, _, names = look()
    if is_blinded(host, names):
        _demand_descriptors()
        raise HostUnfit(
            "the memory of this machine cannot be read in a way that agrees with psutil, and nothing is run unwatched; "
            "`wallfinder doctor` shows every reading"
        )
    return names


def look() -> tuple[HostReading, list[Compared], frozenset[str]]:
    """The host, the last comparison, and the readings that disagreed in up to three looks in a row."""
    host, own = read_probe()
    compared = compare_readings(host, own, read_reference())
    names = refused(compared)
    for _ in range(_TRIES - 1):
        if not names:
            break
        time.sleep(_BETWEEN_S)
        host, own = read_probe()
        compared = compare_readings(host, own, read_reference())
        names &= refused(compared)
    return host, compared, names


def _demand_descriptors() -> None:
    """A probe that cannot open its files reads nothing; then that is what has to be said. Raises HostUnfit."""
    try:
        with contextlib.ExitStack() as opened:
            for _ in range(_PROBE_FILES):
                opened.enter_context(Path(os.devnull).open("rb"))
    except OSError as error:
        raise HostUnfit(f"the readings of this machine could not be opened: {error}; mend that, then resume") from error


def read_probe() -> tuple[HostReading, WorkerReading]:
    """What our probe says of the host and of this very process."""
    _, probe = select_probe()
    probe.watch(os.getpid(), None)
    try:
        return probe.read()
    finally:
        probe.forget()


def refused(compared: list[Compared]) -> frozenset[str]:
    """The names of the readings that disagree, and of all that come out of the same structure."""
    names = frozenset(one.name for one in compared if one.agrees is False)
    return names.union(*(structure for structure in _STRUCTURES if structure & names))


def is_blinded(host: HostReading, names: frozenset[str]) -> bool:
    """Whether nothing is left of the host's memory once these readings are refused."""
    return all(getattr(host, name) is None or name in names for name in HOST_SIGNS)


def _held(name: str, ours: int, theirs: int | None, allowed: float) -> Compared:
    if theirs is None:
        return Compared(name, ours, "psutil has none", None)
    return Compared(name, ours, f"psutil {theirs / 1e9:.2f} GB", abs(ours - theirs) <= allowed)


def _possible(host: HostReading, own: WorkerReading, total: int) -> Iterator[Compared]:
    """What psutil has no like of: whether it can be so at all."""
    footprint, peak = own.footprint_bytes, own.peak_footprint_bytes
    limits: tuple[tuple[str, float | None, str, bool], ...] = (
        ("pressure_level", host.pressure_level, "1, 2 or 4", host.pressure_level in (1, 2, 4)),
        ("memory_free_frac", host.memory_free_frac, "0 to 1", 0 <= (host.memory_free_frac or 0) <= 1),
        ("compressor_bytes", host.compressor_bytes, "at most all memory", (host.compressor_bytes or 0) <= total),
        ("footprint_bytes", footprint, "over 0, at most memory and swap", 0 < (footprint or 0) <= 4 * total),
        ("peak_footprint_bytes", peak, "at least the footprint", (peak or 0) >= (footprint or 0)),
    )
    for name, value, words, holds in limits:
        if value is not None:
            yield Compared(name, value, words, holds)

"""Owns what the samples of one attempt say of memory: growth, traffic and pressure, each with its unit.

Does not judge (policy.py) and reads no clock: time arrives with the sample. Pure.

The host's readings are everybody's. What counts here is trouble that the worker is part of: a bounded worker
is judged by its own swap and its own faults, an unbounded one by the host's, unless the host has memory to
spare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.watchdog.sample import HostReading, WorkerReading

if TYPE_CHECKING:
    from orchestrator.watchdog.limits import Limits
    from orchestrator.watchdog.sample import Sample

WINDOW_S = 2.0  # rates are over this long: PSI and swap come in bursts of a few hundred milliseconds
PAGING_FRAC_PER_S = 0.0005  # of memory per second; below this paging is housekeeping (12 MB/s of 24 GB)
TIGHT_AVAILABLE_FRAC = 0.2  # with more available than this, swap traffic is somebody else's bound
EASE_STALL_FRAC, EASE_FREE_FRAC = 0.01, 0.1
FAULT_BYTES = 4096  # of a major fault; readahead brings more, so this is the least
SWAP_SOFT_FRAC, SWAP_HARD_FRAC = 0.01, 0.08  # of memory, where the limits name no bytes
_NO_HOST = HostReading()
_NO_WORKER = WorkerReading()


@dataclass(frozen=True, slots=True)
class Counters:
    """The rising counters of one sample; None where the platform has no such reading."""

    at_s: float
    swapin_bytes: int | None
    swapout_bytes: int | None
    stall_s: float | None
    own_stall_s: float | None
    own_faults: int | None
    own_swapped_bytes: int | None
    decompressed_bytes: int | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """The attempt's first readings: growth is judged over these, since swap is sticky."""

    swap_used_bytes: int | None = None
    own_swapped_bytes: int | None = None
    compressor_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """One sample's memory in the light of those before it. None: not known, never the same as zero.

    `paging` is traffic to or from swap that the worker is part of, `thrashing` the part that comes back in.
    `quiet` means that memory is *seen* to be at ease, so that slowness has another reason.
    """

    swap_growth_bytes: int | None
    swap_in_bytes_per_s: float | None
    swap_out_bytes_per_s: float | None
    paging: bool
    thrashing: bool
    quiet: bool
    pressure_stall_frac: float | None
    pressure_level: int | None
    available_frac: float | None
    compressor_growth_bytes: int | None
    decompressed_bytes_per_s: float | None
    footprint_bytes: int | None


def swap_limits(limits: Limits) -> tuple[int, int]:
    """The soft and the hard limit of swap growth in bytes; shares of memory where the limits leave them 0."""
    soft = limits.swap_soft_bytes or int(SWAP_SOFT_FRAC * limits.memory_bytes)
    return soft, limits.swap_hard_bytes or int(SWAP_HARD_FRAC * limits.memory_bytes)


def paging_threshold(limits: Limits) -> float:
    """Bytes per second from which on pages count as moving."""
    return PAGING_FRAC_PER_S * limits.memory_bytes


def is_usable(sample: Sample) -> bool:
    """Whether the sample says anything of the host's memory or of the worker."""
    host, worker = sample.host or _NO_HOST, sample.worker or _NO_WORKER
    return not (
        host.memory_available_bytes is None
        and host.swap_used_bytes is None
        and host.memory_free_frac is None
        and host.pressure_level is None
        and worker.footprint_bytes is None
        and worker.state is None
    )


def count(sample: Sample) -> Counters:
    """The counters of a sample."""
    host, worker = sample.host or _NO_HOST, sample.worker or _NO_WORKER
    return Counters(
        at_s=sample.monotonic_s,
        swapin_bytes=host.swapin_total_bytes,
        swapout_bytes=host.swapout_total_bytes,
        stall_s=host.pressure_stall_total_s,
        own_stall_s=worker.cgroup_stall_total_s,
        own_faults=worker.major_faults_total,
        own_swapped_bytes=_own_swapped(worker),
        decompressed_bytes=host.decompression_total_bytes,
    )


def slide(window: tuple[Counters, ...], newest: Counters) -> tuple[Counters, ...]:
    """The window with the newest counters; one entry older than it stays, so a rate always has a span."""
    first = 0
    while first + 1 < len(window) and window[first + 1].at_s <= newest.at_s - WINDOW_S:
        first += 1
    return (*window[first:], newest)


def complete(baseline: Baseline, sample: Sample) -> Baseline:
    """The baseline with whatever is read for the first time."""
    host, worker = sample.host or _NO_HOST, sample.worker or _NO_WORKER
    if baseline.swap_used_bytes is not None and baseline.own_swapped_bytes is not None:
        return baseline
    return Baseline(
        _first_of(baseline.swap_used_bytes, host.swap_used_bytes),
        _first_of(baseline.own_swapped_bytes, _own_swapped(worker)),
        _first_of(baseline.compressor_bytes, host.compressor_bytes),
    )


def measure_memory(limits: Limits, baseline: Baseline, window: tuple[Counters, ...], sample: Sample) -> MemoryFigures:
    """The memory figures of one sample; `window` ends with its counters."""
    host, worker = sample.host or _NO_HOST, sample.worker or _NO_WORKER
    bounded = worker.cgroup_used_bytes is not None
    own_growth = _growth(_own_swapped(worker), baseline.own_swapped_bytes)
    host_growth = _growth(host.swap_used_bytes, baseline.swap_used_bytes)
    available = _available_frac(host)
    # Only Linux can tell: macOS swaps when the whole machine is short, and has no bounds of others.
    spare = host.memory_available_bytes is not None and available is not None and available >= TIGHT_AVAILABLE_FRAC
    involved = bounded or not spare or (own_growth or 0) >= swap_limits(limits)[0]
    swap_in, swap_out = _paging_rates(window, bounded)
    threshold = paging_threshold(limits)
    thrashing = involved and swap_in is not None and swap_in >= threshold
    paging = thrashing or (involved and swap_out is not None and swap_out >= threshold)
    stall = _stall_frac(window, host_counts=paging or not (bounded or spare))
    decompressed = _rate(window[0].decompressed_bytes, window[-1].decompressed_bytes, _span_s(window))
    at_ease = (
        (stall or 0.0) < EASE_STALL_FRAC
        and (host.pressure_level or 1) <= 1
        and (host.memory_free_frac is None or host.memory_free_frac > EASE_FREE_FRAC)
        and (decompressed or 0.0) < threshold
    )
    return MemoryFigures(
        swap_growth_bytes=_swap_growth(own_growth, host_growth, bounded, involved),
        swap_in_bytes_per_s=swap_in,
        swap_out_bytes_per_s=swap_out,
        paging=paging,
        thrashing=thrashing,
        quiet=swap_in is not None and not paging and at_ease,
        pressure_stall_frac=stall,
        pressure_level=host.pressure_level,
        available_frac=available,
        compressor_growth_bytes=_growth(host.compressor_bytes, baseline.compressor_bytes),
        decompressed_bytes_per_s=decompressed,
        footprint_bytes=worker.footprint_bytes,
    )


def _own_swapped(worker: WorkerReading) -> int | None:
    """Swapped bytes of the worker; of its whole cgroup where it is bounded."""
    return _first_of(worker.cgroup_swapped_bytes, worker.swapped_bytes)


def _first_of(known: int | None, else_: int | None) -> int | None:
    return else_ if known is None else known


def _growth(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else max(0, now - before)


def _swap_growth(own: int | None, host: int | None, bounded: bool, involved: bool) -> int | None:
    """The growth that counts: the worker's own, and the host's where the worker is part of it."""
    if own is None:
        return host if involved or host is None else 0
    if bounded or host is None or not involved:
        return own
    return max(own, host)


def _available_frac(host: HostReading) -> float | None:
    if host.memory_free_frac is not None:
        return host.memory_free_frac
    if host.memory_available_bytes is None or not host.memory_total_bytes:
        return None
    return host.memory_available_bytes / host.memory_total_bytes


def _span_s(window: tuple[Counters, ...]) -> float:
    return window[-1].at_s - window[0].at_s


def _rate(first: float | None, last: float | None, span_s: float) -> float | None:
    """Growth per second, None where it is not known. A counter that fell counts as still."""
    if first is None or last is None or span_s <= 0:
        return None
    return max(0.0, last - first) / span_s


def _paging_rates(window: tuple[Counters, ...], bounded: bool) -> tuple[float | None, float | None]:
    """Bytes per second into memory and out of it. A bounded worker's are its own faults and its own swap."""
    first, last, span_s = window[0], window[-1], _span_s(window)
    if bounded and last.own_faults is not None and last.own_swapped_bytes is not None:
        faults = _rate(first.own_faults, last.own_faults, span_s)
        swapped = _rate(first.own_swapped_bytes, last.own_swapped_bytes, span_s)
        return None if faults is None else faults * FAULT_BYTES, swapped
    return (
        _rate(first.swapin_bytes, last.swapin_bytes, span_s),
        _rate(first.swapout_bytes, last.swapout_bytes, span_s),
    )


def _stall_frac(window: tuple[Counters, ...], host_counts: bool) -> float | None:
    """Share of the time in which a task waited for memory: of the worker's cgroup, else of the host.

    The host's counts as 0 where the worker is not part of the trouble: then others wait, for their own
    memory.
    """
    span_s = _span_s(window)
    own = _rate(window[0].own_stall_s, window[-1].own_stall_s, span_s)
    if own is not None:
        return own
    host = _rate(window[0].stall_s, window[-1].stall_s, span_s)
    return 0.0 if host is not None and not host_counts else host

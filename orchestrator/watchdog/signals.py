"""Owns what the samples of one attempt amount to: rates, growth, step times, each as a figure with its unit.

Does not decide anything (policy.py) and reads no clock: time arrives with the sample. Pure.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.watchdog.sample import HostReading, Sample, WorkerReading

if TYPE_CHECKING:
    from orchestrator.watchdog.limits import Limits

WINDOW_S = 2.0  # rates are over this long: PSI and swap come in bursts of a few hundred milliseconds
PAGING_FRAC_PER_S = (
    0.0005  # of memory per second; below this paging is housekeeping (12 MB/s on a 24 GB machine)
)
TIGHT_AVAILABLE_FRAC = (
    0.2  # with more memory than this available, the host's swap is not a shortage of the host
)
WALL_STEP_S = (
    0.05  # shorter steps are never a wall, whatever their ratio: noise of the scheduler is of that size
)
MAJOR_FAULT_BYTES = 4096
WARM_STEPS = 8
SKIPPED_STEPS = 2  # the first steps of an attempt compile and allocate
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
class Steps:
    """What is known of the attempt's decode steps and of its other marks, in seconds.

    `warm_s` is the smallest median of eight steps in a row, `chunk_s` the slowest mark of each phase that was not
    itself overdue.
    """

    seen: int = 0
    skip: int = SKIPPED_STEPS
    pending: tuple[float, ...] = ()
    warm_s: float | None = None
    chunk: tuple[str, int, int] | None = None
    chunk_at_s: float = 0.0
    chunk_s: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figures:
    """One sample in the light of those before it. None: not known, which is never the same as zero.

    `paging` is traffic to or from swap that the worker is part of, `thrashing` the part that comes back in.
    `quiet` means that memory is *seen* to be at ease, so slowness has another reason.
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
    step_s: float | None
    acute_step_s: float | None
    step_reference_s: float | None
    lone_reference_s: float | None
    progress_age_s: float | None
    late_s: float


def median(values: tuple[float, ...] | list[float]) -> float:
    """The middle value (the lower one of two, so that one slow step of two is no median)."""
    return sorted(values)[(len(values) - 1) // 2]


def own_swapped(worker: WorkerReading) -> int | None:
    """Swapped bytes of the worker; of its whole cgroup where it is bounded."""
    return worker.swapped_bytes if worker.cgroup_swapped_bytes is None else worker.cgroup_swapped_bytes


def is_bounded(worker: WorkerReading) -> bool:
    """Whether the worker has memory of its own, so that the host's shortage is not the worker's."""
    return worker.cgroup_used_bytes is not None


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
        own_swapped_bytes=own_swapped(worker),
        decompressed_bytes=host.decompression_total_bytes,
    )


def slide(window: tuple[Counters, ...], newest: Counters) -> tuple[Counters, ...]:
    """The window with the newest counters; one entry older than the window stays, so a rate always has a span."""
    first = 0
    while first + 1 < len(window) and window[first + 1].at_s <= newest.at_s - WINDOW_S:
        first += 1
    return (*window[first:], newest)


def rise(baseline: Baseline, sample: Sample) -> Baseline:
    """The baseline with whatever is read for the first time. A new process has swapped nothing."""
    host, worker = sample.host or _NO_HOST, sample.worker or _NO_WORKER
    if baseline.swap_used_bytes is not None and baseline.own_swapped_bytes is not None:
        return baseline
    return Baseline(
        host.swap_used_bytes if baseline.swap_used_bytes is None else baseline.swap_used_bytes,
        own_swapped(worker) if baseline.own_swapped_bytes is None else baseline.own_swapped_bytes,
        host.compressor_bytes if baseline.compressor_bytes is None else baseline.compressor_bytes,
    )


def follow_steps(steps: Steps, sample: Sample, overdue_s: float) -> Steps:
    """Takes in the decode steps and marks that are new in this sample. `overdue_s`: slower marks teach nothing."""
    progress = sample.progress
    if progress is None:
        return steps
    new = (
        progress.recent_step_s[-(progress.total_steps - steps.seen) :]
        if progress.total_steps > steps.seen
        else ()
    )
    skip, pending, warm = steps.skip, steps.pending, steps.warm_s
    for step_s in new if progress.phase != "calibrate" else ():  # calibration runs at another depth
        if skip > 0:
            skip -= 1
            continue
        pending = (*pending, step_s)
        if len(pending) == WARM_STEPS:
            middle = median(pending)
            warm, pending = middle if warm is None else min(warm, middle), ()
    chunk = (progress.phase, progress.rep, progress.chunk)
    marked_at_s, chunk_s = sample.monotonic_s - progress.progress_age_s, steps.chunk_s
    if steps.chunk is not None and chunk[:2] == steps.chunk[:2] and chunk[2] > steps.chunk[2]:
        took_s = (marked_at_s - steps.chunk_at_s) / (chunk[2] - steps.chunk[2])
        if chunk_s.get(chunk[0], 0.0) < took_s < overdue_s:
            chunk_s = {**chunk_s, chunk[0]: took_s}
    if chunk != steps.chunk:
        steps = dataclasses.replace(steps, chunk=chunk, chunk_at_s=marked_at_s, chunk_s=chunk_s)
    if not new:
        return steps
    return dataclasses.replace(steps, seen=progress.total_steps, skip=skip, pending=pending, warm_s=warm)


def rate(first: float | None, last: float | None, span_s: float) -> float | None:
    """Growth per second, None where it is not known. A counter that fell (a restart) counts as still."""
    if first is None or last is None or span_s <= 0:
        return None
    return max(0.0, last - first) / span_s


def paging_rates(window: tuple[Counters, ...], bounded: bool) -> tuple[float | None, float | None]:
    """Bytes per second out of and into swap, as (in, out).

    A bounded worker is judged by its own major faults and its own swapped bytes: the host's traffic may be a
    bystander's. Readahead makes the faults an underestimate.
    """
    first, last = window[0], window[-1]
    span_s = last.at_s - first.at_s
    if bounded and last.own_faults is not None and last.own_swapped_bytes is not None:
        faults = rate(first.own_faults, last.own_faults, span_s)
        out = rate(first.own_swapped_bytes, last.own_swapped_bytes, span_s)
        return None if faults is None else faults * MAJOR_FAULT_BYTES, out
    return rate(first.swapin_bytes, last.swapin_bytes, span_s), rate(
        first.swapout_bytes, last.swapout_bytes, span_s
    )


def _over(value: float | None, threshold: float) -> bool:
    return value is not None and value >= threshold


def _growth(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else max(0, now - before)


def step_times(
    sample: Sample, reference_s: float | None, soft: float, age_s: float | None
) -> tuple[float, float] | None:
    """The settled and the acute step time in seconds; None outside of decoding.

    Settled is the median of the last five finished steps: one slow step (a cache that grows by copy) does not move
    it. Acute counts the step in flight by its age, since a wall is often one unfinished step: it is the median of
    the last three, or half of the last finished or of the running step, whichever is most.
    """
    progress = sample.progress
    if progress is None or not (
        progress.phase == "decode" or (progress.phase == "warmup" and progress.step > 0)
    ):
        return None
    finished = progress.recent_step_s[-5:][-progress.step :] if progress.step else ()
    running = age_s if age_s is not None and reference_s is not None and age_s >= soft * reference_s else None
    last = finished if running is None else (*finished, running)
    if not last:
        return None
    settled = median(finished) if len(finished) >= 3 else 0.0
    lately = median(last[-3:]) if len(last) >= 3 else 0.0
    acute = max(lately, (running or 0.0) / 2, finished[-1] / 2 if finished else 0.0)
    return settled, acute


def measure(
    limits: Limits,
    baseline: Baseline,
    window: tuple[Counters, ...],
    steps: Steps,
    sample: Sample,
    age_s: float | None,
) -> Figures:
    """All figures of one sample. `age_s` is the age of the last progress that counts (not slept, not stopped)."""
    host, worker = sample.host or _NO_HOST, sample.worker or _NO_WORKER
    bounded = is_bounded(worker)
    swap_in, swap_out = paging_rates(window, bounded)
    lively = PAGING_FRAC_PER_S * limits.memory_bytes
    own_growth = _growth(own_swapped(worker), baseline.own_swapped_bytes)
    host_growth = _growth(host.swap_used_bytes, baseline.swap_used_bytes)
    available = host.memory_free_frac
    if available is None and host.memory_available_bytes is not None and host.memory_total_bytes:
        available = host.memory_available_bytes / host.memory_total_bytes
    # Only Linux can tell that swap traffic beside plenty of available memory is somebody else's bound.
    elsewhere = (
        not bounded and host.memory_available_bytes is not None and _over(available, TIGHT_AVAILABLE_FRAC)
    )
    involved = not elsewhere or _over(own_growth, limits.swap_soft_bytes or limits.memory_bytes // 100)
    growth = (
        own_growth
        if bounded and own_growth is not None
        else max(
            (
                g
                for g in (own_growth, host_growth if involved else 0 if host_growth is not None else None)
                if g is not None
            ),
            default=None,
        )
    )
    first, last = window[0], window[-1]
    span_s = last.at_s - first.at_s
    own_stall = rate(first.own_stall_s, last.own_stall_s, span_s)
    host_stall = rate(first.stall_s, last.stall_s, span_s)
    thrashing = involved and _over(swap_in, lively)
    paging = thrashing or (involved and _over(swap_out, lively))
    stall = own_stall if own_stall is not None else host_stall
    if stall is not None and own_stall is None and (elsewhere or bounded) and not paging:
        stall = 0.0  # others wait for memory, not this worker
    decompressed = rate(first.decompressed_bytes, last.decompressed_bytes, span_s)
    reference = min((r for r in (steps.warm_s, limits.expected_step_s) if r is not None), default=None)
    # A prediction that stands alone gets the benefit of the doubt, a measured median does not.
    lone = min(
        (r for r in (steps.warm_s, limits.expected_step_s and 2 * limits.expected_step_s) if r), default=None
    )
    times = step_times(sample, reference, limits.inflation_soft, age_s)
    return Figures(
        swap_growth_bytes=growth,
        swap_in_bytes_per_s=swap_in,
        swap_out_bytes_per_s=swap_out,
        paging=paging,
        thrashing=thrashing,
        quiet=swap_in is not None
        and not paging
        and not _over(stall, 0.01)
        and _at_ease(host, decompressed, lively),
        pressure_stall_frac=stall,
        pressure_level=host.pressure_level,
        available_frac=available,
        compressor_growth_bytes=_growth(host.compressor_bytes, baseline.compressor_bytes),
        decompressed_bytes_per_s=decompressed,
        footprint_bytes=worker.footprint_bytes,
        step_s=times[0] if times else None,
        acute_step_s=times[1] if times else None,
        step_reference_s=reference,
        lone_reference_s=lone,
        progress_age_s=age_s,
        late_s=sample.late_s,
    )


def _at_ease(host: HostReading, decompressed: float | None, lively: float) -> bool:
    """Whether what only macOS tells speaks of ease as well."""
    level_fine = host.pressure_level is None or host.pressure_level <= 1
    free_fine = host.memory_free_frac is None or host.memory_free_frac > 0.1
    return level_fine and free_fine and not _over(decompressed, lively)

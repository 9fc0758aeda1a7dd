"""Owns the Sample: one timestamped set of readings. Does not read anything itself.

A reading that failed or does not exist on this platform is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine at one moment. Counters (`*_total_*`) only ever rise; policy looks at their growth."""

    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    swapin_total_bytes: int | None = None
    swapout_total_bytes: int | None = None
    pressure_stall_total_s: float | None = None  # Linux PSI memory "some" total
    pressure_level: int | None = None  # macOS: 1 normal, 2 warning, 4 critical
    memory_free_frac: float | None = None  # macOS kern.memorystatus_level / 100: sees wired memory
    compressor_bytes: int | None = None
    decompression_total_bytes: int | None = None
    wired_bytes: int | None = None
    oom_kill_total: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerReading:
    """The worker's process (and its cgroup, where it has one) at one moment.

    `footprint_bytes` is what the worker costs the machine, swapped and GPU memory included: macOS
    `ri_phys_footprint`, Linux resident plus swapped. `state` is the one-letter process state
    (Z: dead and not reaped, T: stopped). The `cgroup_*` readings exist only where the worker is bounded.
    """

    state: str | None = None
    footprint_bytes: int | None = None
    peak_footprint_bytes: int | None = None  # macOS: kept by the kernel, so it sees peaks between two samples
    resident_bytes: int | None = None
    swapped_bytes: int | None = None
    major_faults_total: int | None = None
    cgroup_used_bytes: int | None = None
    cgroup_swapped_bytes: int | None = None
    cgroup_stall_total_s: float | None = None  # PSI memory "some" total of the worker's own cgroup (v2)
    cgroup_oom_kill_total: int | None = None


@dataclass(frozen=True, slots=True)
class ProgressReading:
    """The telemetry page at one moment, in seconds.

    `progress_age_s` is the time since the last progress of any kind; `recent_step_s` the last decode steps,
    oldest first, at most 64; `total_steps` says how many of them a reader has not seen yet.
    """

    phase: str
    rep: int
    step: int
    total_steps: int
    chunk: int
    chunks: int
    progress_age_s: float
    phase_age_s: float
    recent_step_s: tuple[float, ...]
    active_bytes: int
    cache_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One tick of the watchdog. `monotonic_s` stops while the machine sleeps, `boottime_s` does not."""

    monotonic_s: float
    boottime_s: float
    late_s: float
    host: HostReading | None
    worker: WorkerReading | None
    progress: ProgressReading | None

"""Plays a cell as the policy would see it: samples at 10 Hz from a few rates. Owns no judgement."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from orchestrator.watchdog.limits import Limits
from orchestrator.watchdog.policy import CONTINUE, Action, State, Stop, decide
from orchestrator.watchdog.sample import HostReading, ProgressReading, Sample, WorkerReading

GB = 10**9
MB = 10**6
TICK_S = 0.1
HOST = Limits(memory_bytes=24 * GB, footprint_bytes=int(22.8 * GB))
BOUND = Limits(memory_bytes=400 * MB, footprint_bytes=380 * MB, expected_step_s=0.2)


@dataclass
class Cell:
    """A machine and a worker. `run` lets time pass at the rates given; the first Stop ends it.

    `bounded` gives the worker a cgroup, `mac` the readings of macOS in place of those of Linux.
    """

    limits: Limits
    bounded: bool = False
    mac: bool = False
    now_s: float = 1000.0
    slept_s: float = 0.0
    phase: str = "decode"
    step_s: float = 0.2
    available_frac: float = 0.7
    level: int = 1
    footprint_bytes: int = 2 * GB
    state_letter: str = "R"
    swap_used_bytes: int = 3 * GB  # what earlier programs left there
    swapin_bytes: float = 0.0
    swapout_bytes: float = 0.0
    own_swapped_bytes: float = 0.0
    own_faults: float = 0.0
    stall_s: float = 0.0
    compressor_bytes: float = 0.0
    decompressed_bytes: float = 0.0
    blind: bool = False
    chunk: int = 0
    chunks: int = 0
    rep: int = 0
    total_steps: int = 0
    first_step: int = 0
    steps: list[float] = field(default_factory=list)
    progress_at_s: float = 1000.0
    state: State = field(default_factory=State)
    stop: Stop | None = None
    stopped_at_s: float | None = None
    played: list[tuple[Sample, Action]] = field(default_factory=list)

    def run(
        self,
        seconds: float,
        *,
        step_s: float | None = None,
        swap_in: float = 0.0,
        swap_out: float = 0.0,
        own_in: float = 0.0,
        own_out: float = 0.0,
        stalled: float = 0.0,
        decompress: float = 0.0,
        compress: float = 0.0,
        frozen: bool = False,
        late_s: float = 0.0,
        tick_s: float = TICK_S,
    ) -> Cell:
        """Rates in bytes per second, `stalled` as a share of the time; `frozen`: no progress at all."""
        self.step_s = self.step_s if step_s is None else step_s
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9 and self.stop is None:
            self.now_s += tick_s
            self.swapin_bytes += tick_s * swap_in
            self.swapout_bytes += tick_s * swap_out
            self.swap_used_bytes += int(tick_s * (swap_out - swap_in))
            self.own_swapped_bytes += tick_s * own_out
            self.own_faults += tick_s * own_in / 4096
            self.stall_s += tick_s * stalled
            self.decompressed_bytes += tick_s * decompress
            self.compressor_bytes += tick_s * compress
            if self.phase == "decode" and not frozen:
                while self.now_s >= self.progress_at_s + self.step_s:
                    self.finish_step(self.step_s)
            self.tick(late_s)
        return self

    def finish_step(self, seconds: float) -> None:
        """One decode step is done."""
        self.progress_at_s += seconds
        self.steps.append(seconds)
        self.total_steps += 1

    def enter(self, phase: str, chunks: int = 0, rep: int = 0) -> Cell:
        """A phase begins."""
        self.phase, self.chunk, self.chunks, self.rep = phase, 0, chunks, rep
        self.first_step, self.progress_at_s = self.total_steps, self.now_s
        return self

    def mark(self) -> Cell:
        """A chunk or a weight is done."""
        self.chunk += 1
        self.progress_at_s = self.now_s
        return self

    def gap(self, seconds: float, *, asleep: bool = False) -> Cell:
        """Time passes without a tick. Asleep, the monotonic clock stands still."""
        if asleep:
            self.slept_s += seconds
        else:
            self.now_s += seconds
        return self

    def tick(self, late_s: float = 0.0) -> Action:
        """One sample."""
        sample = self.sample(late_s)
        self.state, action = decide(self.limits, self.state, sample)
        self.played.append((sample, action))
        if isinstance(action, Stop) and self.stop is None:
            self.stop, self.stopped_at_s = action, self.now_s
        return action

    def sample(self, late_s: float = 0.0) -> Sample:
        """The readings of now."""
        progress = ProgressReading(
            phase=self.phase,
            rep=self.rep,
            step=self.total_steps - self.first_step,
            total_steps=self.total_steps,
            chunk=self.chunk,
            chunks=self.chunks,
            progress_age_s=self.now_s - self.progress_at_s,
            phase_age_s=0.0,
            recent_step_s=tuple(self.steps[-64:]),
            active_bytes=0,
            cache_bytes=0,
            peak_bytes=0,
        )
        host = HostReading(
            memory_total_bytes=24 * GB,
            swap_used_bytes=self.swap_used_bytes,
            swapin_total_bytes=int(self.swapin_bytes),
            swapout_total_bytes=int(self.swapout_bytes),
        )
        worker = WorkerReading(state=self.state_letter, footprint_bytes=self.footprint_bytes)
        if self.mac:
            host = dataclasses.replace(
                host,
                pressure_level=self.level,
                memory_free_frac=self.available_frac,
                compressor_bytes=int(self.compressor_bytes),
                decompression_total_bytes=int(self.decompressed_bytes),
            )
            worker = dataclasses.replace(worker, state=None)
        else:
            host = dataclasses.replace(
                host,
                memory_available_bytes=int(self.available_frac * 24 * GB),
                pressure_stall_total_s=self.stall_s,
            )
            worker = dataclasses.replace(
                worker,
                swapped_bytes=int(self.own_swapped_bytes),
                major_faults_total=int(self.own_faults),
                cgroup_used_bytes=380 * MB if self.bounded else None,
                cgroup_swapped_bytes=int(self.own_swapped_bytes) if self.bounded else None,
            )
        if self.blind:
            host, worker = HostReading(), WorkerReading()
        return Sample(self.now_s, self.now_s + self.slept_s, late_s, host, worker, progress)

    def lives(self) -> bool:
        """Whether the policy let it run until now."""
        return self.stop is None and self.tick() is CONTINUE


def stopped(cell: Cell, since_s: float) -> tuple[str, float]:
    """The cause, and how long after `since_s` the policy acted."""
    assert cell.stop is not None
    assert cell.stopped_at_s is not None
    return cell.stop.cause, cell.stopped_at_s - since_s

"""Owns one watched attempt: its samples, the policy's state, the ladder, and what is told of it at the end.

Does not own the loop, the socket or the descriptors (main.py). Opens nothing and waits for nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from orchestrator.watchdog.killer import Graces, Killer, graces, kill_cgroup, released_rungs, signal_group
from orchestrator.watchdog.last_samples import append_last_samples
from orchestrator.watchdog.policy import Evidence, State, Stop, decide, memory_evidence
from orchestrator.watchdog.recording import encode_sample
from orchestrator.watchdog.sample import HostReading, ProgressReading, Sample, WorkerReading
from orchestrator.watchdog.strays import end_strays
from orchestrator.watchdog.wire import Acted, Released, Rung, Watch

if TYPE_CHECKING:
    from collections import deque

    from orchestrator.watchdog.outbox import Outbox
    from orchestrator.watchdog.probe import Probe
    from worker.telemetry import TelemetryPage

FLUSH_EVERY_S = 0.5
CLEAN_END_POLL_S = 0.02
_GONE = ("Z", "X", "x")

# Clocks: one that stops while the machine sleeps, and one that does not; their difference tells a suspend.
_AWAKE = time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC_RAW


class Watched:
    """One worker from `Watch` to `Released`."""

    def __init__(
        self,
        watch: Watch,
        page: TelemetryPage,
        probe: Probe,
        outbox: Outbox,
        kept: deque[dict[str, Any]],
        *,
        wired: bool,
    ) -> None:
        """`kept` holds the last samples; it belongs to the loop, since memory that comes and goes leaves holes."""
        self.watch = watch
        self._page, self._probe, self._outbox, self._wired = page, probe, outbox, wired
        self._killer = Killer(watch.pid, page.request_stop)
        self._state = State()
        self._started_s = time.monotonic()
        self._due_s = self._started_s
        self._flushed_s = self._started_s
        self._batch: list[dict[str, Any]] = []
        self._steps_sent = 0
        self._cause: str | None = None
        self._evidence: Evidence = {}
        self._samples = 0
        self._late_max_s = 0.0
        self._peak_footprint: int | None = None
        self._phase_footprint: dict[str, int] = {}
        self._first: tuple[HostReading, WorkerReading] | None = None
        self._last: tuple[HostReading, WorkerReading] | None = None
        self._worker_is_gone = False
        self._kept = kept
        kept.clear()
        self._dropped_before = outbox.dropped
        self._would_have: tuple[str, float, Evidence] | None = None
        probe.watch(watch.pid, watch.cgroup_dir)

    @property
    def due_s(self) -> float | None:
        """When the next tick is due on the monotonic clock; None once the worker is gone or given up."""
        return None if self._worker_is_gone or self._killer.is_unkillable else self._due_s

    def tick(self) -> bool:
        """Samples, decides, acts. False once nothing more can be done: the worker is unkillable."""
        sample = self._sample()
        acted = False
        if not self._worker_is_gone:
            acted = self._end_if_needed(sample) if self._cause is None else self._climb()
        now = time.monotonic()
        if acted or self._worker_is_gone or now - self._flushed_s >= FLUSH_EVERY_S:
            self.send_samples()
        self._due_s = max(self._due_s + self.watch.limits.sample_every_s, now)
        return not self._killer.is_unkillable

    def stop(self, cause: str, hurry: bool) -> None:
        """Ends the worker for a reason not the policy's. The first cause wins; `hurry` always counts."""
        if self._worker_is_gone:
            return
        if self._cause is None:
            self._act(cause, {})
        self._start_ladder(hurry)
        self.send_samples()

    def release(self) -> Released:
        """Kills what is left of the worker's group and lets go of it.

        The leader must be a zombie that nobody has reaped (or unkillable), so its number is still its own.
        """
        if not self._killer.is_unkillable:
            signal_group(self.watch.pid, signal.SIGKILL)
            kill_cgroup(self.watch.cgroup_dir)
        self._sample()  # the last steps, and the kernel's kills, belong to the record
        self.send_samples()
        self._probe.forget()
        return self._released()

    def wait_for_clean_end(self) -> None:
        """Raises the stop flag and gives the worker as long as the ladder's first rung would to end by itself."""
        self._page.request_stop()
        end_s = time.monotonic() + self._graces().flag_s
        while not self._worker_is_gone and time.monotonic() < end_s:
            time.sleep(CLEAN_END_POLL_S)
            _, worker = self._read()
            if worker.state is None and worker.footprint_bytes is None:  # reaped by whoever adopted it
                return

    def kill(self) -> None:
        """Ends worker, group and cgroup at once: the orchestrator is gone and nobody asks for the rest.

        Whoever adopted the worker may have reaped it: then its number is another's if it is a process again.
        """
        _, worker = self._read()
        proc = f"/proc/{self.watch.pid}"
        if worker.state is not None or sys.platform == "darwin" or not os.path.exists(proc):  # noqa: PTH110 - pathlib costs 0.8 MB
            signal_group(self.watch.pid, signal.SIGKILL)
        kill_cgroup(self.watch.cgroup_dir)

    def settle(self) -> None:
        """Does what the orchestrator would have done after the worker's end: strays, and the last samples."""
        if self.watch.tag is not None:
            end_strays(self.watch.tag)
        if self.watch.recording is not None:
            append_last_samples(self.watch.recording, self._kept, time.monotonic())

    def send_samples(self) -> None:
        """Hands the samples so far to the outbox."""
        self._flushed_s = time.monotonic()
        if self._batch:
            self._outbox.post_samples(self.watch.serial, self._batch)
            self._batch = []

    # -- inside

    def _read(self) -> tuple[HostReading, WorkerReading]:
        host, worker = self._probe.read()
        for footprint in (worker.footprint_bytes, worker.peak_footprint_bytes):
            if footprint is not None:
                self._peak_footprint = max(self._peak_footprint or 0, footprint)
        if self._first is None:
            self._first = (host, worker)
        self._last = (host, worker)
        self._worker_is_gone = worker.state in _GONE
        return host, worker

    def _sample(self) -> Sample:
        """Reads everything once. Lateness is how far behind its plan this tick began."""
        late_s = max(0.0, time.monotonic() - self._due_s)
        host, worker = self._read()
        # Taken after the readings: the progress read next is then never younger than the clock.
        progress = self._page.read()
        now = time.monotonic()
        reading = None
        if progress is not None and progress.serial == self.watch.serial:
            # A page nobody has written to yet is as old as the attempt, not as the machine.
            reading = ProgressReading(
                phase=progress.phase.label,
                rep=progress.rep,
                step=progress.step,
                total_steps=progress.total_steps,
                chunk=progress.chunk,
                chunks=progress.chunks,
                progress_age_s=max(0.0, now - max(progress.progress_ns / 1e9, self._started_s)),
                phase_age_s=max(0.0, now - max(progress.phase_started_ns / 1e9, self._started_s)),
                recent_step_s=progress.recent_step_s,
                active_bytes=progress.active_bytes,
                cache_bytes=progress.cache_bytes,
                peak_bytes=progress.peak_bytes,
            )
        sample = Sample(now, time.clock_gettime(_AWAKE), late_s, host, worker, reading)
        self._samples += 1
        self._late_max_s = max(self._late_max_s, late_s)
        body = encode_sample(sample, self._steps_sent)
        self._batch.append(body)
        self._kept.append(body)
        if reading is not None:
            self._steps_sent = reading.total_steps
            self._note_footprint(reading.phase, worker.footprint_bytes)
        return sample

    def _note_footprint(self, phase: str, footprint_bytes: int | None) -> None:
        if footprint_bytes is not None:
            self._phase_footprint[phase] = max(self._phase_footprint.get(phase, 0), footprint_bytes)

    def _end_if_needed(self, sample: Sample) -> bool:
        self._state, action = decide(self.watch.limits, self._state, sample)
        if not isinstance(action, Stop):
            return False
        if self.watch.observe and action.cause != "time_limit":  # how long a cell may take is not a matter of walls
            return self._note(action, sample.monotonic_s)
        # Once more just before acting: the worker may have ended, or this process may have been stopped
        # meanwhile.
        self._state, again = decide(self.watch.limits, self._state, self._sample())
        if self._worker_is_gone or not isinstance(again, Stop):
            return False
        self._act(again.cause, again.evidence)
        self._start_ladder(hurry=False)
        return True

    def _note(self, action: Stop, now_s: float) -> bool:
        """Tells the first thing that the policy would have done; whether this was it."""
        if self._would_have is not None:
            return False
        self._would_have = (action.cause, round(now_s - self._started_s, 3), action.evidence)
        self._outbox.post(Acted(self.watch.serial, action.cause, action.evidence, round(now_s, 3), observed=True))
        return True

    def _act(self, cause: str, evidence: Evidence) -> None:
        self._cause, self._evidence = cause, evidence
        self._outbox.post(Acted(self.watch.serial, cause, evidence, round(time.monotonic(), 3)))

    def _start_ladder(self, hurry: bool) -> None:
        now = time.monotonic()
        self._tell(self._killer.start(now, self._graces(), hurry=hurry), now)

    def _graces(self) -> Graces:
        memory, pace = self._state.memory, self._state.pace
        step_s = None if pace is None else max(pace.step_s or 0.0, pace.acute_step_s or 0.0)
        return graces(step_s, None if memory is None else memory.footprint_bytes, self._wired)

    def _climb(self) -> bool:
        now = time.monotonic()
        taken = self._killer.tick(now)
        self._tell(taken, now)
        return bool(taken)

    def _tell(self, rungs: list[str], now_s: float) -> None:
        for name in rungs:
            self._outbox.post(Rung(self.watch.serial, name, round(now_s, 3)))

    def _released(self) -> Released:
        # The host counts everybody's kills, the worker's own cgroup only what is the worker's.
        own_kills = self._risen("cgroup_oom_kill_total")
        oom_kills = self._risen("oom_kill_total") if own_kills is None else own_kills
        memory = dict(memory_evidence(self._state, time.monotonic()))
        if own_kills:
            memory["oom_kills"] = own_kills
        stalled_s = self._state.measured_stall_s
        would, after_s, would_evidence = self._would_have or (None, None, {})
        return Released(
            serial=self.watch.serial,
            cause=self._cause,
            evidence=self._evidence,
            rungs=released_rungs(self._killer.rungs),
            unkillable=self._killer.is_unkillable,
            peak_footprint_bytes=self._peak_footprint,
            swap_growth_bytes=self._state.swap_growth_max_bytes,
            swapin_bytes=self._risen("swapin_total_bytes"),
            swapout_bytes=self._risen("swapout_total_bytes"),
            pressure_stall_s=None if stalled_s is None else round(stalled_s, 6),
            oom_kills=oom_kills,
            late_max_s=round(self._late_max_s, 6),
            samples=self._samples,
            samples_dropped=self._outbox.dropped - self._dropped_before,
            suspended_s=round(self._state.suspended_s, 3),
            memory_evidence=memory,
            would_have=would,
            would_have_after_s=after_s,
            would_have_evidence=would_evidence,
            phase_footprint_bytes=self._phase_footprint,
        )

    def _grown(self, name: str) -> float | None:
        """How much a counter of host or worker rose between the first and the last reading."""
        if self._first is None or self._last is None:
            return None
        at = 0 if hasattr(self._first[0], name) else 1
        before, after = getattr(self._first[at], name), getattr(self._last[at], name)
        return None if before is None or after is None else max(0, after - before)

    def _risen(self, name: str) -> int | None:
        grown = self._grown(name)
        return None if grown is None else int(grown)

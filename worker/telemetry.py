"""Owns the telemetry page: one shared memory page through which a worker shows its progress.

Does not decide anything, and makes no system call once a page is open. Standard library only: the worker
writes it, the watchdog and the screen read it, also while the worker is wedged in a C call.

Every field is eight bytes, aligned, and has one writer, so a reader never sees half a value; that holds for
single words of a memoryview, not for struct.pack_into, which zeroes its target before it writes. The worker
brackets each update with the sequence number (odd while it writes); a reader that meets an odd one tries
again a few times and then takes what is there, since a worker may have died between the two.
"""

from __future__ import annotations

import enum
import mmap
import os
import sys
import time
from dataclasses import dataclass

PAGE_BYTES = 4096
RING_STEPS = 64
VERSION = 1
_MAGIC = int.from_bytes(b"WALLPAGE", "little")

# All positions are in words of eight bytes.
_MAGIC_AT, _VERSION_AT, _SERIAL_AT = 0, 1, 2  # written by the orchestrator when it lays the page
_PROGRESS_AT = 8  # written by the worker alone, in this order:
_SEQ, _PID, _PHASE, _REP, _STEP, _MARKS, _TOTAL, _PROGRESS_NS, _PHASE_NS, _CHUNK, _CHUNKS = range(11)
_ACTIVE, _CACHE, _PEAK = range(11, 14)
_PROGRESS_WORDS = 14
_RING_AT = 32
_STOP_AT = 128  # written by whoever ends the worker, and never taken back


class Phase(enum.IntEnum):
    """Where a worker is in its attempt."""

    STARTING = 0
    LOAD = 1
    CALIBRATE = 2
    WARMUP = 3
    PREFILL = 4
    DECODE = 5
    DONE = 6

    @property
    def label(self) -> str:
        """The phase's name as records and screens show it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Telemetry:
    """One reading of the page. Times are `time.monotonic_ns` of the worker, the same clock for all processes.

    `recent_step_s` holds the last decode steps of the attempt in seconds, oldest first, at most 64;
    `total_steps` counts every step of the attempt, so a reader knows which of them it has seen.
    `chunk` of `chunks` is progress inside load, calibrate and prefill.
    """

    serial: int
    pid: int
    phase: Phase
    rep: int
    step: int
    marks: int
    total_steps: int
    progress_ns: int
    phase_started_ns: int
    chunk: int
    chunks: int
    active_bytes: int
    cache_bytes: int
    peak_bytes: int
    recent_step_s: tuple[float, ...]
    stop_requested: bool


class TelemetryPage:
    """Both ends of the page over one file descriptor. The caller owns the descriptor."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, PAGE_BYTES)
        self._words = memoryview(self._map).cast("Q")
        self._seq = 0
        self._pid = 0
        self._phase = Phase.STARTING
        self._rep = self._step = self._marks = self._total = 0
        self._phase_started_ns = 0
        self._chunk = self._chunks = 0
        self._active = self._cache = self._peak = 0

    # -- the orchestrator's end

    def lay(self, serial: int) -> None:
        """Clears the page and names the attempt it belongs to."""
        self._map[:] = bytes(PAGE_BYTES)
        self._words[_VERSION_AT], self._words[_SERIAL_AT] = VERSION, serial
        self._words[_MAGIC_AT] = _MAGIC

    # -- the end of who watches

    def request_stop(self) -> None:
        """Asks the worker to end by itself between two steps."""
        self._words[_STOP_AT] = 1

    @property
    def shared(self) -> mmap.mmap:
        """The mapping itself, for locking it into memory."""
        return self._map

    def read(self) -> Telemetry | None:
        """The page's content; None where it was never laid or is of another version."""
        if not self._laid:
            return None
        fields, ring = self._consistent()
        total = fields[_TOTAL]
        kept = min(total, RING_STEPS)
        phase = fields[_PHASE]
        return Telemetry(
            serial=self._words[_SERIAL_AT],
            pid=fields[_PID],
            phase=Phase(phase) if phase <= Phase.DONE else Phase.STARTING,
            rep=fields[_REP],
            step=fields[_STEP],
            marks=fields[_MARKS],
            total_steps=total,
            progress_ns=fields[_PROGRESS_NS],
            phase_started_ns=fields[_PHASE_NS],
            chunk=fields[_CHUNK],
            chunks=fields[_CHUNKS],
            active_bytes=fields[_ACTIVE],
            cache_bytes=fields[_CACHE],
            peak_bytes=fields[_PEAK],
            recent_step_s=tuple(ring[i % RING_STEPS] / 1e9 for i in range(total - kept, total)),
            stop_requested=self.stop_requested,
        )

    @property
    def _laid(self) -> bool:
        return self._words[_MAGIC_AT] == _MAGIC and self._words[_VERSION_AT] == VERSION

    def _consistent(self) -> tuple[list[int], list[int]]:
        """Progress and ring of one update, or after some tries whatever is there."""
        progress = self._words[_PROGRESS_AT : _PROGRESS_AT + _PROGRESS_WORDS]
        steps = self._words[_RING_AT : _RING_AT + RING_STEPS]
        for _ in range(5):
            before = progress[_SEQ]
            fields, ring = progress.tolist(), steps.tolist()
            if before == progress[_SEQ] and before % 2 == 0:
                break
        return fields, ring

    # -- the worker's end

    @property
    def serial(self) -> int:
        """The attempt the page was laid for; 0 where it is not a page of this version."""
        return self._words[_SERIAL_AT] if self._laid else 0

    @property
    def stop_requested(self) -> bool:
        """Whether somebody asked the worker to end."""
        return self._words[_STOP_AT] != 0

    def open_as_worker(self) -> None:
        """Signs the page with the caller's pid."""
        self._pid = os.getpid()
        self.enter(Phase.STARTING)

    def enter(self, phase: Phase, *, rep: int = 0, chunks: int = 0) -> None:
        """Begins a phase (or the next rep of one); `chunks` is how many marks are expected, 0 if unknown."""
        self._phase, self._rep, self._chunks = phase, rep, chunks
        self._chunk = self._step = 0
        self._phase_started_ns = time.monotonic_ns()
        self._publish()

    def mark(self, chunks: int | None = None) -> None:
        """Progress that is not a decode step: a weight loaded, a chunk of prefill done."""
        self._chunk += 1
        if chunks is not None:
            self._chunks = chunks
        self._publish()

    def memory(self, active: int, cache: int, peak: int) -> None:
        """MLX's own figures in bytes; shown with the next progress."""
        self._active, self._cache, self._peak = active, cache, peak

    def step(self, duration_ns: int) -> None:
        """One decode step of all rows is done; `duration_ns` is how long it took."""
        words = self._words
        # The entry belongs to the update: a reader in between must not take it for the oldest step.
        words[_PROGRESS_AT + _SEQ] = self._seq + 1
        words[_RING_AT + self._total % RING_STEPS] = duration_ns
        self._step += 1
        self._total += 1
        self._publish()

    def _publish(self) -> None:
        self._marks += 1
        self._seq += 2
        words = self._words
        words[_PROGRESS_AT + _SEQ] = self._seq - 1
        words[_PROGRESS_AT + _PID] = self._pid
        words[_PROGRESS_AT + _PHASE] = self._phase
        words[_PROGRESS_AT + _REP] = self._rep
        words[_PROGRESS_AT + _STEP] = self._step
        words[_PROGRESS_AT + _MARKS] = self._marks
        words[_PROGRESS_AT + _TOTAL] = self._total
        words[_PROGRESS_AT + _PROGRESS_NS] = time.monotonic_ns()
        words[_PROGRESS_AT + _PHASE_NS] = self._phase_started_ns
        words[_PROGRESS_AT + _CHUNK] = self._chunk
        words[_PROGRESS_AT + _CHUNKS] = self._chunks
        words[_PROGRESS_AT + _ACTIVE] = self._active
        words[_PROGRESS_AT + _CACHE] = self._cache
        words[_PROGRESS_AT + _PEAK] = self._peak
        words[_PROGRESS_AT + _SEQ] = self._seq


def create_page_fd() -> int:
    """An unnamed file of one page, in memory where the platform has such a thing; close-on-exec."""
    fd = _unnamed_fd()
    os.ftruncate(fd, PAGE_BYTES)
    return fd


def _unnamed_fd() -> int:
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        return os.memfd_create("wallfinder-telemetry", os.MFD_CLOEXEC)
    import tempfile  # late: it costs memory in every process, and Linux never needs it

    with tempfile.TemporaryFile(prefix="wallfinder-") as file:
        return os.dup(file.fileno())

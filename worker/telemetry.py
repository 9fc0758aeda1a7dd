"""Owns the telemetry page: one shared memory page through which a worker shows its progress.

Does not decide anything, and makes no system call once a page is open. Standard library only: the worker
writes it, the watchdog and the screen read it, also while the worker is wedged in a C call.

Every field is eight bytes, aligned, and has one writer, so a reader never sees half a value. The worker
brackets each update with the sequence number (odd while it writes); a reader that meets an odd one tries
again a few times and then takes what is there, since a worker may have died between the two.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import time
from dataclasses import dataclass

PAGE_BYTES = 4096
RING_STEPS = 64
VERSION = 1
_MAGIC = int.from_bytes(b"WALLPAGE", "little")

# magic, version, serial: written by the orchestrator when it lays the page for an attempt.
_IDENTITY = struct.Struct("<QQQ")
# seq, pid, phase, rep, step, marks, total_steps, progress_ns, phase_started_ns, chunk, chunks,
# active_bytes, cache_bytes, peak_bytes: written by the worker alone.
_PROGRESS = struct.Struct("<14Q")
_WORD = struct.Struct("<Q")
_RING = struct.Struct(f"<{RING_STEPS}Q")

_IDENTITY_AT = 0
_PROGRESS_AT = 64
_RING_AT = 256
_STOP_AT = 1024  # written by the watchdog alone


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
        _IDENTITY.pack_into(self._map, _IDENTITY_AT, _MAGIC, VERSION, serial)

    # -- the watchdog's end

    def request_stop(self) -> None:
        """Asks the worker to end by itself between two steps."""
        _WORD.pack_into(self._map, _STOP_AT, 1)

    @property
    def shared(self) -> mmap.mmap:
        """The mapping itself, for locking it into memory."""
        return self._map

    def read(self) -> Telemetry | None:
        """The page's content; None where it was never laid or is of another version."""
        magic, version, serial = _IDENTITY.unpack_from(self._map, _IDENTITY_AT)
        if magic != _MAGIC or version != VERSION:
            return None
        for _ in range(3):
            fields = _PROGRESS.unpack_from(self._map, _PROGRESS_AT)
            ring = _RING.unpack_from(self._map, _RING_AT)
            (seq,) = _WORD.unpack_from(self._map, _PROGRESS_AT)
            if seq == fields[0] and seq % 2 == 0:
                break
        _, pid, phase, rep, step, marks, total, progress, started, chunk, chunks, active, cache, peak = fields
        kept = min(total, RING_STEPS)
        steps = tuple(ring[i % RING_STEPS] / 1e9 for i in range(total - kept, total))
        return Telemetry(
            serial=serial,
            pid=pid,
            phase=Phase(phase) if phase <= Phase.DONE else Phase.STARTING,
            rep=rep,
            step=step,
            marks=marks,
            total_steps=total,
            progress_ns=progress,
            phase_started_ns=started,
            chunk=chunk,
            chunks=chunks,
            active_bytes=active,
            cache_bytes=cache,
            peak_bytes=peak,
            recent_step_s=steps,
            stop_requested=self.stop_requested,
        )

    # -- the worker's end

    @property
    def serial(self) -> int:
        """The attempt the page was laid for; 0 where it is not a page of this version."""
        magic, version, serial = _IDENTITY.unpack_from(self._map, _IDENTITY_AT)
        return int(serial) if magic == _MAGIC and version == VERSION else 0

    @property
    def stop_requested(self) -> bool:
        """Whether somebody asked the worker to end."""
        return bool(_WORD.unpack_from(self._map, _STOP_AT)[0])

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
        _WORD.pack_into(self._map, _RING_AT + 8 * (self._total % RING_STEPS), duration_ns)
        self._step += 1
        self._total += 1
        self._publish()

    def _publish(self) -> None:
        self._marks += 1
        self._seq += 2
        _WORD.pack_into(self._map, _PROGRESS_AT, self._seq - 1)
        _PROGRESS.pack_into(
            self._map,
            _PROGRESS_AT,
            self._seq - 1,
            self._pid,
            self._phase,
            self._rep,
            self._step,
            self._marks,
            self._total,
            time.monotonic_ns(),
            self._phase_started_ns,
            self._chunk,
            self._chunks,
            self._active,
            self._cache,
            self._peak,
        )
        _WORD.pack_into(self._map, _PROGRESS_AT, self._seq)


def create_page_fd() -> int:
    """An unnamed file of one page, in memory where the platform has such a thing; close-on-exec."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("wallfinder-telemetry", os.MFD_CLOEXEC)
    else:
        import tempfile  # late: it costs the watchdog, which never comes here, 1.2 MB of resident memory

        with tempfile.TemporaryFile(prefix="wallfinder-") as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, PAGE_BYTES)
    return fd

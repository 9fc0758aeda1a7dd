"""Owns the watchdog process: start, the loop over socket and ticks, the end.

Does not judge (policy.py), read the machine (probe.py) or signal (killer.py). A tick opens no files, forks
nothing, logs nothing. Files are opened where no tick is due: by `Watch` (the worker's readings), at the release
(its cgroup's list of processes, the watchdog's own /proc entries) and at the end. Between attempts it sleeps in
`select` without a timeout.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import time
from collections import deque
from typing import Any

from orchestrator.watchdog.outbox import Outbox
from orchestrator.watchdog.policy import State, decide
from orchestrator.watchdog.probe import Probe, select_probe
from orchestrator.watchdog.recording import encode_sample
from orchestrator.watchdog.residency import settle_memory, take_precautions
from orchestrator.watchdog.sample import Sample
from orchestrator.watchdog.watched import Watched
from orchestrator.watchdog.wire import Exited, Ready, Shutdown, StopWorker, Watch, decode, encode
from worker.telemetry import TelemetryPage

RECEIVE_BYTES = 65536
KEPT_SAMPLES = 100  # the last ones, for the recording of a sweep whose orchestrator is gone
REMOVE_CGROUP_S = 5.0
# Our life hangs on the socket alone: a terminal's Ctrl-C or hang-up must not take the guard before the
# worker.
_IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGPIPE,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


class Watchdog:
    """The loop. One watched worker at a time."""

    def __init__(self, sock: socket.socket, page: TelemetryPage, probe: Probe, wired: bool) -> None:
        self._sock, self._page, self._probe, self._wired = sock, page, probe, wired
        self._outbox = Outbox(sock)
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT_SAMPLES)
        self._received = bytearray()
        self._watched: Watched | None = None

    def run(self, ready: Ready) -> None:
        """Runs until the orchestrator says so or is gone, and leaves no worker behind."""
        self._outbox.post(ready)
        while self._take_messages():
            watched = self._watched
            due_s = None if watched is None else watched.due_s
            if watched is not None and due_s is not None and time.monotonic() >= due_s and not watched.tick():
                self._release()
        if self._watched is not None:
            if self._wired:
                self._watched.wait_for_clean_end()
            self._watched.kill()
            self._watched.settle()
            remove_cgroup(self._watched.watch.cgroup_dir)

    def _take_messages(self) -> bool:
        """Waits until the next tick or a message, and takes what came; False at the end."""
        due_s = None if self._watched is None else self._watched.due_s
        timeout = None if due_s is None else max(0.0, due_s - time.monotonic())
        writers = [self._sock] if self._outbox.is_waiting else []
        readable, writable, _ = select.select([self._sock], writers, [], timeout)
        if writable:
            self._outbox.flush()
        if not readable:
            return True
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        except ConnectionError:
            return False
        if not data:
            return False
        self._received += data
        while (end := self._received.find(b"\n")) >= 0:
            line = bytes(self._received[: end + 1])
            del self._received[: end + 1]
            if not self._obey(line):
                return False
        return True

    def _obey(self, line: bytes) -> bool:
        message = decode(line)
        watched = self._watched
        if isinstance(message, Shutdown):
            return False
        if isinstance(message, Watch):
            if watched is not None:  # a lost Exited: never leave the one before unguarded
                watched.kill()
            gc.disable()
            self._watched = Watched(message, self._page, self._probe, self._outbox, self._kept, wired=self._wired)
        elif (
            watched is not None and isinstance(message, (StopWorker, Exited)) and message.serial == watched.watch.serial
        ):
            if isinstance(message, Exited):
                self._release()
            else:
                watched.stop(message.cause, message.hurry)
        return True

    def _release(self) -> None:
        if self._watched is not None:
            self._outbox.post(self._watched.release())
            self._watched = None
            gc.collect()
            settle_memory(self._page.shared)


def remove_cgroup(cgroup_dir: str | None) -> None:
    """Removes the worker's cgroup once the killed have left it; gives up after a few seconds."""
    end_s = time.monotonic() + REMOVE_CGROUP_S
    while cgroup_dir is not None and time.monotonic() < end_s:
        try:
            os.rmdir(cgroup_dir)  # noqa: PTH106 - pathlib costs the watchdog 0.8 MB
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)


def warm_up(probe: Probe, page: TelemetryPage) -> None:
    """Runs once what the loop runs, so that its code and memory are there before they are locked."""
    from orchestrator.watchdog.limits import Limits  # late: a name only the warm-up needs

    probe.watch(os.getpid(), None)
    host, worker = probe.read()
    page.read()
    sample = Sample(time.monotonic(), time.monotonic(), 0.0, host, worker, None)
    decide(Limits(memory_bytes=1 << 30), State(), sample)
    encode(Ready(os.getpid(), "", {}))
    encode_sample(sample, 0)
    probe.forget()


def main(socket_fd: int, page_fd: int, *, wired: bool, refused: tuple[str, ...] = ()) -> None:
    """The process. Both descriptors are inherited; the socket is a stream to the orchestrator.

    `wired`: a platform on which a SIGKILL leaves GPU memory wired. `refused`: readings that cannot be believed here.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    backstops = take_precautions()
    sock = socket.socket(fileno=socket_fd)
    sock.setblocking(False)
    page = TelemetryPage(page_fd)
    name, probe = select_probe(frozenset(refused))
    warm_up(probe, page)
    backstops |= settle_memory(page.shared)
    Watchdog(sock, page, probe, wired).run(Ready(os.getpid(), name, backstops))

"""Owns what waits to be sent to the orchestrator.

Does not wait: where there is no room the oldest samples are dropped and counted, so that those around an action are
the last to go. Everything else (what was done, what was released) is kept; there are a handful of those per attempt.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from orchestrator.watchdog.wire import Samples, WireMessage, encode

if TYPE_CHECKING:
    import socket

SAMPLES_WAITING_BYTES = 65536


class Outbox:
    """The sending half of the watchdog's end of the socket, which is non-blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._head = bytearray()  # of a line that was begun: its rest has to follow
        self._waiting: deque[tuple[bytes, int]] = deque()  # a line, and how many samples it holds
        self._sample_bytes = 0
        self.dropped = 0  # samples, so far

    @property
    def is_waiting(self) -> bool:
        """Whether something could not be sent yet."""
        return bool(self._head or self._waiting)

    def post(self, message: WireMessage) -> None:
        """Sends the message, or keeps it until there is room."""
        self._waiting.append((encode(message), 0))
        self.flush()

    def post_samples(self, serial: int, samples: list[dict[str, Any]]) -> None:
        """Sends a batch, or keeps it and drops the oldest that wait where there are too many."""
        line = encode(Samples(serial, samples))
        self._waiting.append((line, len(samples)))
        self._sample_bytes += len(line)
        self.flush()
        while SAMPLES_WAITING_BYTES < self._sample_bytes > len(line):  # the newest batch stays, however large it is
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        at = next(i for i, (_, count) in enumerate(self._waiting) if count)
        line, count = self._waiting[at]
        del self._waiting[at]
        self._sample_bytes -= len(line)
        self.dropped += count

    def flush(self) -> None:
        """Sends what there is room for. A closed other end is noticed by whoever reads."""
        while self._head or self._waiting:
            if not self._head:
                line, count = self._waiting.popleft()
                self._sample_bytes -= len(line) if count else 0
                self._head += line
            try:
                sent = self._sock.send(self._head)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # the orchestrator is gone: nobody is left to tell
                self._head.clear()
                self._waiting.clear()
                self._sample_bytes = 0
                return
            del self._head[:sent]

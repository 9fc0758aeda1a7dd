"""Owns what waits to be sent to the orchestrator.

Does not wait: samples that find no room are dropped and counted.
Everything else (what was done, what was released) is kept; there are a handful of those per attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.watchdog.wire import Samples, WireMessage, encode

if TYPE_CHECKING:
    import socket

SAMPLES_WAITING_BYTES = 32768


class Outbox:
    """The sending half of the watchdog's end of the socket, which is non-blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting = bytearray()
        self._dropped = 0

    @property
    def is_waiting(self) -> bool:
        """Whether something could not be sent yet."""
        return bool(self._waiting)

    def post(self, message: WireMessage) -> None:
        """Sends the message, or keeps it until there is room."""
        self._waiting += encode(message)
        self.flush()

    def post_samples(self, serial: int, samples: list[dict[str, Any]]) -> None:
        """Sends a batch, or drops it where the orchestrator is behind; the next one tells how many."""
        self.flush()
        if len(self._waiting) > SAMPLES_WAITING_BYTES:
            self._dropped += len(samples)
            return
        dropped, self._dropped = self._dropped, 0
        self.post(Samples(serial, samples, dropped))

    def flush(self) -> None:
        """Sends what there is room for. A closed other end is noticed by whoever reads."""
        while self._waiting:
            try:
                sent = self._sock.send(self._waiting)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # the orchestrator is gone: nobody is left to tell
                self._waiting.clear()
                return
            del self._waiting[:sent]

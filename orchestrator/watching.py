"""Owns the orchestrator's end of the watchdog: its process, its socket, its messages.

Does not judge what the watchdog says. A watchdog that died or fell silent is replaced by a new one.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from typing import TYPE_CHECKING

from orchestrator.errors import HostUnfit
from orchestrator.watchdog import wire
from orchestrator.watchdog.launch import spawn_watchdog

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_START_LIMIT_S = 60.0
_KILL_LIMIT_S = 5.0


class WatchdogGone(Exception):
    """The watchdog's end of the socket is closed, or it no longer answers."""


class WatchdogLink:
    """A running watchdog. `fd` is readable when it has said something."""

    def __init__(self, page_fd: int, refused: Collection[str] = ()) -> None:
        """Starts one and waits until it is ready. `refused`: readings that it is not to believe.

        Raises:
            HostUnfit: it did not come up.
        """
        try:
            self._process, self._socket = spawn_watchdog(page_fd, refused=refused)
        except OSError as error:
            raise HostUnfit(f"the watchdog process could not be started: {error}; nothing is run without it") from error
        self._buffer = bytearray()
        self._closed = False
        self.heard_at_s = time.monotonic()
        try:
            self.ready = self._await_ready()
        except WatchdogGone as error:
            self.kill()
            raise HostUnfit("the watchdog process did not start; nothing is run without it") from error

    @property
    def fd(self) -> int:
        """The socket's descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, message: wire.WireMessage) -> None:
        """Says something to the watchdog.

        Raises:
            WatchdogGone: there is nobody to hear it.
        """
        try:
            self._socket.settimeout(10.0)
            self._socket.sendall(wire.encode(message))
        except OSError as error:
            raise WatchdogGone from error

    def receive(self) -> Iterator[wire.WireMessage]:
        """What the watchdog has said since the last call; does not wait.

        Raises:
            WatchdogGone: it has closed its end.
        """
        self._take_in()
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        if lines:
            self.heard_at_s = time.monotonic()
        for line in lines:
            yield wire.decode(line)
        if self._closed:
            raise WatchdogGone

    def close(self) -> None:
        """Lets the watchdog end by itself; kills it if it does not."""
        with contextlib.suppress(WatchdogGone):
            self.send(wire.Shutdown())
        self._socket.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends a watchdog that cannot be trusted any more, stopped ones included. May be called twice.

        One that even SIGKILL does not end at once is left to the kernel: it signals nobody any more.
        """
        self._socket.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_KILL_LIMIT_S)

    def _take_in(self) -> None:
        self._socket.setblocking(False)
        try:
            while data := self._socket.recv(1 << 16):
                self._buffer += data
        except BlockingIOError:
            return
        except OSError:
            pass
        self._closed = True

    def _await_ready(self) -> wire.Ready:
        deadline = time.monotonic() + _START_LIMIT_S
        while (left := deadline - time.monotonic()) > 0:
            select.select([self.fd], [], [], left)
            for message in self.receive():
                if isinstance(message, wire.Ready):
                    return message
        raise WatchdogGone

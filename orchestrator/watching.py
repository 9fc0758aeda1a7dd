"""Owns the orchestrator's end of the watchdog: its process, its socket, its messages.

Does not judge what the watchdog says. A watchdog that died or fell silent is replaced by a new one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from orchestrator.errors import HostUnfit
from orchestrator.watchdog import wire
from orchestrator.watchdog.launch import spawn_watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_LIMIT_S = 60.0


class WatchdogGone(Exception):
    """The watchdog's end of the socket is closed, or it no longer answers."""


class WatchdogLink:
    """A running watchdog. `fd` is readable when it has said something."""

    def __init__(self, page_fd: int) -> None:
        """Starts one and waits until it is ready.

        Raises:
            HostUnfit: it did not come up.
        """
        self._process, self._socket = spawn_watchdog(page_fd)
        self._buffer = bytearray()
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

    @property
    def pid(self) -> int:
        """The watchdog's process id."""
        return self._process.pid

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
        self._socket.setblocking(False)
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError as error:
                raise WatchdogGone from error
            if not data:
                raise WatchdogGone
            self._buffer += data
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        if lines:
            self.heard_at_s = time.monotonic()
        for line in lines:
            yield wire.decode(line)

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
        """Ends a watchdog that cannot be trusted any more, stopped ones included."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _await_ready(self) -> wire.Ready:
        deadline = time.monotonic() + _START_LIMIT_S
        while (left := deadline - time.monotonic()) > 0:
            select.select([self.fd], [], [], left)
            for message in self.receive():
                if isinstance(message, wire.Ready):
                    return message
        raise WatchdogGone

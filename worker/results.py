"""Owns the worker's end of the result pipe. Does not own the messages (protocol.py)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from worker import protocol

if TYPE_CHECKING:
    from worker.protocol import Message


class ResultPipe:
    """Writes messages, each whole and at once; nothing is kept in a buffer that a crash could lose."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def send(self, message: Message) -> None:
        """Writes one message.

        Raises:
            BrokenPipeError: nobody reads any more.
        """
        self.write(protocol.encode(message))

    def write(self, data: bytes) -> None:
        """Writes bytes as they are."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]

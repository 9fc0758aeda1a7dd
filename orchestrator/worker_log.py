"""Owns the file that takes a worker's stdout and stderr, and its cap. Does not interpret what is in it.

The worker writes to the file directly (append mode), so a flood blocks nobody. `trim` is called now and then: it
keeps the head and the latest tail and gives the rest back.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEAD_BYTES = 256 * 1024
TAIL_BYTES = 64 * 1024
CAP_BYTES = 2 * 1024 * 1024


class WorkerLog:
    """One attempt's log. `fd` is what the worker gets as stdout and stderr."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._tail = b""
        self._cut = 0

    def trim(self) -> None:
        """Cuts the file back to its head once it is over the cap; what was last stays in memory. Raises OSError."""
        size = os.fstat(self.fd).st_size
        if size <= CAP_BYTES:
            return
        self._tail = os.pread(self.fd, TAIL_BYTES, size - TAIL_BYTES)
        os.ftruncate(self.fd, HEAD_BYTES)
        self._cut += size - HEAD_BYTES

    def tail(self) -> str:
        """The last 64 KiB as text; bytes that are not UTF-8 are shown as replacement characters."""
        return self._tail_bytes().decode("utf-8", errors="replace")

    def _tail_bytes(self) -> bytes:
        size = os.fstat(self.fd).st_size
        if not self._cut:
            return os.pread(self.fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
        since_cut = os.pread(self.fd, TAIL_BYTES, max(HEAD_BYTES, size - TAIL_BYTES))
        return (self._tail + since_cut)[-TAIL_BYTES:]

    def close(self) -> None:
        """Ends the file: head, a line that says how much was cut, tail. Raises OSError (a full disk)."""
        try:
            self.trim()
            if self._cut:
                tail = self._tail_bytes()
                os.ftruncate(self.fd, HEAD_BYTES)
                note = f"\n[... {self._cut - len(tail)} bytes of output cut here ...]\n".encode()
                os.write(self.fd, note + tail)
        finally:
            os.close(self.fd)

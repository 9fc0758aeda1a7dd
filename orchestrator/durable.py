"""Owns how a file reaches the disk for good: fsync of file and folder, atomic replacement, appended lines.

Does not know what is written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# macOS: fsync hands the data to the drive, F_FULLFSYNC makes the drive keep it.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def sync_fd(fd: int) -> None:
    """Returns when the file's data would survive a power cut. Raises OSError (EIO, ENOSPC)."""
    if _FULL_SYNC is not None:
        with contextlib.suppress(OSError):  # some file systems (network shares) do not know it
            fcntl.fcntl(fd, _FULL_SYNC)
            return
    os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Makes names that were created in or moved into `folder` survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Writes every byte; a short write is followed by another. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace_file(path: Path, data: bytes) -> None:
    """Puts `data` at `path` in one step: after a crash there is the old file or the new one. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        try:
            write_all(fd, data)
            sync_fd(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


class AppendedLines:
    """A file that only grows, by whole lines, each on the disk when `append` returns, unless it is told not to wait."""

    def __init__(self, path: Path) -> None:
        created = not path.exists()
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if created:
            sync_folder(path.parent)

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return os.fstat(self._fd).st_size

    def append(self, line: bytes, *, sync: bool = True) -> None:
        """Adds one line. A write that fails half-way is taken back, so the next line starts clean.

        Raises:
            OSError: the line is not on the disk (ENOSPC, EIO, EDQUOT), or the file is no longer where it was (ENOENT).
        """
        held, there = os.fstat(self._fd), self._path.stat()
        if (held.st_dev, held.st_ino) != (there.st_dev, there.st_ino):
            raise FileNotFoundError(errno.ENOENT, "another file is in its place", str(self._path))
        before = held.st_size
        try:
            write_all(self._fd, line + b"\n")
            if sync:
                sync_fd(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, before)
            raise

    def flush(self) -> None:
        """Makes what was appended survive a crash of the system; not a power cut on macOS. Raises OSError."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Releases the descriptor."""
        os.close(self._fd)

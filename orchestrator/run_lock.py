"""Owns the lock by which one sweep at a time holds a run directory. The kernel drops it with its holder.

The journal itself is what is locked, so that no file that is removed by hand lets a second sweep in.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING, Self

from orchestrator.errors import LedgerError, RunLocked
from orchestrator.run_directory import JOURNAL

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


_PATIENCE_S = 0.5


class RunLock:
    """Holds the run's journal from entering to leaving; `RUN/lock` only tells who holds it, and since when."""

    def __init__(self, run: Path, now: str) -> None:
        self._journal = run / JOURNAL
        self._note = run / "lock"
        self._now = now
        self._fd = -1

    def __enter__(self) -> Self:
        """Takes the lock.

        Raises:
            RunLocked: another live sweep holds it; the message has its pid and since when.
            LedgerError: the directory cannot be locked at all.
        """
        try:
            self._fd = os.open(self._journal, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise LedgerError(f"{self._journal}: cannot be opened for writing: {error.strerror}") from error
        try:
            self._take()
        except OSError as error:
            os.close(self._fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise RunLocked(self._refusal()) from None
            raise LedgerError(
                f"{self._journal}: this file system cannot lock files ({error.strerror}); use another --output-dir"
            ) from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the note
            self._note.write_text(json.dumps({"pid": os.getpid(), "since": self._now}), encoding="ascii")
        return self

    def _take(self) -> None:
        """Takes it, with a little patience: `status` looks whether it is held by sharing it for a moment."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def _refusal(self) -> str:
        try:
            holder = json.loads(self._note.read_bytes())
            who = f"pid {holder['pid']} since {holder['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            who = "another process"
        return (
            f"{self._note.parent}: a sweep already runs here ({who}); "
            "wait for it, stop it, or start another run with --name"
        )


def is_held(run: Path) -> bool:
    """Whether a live sweep holds the run directory. Shares the lock for a moment, and changes nothing."""
    try:
        fd = os.open(run / JOURNAL, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False

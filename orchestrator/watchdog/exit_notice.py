"""Owns the notice of one process's death, by pidfd or kqueue. Does not reap and does not signal.

A zombie looks alive to most readings, so its death has to be told. Whoever watches need not be the parent.
"""

from __future__ import annotations

import os
import select
import sys


class ExitNotice:
    """Tells that a process died. `fd` turns readable then; None on a Linux that has no pidfd."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.fd = _death_fd(pid)

    def died(self) -> bool:
        """Whether the process is dead. Does not wait.

        Raises:
            ChildProcessError: there is no `fd`, and the process is not a child of the caller.
        """
        if self.fd is not None:
            return bool(select.select([self.fd], [], [], 0)[0])
        if sys.platform == "darwin":
            raise AssertionError("kqueue is always there")
        else:  # noqa: RET506 - mypy takes what follows a platform's raise for unreachable on that platform
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def close(self) -> None:
        """Releases the descriptor."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def _death_fd(pid: int) -> int | None:
    """A descriptor that is readable once `pid` is dead; None before Linux 5.3 or behind a system call filter."""
    if sys.platform == "darwin":
        queue = select.kqueue()
        event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        try:
            queue.control([event], 0, 0)
            return os.dup(queue.fileno())
        except ProcessLookupError:  # only this error means that it is dead already
            return _ended_fd()
        finally:
            queue.close()
    else:
        try:
            return os.pidfd_open(pid)
        except ProcessLookupError:
            return _ended_fd()
        except (AttributeError, OSError):
            return None


def _ended_fd() -> int:
    """A pipe at its end: always readable."""
    fd, write_fd = os.pipe()
    os.close(write_fd)
    return fd

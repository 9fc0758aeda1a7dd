"""Owns what ends or bounds a worker when everybody else is gone: parent death, timer, lifeline, limits.

Does not own the stop flag or the stop ladder; those belong to whoever watches. No MLX here: all of this is in
place before MLX is imported.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_REARM_NS = 1_000_000_000


def die_with_parent() -> str:
    """Asks the kernel to end this process with its parent's spawning thread (Linux); says what is in place.

    A parent that died before the request is noticed by the changed parent pid, or by the end of the lifeline.
    """
    if sys.platform != "linux":
        return "unavailable on this platform; lifeline and timer stand in"
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return f"refused: {os.strerror(ctypes.get_errno())}"
    if os.getppid() != parent:
        os._exit(1)
    return "PR_SET_PDEATHSIG"


def set_signals() -> None:
    """Leaves SIGINT to the orchestrator; SIGTERM and SIGALRM end the process, even if they came blocked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGALRM})


def forbid_core_dumps() -> str:
    """A core of a process full of weights would fill the disk that swap grows on."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (OSError, ValueError) as error:
        return f"refused: {error}"
    return "off"


def volunteer_for_oom() -> str:
    """Makes this process the kernel's first choice when memory runs out (Linux), not somebody's desktop."""
    path = Path("/proc/self/oom_score_adj")
    if not path.exists():
        return "unavailable on this platform"
    try:
        path.write_text("1000\n", encoding="ascii")
    except OSError as error:
        return f"refused: {error.strerror}"
    return "oom_score_adj 1000"


def kill_own_group() -> None:
    """Ends this process, and its group where it leads one. Does not return."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def hold_lifeline(fd: int) -> None:
    """Starts a thread that waits for the orchestrator's end of `fd` to close and then ends this group."""

    def wait_for_end() -> None:
        while os.read(fd, 4096):
            pass
        kill_own_group()

    threading.Thread(target=wait_for_end, name="lifeline", daemon=True).start()


class KernelTimer:
    """SIGALRM with its default action, pushed back by progress: it also ends a process stuck in C."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed_ns = 0

    def arm(self) -> None:
        """Starts the timer anew."""
        self._armed_ns = time.monotonic_ns()
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def push_back(self) -> None:
        """Starts the timer anew, at most once a second, so that a step costs no system call."""
        if time.monotonic_ns() - self._armed_ns >= _REARM_NS:
            self.arm()

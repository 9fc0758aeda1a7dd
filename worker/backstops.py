"""Owns what ends or bounds a worker when everybody else is gone: parent death, timer, lifeline, limits.

Does not own the stop flag or the stop ladder; those belong to whoever watches. No MLX here: all of this is in
place before MLX is imported.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_REARM_NS = 1_000_000_000
PATIENCE_MARKS = 12  # of the slowest progress so far; the watchdog allows 8, and has to come first
WIRED_GRACE_S = 10.0  # the longest that the watchdog gives a worker to see the stop flag


def die_with_parent() -> str:
    """Asks the kernel to end this process with its parent's spawning thread (Linux); says what is in place.

    A parent that died before the request is noticed by the changed parent pid, or by the end of the lifeline.
    """
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "prctl"):
        return "unavailable on this platform; lifeline and timer stand in"
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return f"refused: {os.strerror(ctypes.get_errno())}"
    if os.getppid() != parent:
        os._exit(1)
    return "PR_SET_PDEATHSIG"


def set_signals() -> None:
    """Leaves SIGINT to the orchestrator; SIGTERM and SIGALRM end the process, even if they came blocked.

    SIGTERM does not raise the stop flag: a Python handler runs between two bytecodes of the main thread, which
    is where the flag is looked at anyway. What is stuck in C would see neither.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGALRM})


def show_native_crashes() -> None:
    """Has SIGSEGV and its like leave the Python stack on stderr before they end the process as ever.

    Not SIGABRT: whoever aborts says why, and those have to stay the last words.
    """
    faulthandler.enable()
    signal.signal(signal.SIGABRT, signal.SIG_DFL)


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


def lifeline_grace_s(platform: str = sys.platform) -> float:
    """How long this process may take to end by itself once the orchestrator is gone, in seconds.

    On macOS a SIGKILL has left a GPU's wired memory wired until reboot, a clean exit gives it back; elsewhere
    nothing is gained by waiting.
    """
    return WIRED_GRACE_S if platform == "darwin" else 0.0


def hold_lifeline(fd: int, request_stop: Callable[[], None], grace_s: float) -> None:
    """Starts a thread that waits for the orchestrator's end of `fd` to close and then ends this group.

    With a grace it raises the stop flag first (`request_stop`) and kills what is left after that many seconds.
    """

    def wait_for_end() -> None:
        while os.read(fd, 4096):
            pass
        if grace_s > 0:
            request_stop()
            time.sleep(grace_s)  # a process that ends meanwhile takes this thread with it
        kill_own_group()

    threading.Thread(target=wait_for_end, name="lifeline", daemon=True).start()


class KernelTimer:
    """SIGALRM with its default action, pushed back by progress: it also ends a process stuck in C.

    It goes off `seconds` after the last progress, or after twelve times the slowest progress so far where that
    is longer: it stands in for a watchdog and must not act before one would.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed_ns = self._progress_ns = 0
        self._slowest_ns = 0

    def arm(self) -> None:
        """Starts the timer for the first time."""
        self._progress_ns = time.monotonic_ns()
        self._start(self._progress_ns)

    def push_back(self) -> None:
        """Starts the timer anew, at most once a second, so that a step costs no system call."""
        now = time.monotonic_ns()
        slowest = max(self._slowest_ns, now - self._progress_ns)
        # A new slowest one changes how long the timer has to run, so it is started at once.
        longer = PATIENCE_MARKS * slowest > max(self._seconds * 1e9, PATIENCE_MARKS * self._slowest_ns)
        self._progress_ns, self._slowest_ns = now, slowest
        if longer or now - self._armed_ns >= _REARM_NS:
            self._start(now)

    def _start(self, now_ns: int) -> None:
        self._armed_ns = now_ns
        seconds = max(self._seconds, PATIENCE_MARKS * self._slowest_ns / 1e9)
        signal.setitimer(signal.ITIMER_REAL, seconds)

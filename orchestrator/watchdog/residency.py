"""Owns what keeps the watchdog alive and awake: locked memory, oom score, priority, the parent's death.

Does not keep the worker alive, on the contrary. Each protection is verified where the platform lets it be and
reported as `verified` or `absent`; none of them is needed for the watchdog to work.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap

VERIFIED, ABSENT = "verified", "absent"
OOM_SCORES = (-1000, -900, -500)
_MCL_CURRENT, _MCL_ONFAULT = 1, 4  # never MCL_FUTURE: a later allocation over RLIMIT_MEMLOCK would fail
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def settle_memory(page: mmap.mmap) -> str:
    """Gives back what start-up left, then locks what stays. Call it after warm-up, and again when idle."""
    gc.collect()
    gc.freeze()
    libc = _libc()
    if sys.platform == "darwin":  # there is no mlockall; the page is what the loop cannot do without
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        locked = libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(len(page)))
        return VERIFIED if locked == 0 else ABSENT
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    _raise_memlock()
    if not hasattr(libc, "mlockall") or libc.mlockall(_MCL_CURRENT | _MCL_ONFAULT) != 0:
        return ABSENT
    return VERIFIED if locked_bytes() > 0 else ABSENT


def _raise_memlock() -> None:
    import resource  # late: used once

    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


def locked_bytes() -> int:
    """Memory of this process that the kernel says is locked; 0 where it does not say."""
    try:
        with open("/proc/self/status", "rb") as file:  # noqa: PTH123 - pathlib costs the watchdog 0.8 MB
            for line in file:
                if line.startswith(b"VmLck:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def _shield_from_oom() -> str:
    for score in OOM_SCORES:
        try:
            with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:  # noqa: PTH123 - see above
                file.write(str(score))
                file.flush()
                file.seek(0)
                if int(file.read()) == score:
                    return VERIFIED
        except (OSError, ValueError):
            continue
    return ABSENT


def _raise_priority() -> str:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
        return VERIFIED if os.getpriority(os.PRIO_PROCESS, 0) == -10 else ABSENT
    except OSError:
        return ABSENT


def _wake_on_parent_death() -> str:
    """Has the kernel send SIGCONT when the orchestrator dies: a stopped watchdog then sees the socket's end.

    A deadly signal here would end the watchdog before it has cleaned up.
    """
    libc = _libc()
    if not hasattr(libc, "prctl") or libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0) != 0:
        return ABSENT
    number = ctypes.c_int(0)
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    return VERIFIED if number.value == signal.SIGCONT else ABSENT


def take_precautions() -> dict[str, str]:
    """Sets up everything but the memory lock; what became of each."""
    return {
        "oom_score": _shield_from_oom(),
        "priority": _raise_priority(),
        "parent_death": _wake_on_parent_death(),
    }

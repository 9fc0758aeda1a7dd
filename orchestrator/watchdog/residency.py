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
_MLOCK_ONFAULT = 1
_MCL_CURRENT, _MCL_ONFAULT = 1, 4  # never MCL_FUTURE: a later allocation over RLIMIT_MEMLOCK would fail
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def settle_memory(page: mmap.mmap) -> dict[str, str]:
    """Gives back what start-up left, then locks what stays. Call it after warm-up, and again when idle.

    Returns:
        what became of the lock: `memory_lock` of everything, `memory_lock_partial` of what the limit lets.
    """
    gc.collect()
    gc.freeze()
    libc = _libc()
    if sys.platform == "darwin":
        return _lock_page(libc, page)
    else:
        return _lock_memory(libc)


def _lock_page(libc: ctypes.CDLL, page: mmap.mmap) -> dict[str, str]:
    """Where there is no mlockall (macOS): the page is what the loop cannot do without."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    locked = libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(len(page)))
    return {"memory_lock": ABSENT, "memory_lock_partial": VERIFIED if locked == 0 else ABSENT}


def _lock_memory(libc: ctypes.CDLL) -> dict[str, str]:
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    limit_bytes = _raise_memlock()
    if hasattr(libc, "mlockall") and libc.mlockall(_MCL_CURRENT | _MCL_ONFAULT) == 0 and locked_bytes():
        return {"memory_lock": VERIFIED, "memory_lock_partial": VERIFIED}
    _lock_what_fits(libc, limit_bytes)
    return {"memory_lock": ABSENT, "memory_lock_partial": VERIFIED if locked_bytes() else ABSENT}


def _raise_memlock() -> int:
    """Raises the soft limit of locked memory to the hard one; the limit in bytes."""
    import resource  # late: used once

    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _lock_what_fits(libc: ctypes.CDLL, limit_bytes: int) -> None:
    """Locks mappings within the limit, first those that no file holds as well: the heap and the stack.

    Without privilege the limit is usually 8 MB, which holds those and not the program's own text.
    """
    if not hasattr(libc, "mlock2"):
        return
    libc.munlockall()
    left = limit_bytes
    with open("/proc/self/maps", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs the watchdog 0.8 MB
        lines = [line.split(None, 5) for line in file]
    lines.sort(key=lambda fields: (fields[1][1] != "w", fields[1][2] != "x"))
    for span, mode, *_ in lines:
        begin, end = (int(number, 16) for number in span.split("-"))
        if mode[0] != "r" or end - begin > left:
            continue
        if libc.mlock2(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MLOCK_ONFAULT) == 0:
            left -= end - begin


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

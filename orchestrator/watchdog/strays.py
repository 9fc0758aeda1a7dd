"""Owns the end of what a worker started and what then left the worker's group: found by a tag in its environment.

Linux only (another process's environment is in /proc there); does not know who is tagged how. Standard library only,
since the watchdog does this too, when the orchestrator is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TAG = "WALLFINDER_ATTEMPT"
_ROUNDS = 20  # what is killed may have started another meanwhile
_PAUSE_S = 0.05


def end_strays(tag: str, proc: str = "/proc") -> int:
    """Kills every process whose environment holds the tag; how many there were.

    Call it when the tagged worker itself is dead. Processes of other users cannot be read and are left alone.
    """
    wanted = f"{TAG}={tag}".encode()
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        found = [pid for pid in processes(proc) if pid != os.getpid() and _kill_tagged(pid, wanted, proc)]
        if not found:
            break
        ended.update(found)
        time.sleep(_PAUSE_S)
    return len(ended)


def processes(proc: str = "/proc") -> list[int]:
    """The numbers of all processes; empty where there is no /proc."""
    try:
        return [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208 - pathlib costs the watchdog 0.8 MB
    except OSError:
        return []


def tag_of(pid: int, proc: str = "/proc") -> str | None:
    """The tag of a process; None where it has none, is a zombie, is gone or is another user's."""
    for entry in _environment(pid, proc):
        if entry.startswith(f"{TAG}=".encode()):
            return entry.partition(b"=")[2].decode(errors="replace")
    return None


def _environment(pid: int, proc: str) -> list[bytes]:
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:  # noqa: PTH123 - pathlib costs the watchdog 0.8 MB
            return file.read().split(b"\0")
    except OSError:
        return []


def _kill_tagged(pid: int, wanted: bytes, proc: str) -> bool:
    """Kills the process if it is tagged. The descriptor is taken first, so that its number cannot change hands."""
    if sys.platform == "darwin":
        return False  # has no /proc; see orchestrator/strays.py
    else:
        try:
            fd = os.pidfd_open(pid)
        except (AttributeError, OSError):  # before Linux 5.3, or gone
            return False
        try:
            if wanted not in _environment(pid, proc):
                return False
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

"""Owns the end of processes that outlived the worker that started them, because they left its group.

Each worker, and so everything it starts, carries a tag in its environment: who the orchestrator is, and which attempt.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from orchestrator.watchdog.strays import TAG, end_strays, processes, tag_of

if TYPE_CHECKING:
    from collections.abc import Callable

_MAC_LIMIT_S = 10.0  # macOS may never return from reading a wedged process's environment


def attempt_tag(serial: int) -> str:
    """The tag of this process's attempt number `serial`: `PID-START-SERIAL`."""
    return f"{os.getpid()}-{_started(os.getpid())}-{serial}"


def end_attempt(tag: str) -> int:
    """Kills what is left of an attempt whose worker is dead; how many processes that were."""
    if sys.platform == "darwin":
        return _within(_MAC_LIMIT_S, lambda: _end_by_psutil(lambda found: found == tag))
    else:
        return end_strays(tag)


def end_abandoned() -> int:
    """Kills what sweeps left behind whose orchestrator and watchdog were killed together; how many processes."""
    if sys.platform == "darwin":
        return _within(_MAC_LIMIT_S, lambda: _end_by_psutil(is_abandoned))
    else:
        tags = {tag for pid in processes() if (tag := tag_of(pid)) is not None and is_abandoned(tag)}
        return sum(end_strays(tag) for tag in tags)


def is_abandoned(tag: str) -> bool:
    """Whether the orchestrator that gave this tag is gone. A tag that nobody of ours wrote is nobody's."""
    owner, _, rest = tag.partition("-")
    started = rest.partition("-")[0]
    if not (owner.isdigit() and started.isdigit()):
        return False
    return _started(int(owner)) != int(started)


def _started(pid: int) -> int | None:
    """When a process began, in a unit of the platform's own that never changes for it; None where there is none."""
    if sys.platform == "darwin":
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).create_time())
        return None
    else:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        return int(stat.rpartition(")")[2].split()[19])


def _end_by_psutil(wanted: Callable[[str], bool]) -> int:
    ended = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            tag = process.environ().get(TAG)
            if tag is not None and wanted(tag) and process.pid != os.getpid():
                process.kill()
                ended += 1
    return ended


def _within(limit_s: float, count: Callable[[], int]) -> int:
    """What `count` gives, or 0 where it does not return in time."""
    counted: list[int] = []
    thread = threading.Thread(target=lambda: counted.append(count()), name="strays", daemon=True)
    thread.start()
    thread.join(limit_s)
    return sum(counted)

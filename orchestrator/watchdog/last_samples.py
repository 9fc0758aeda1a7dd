"""Owns how the last samples reach the recording when the orchestrator, whose file it is, is gone.

Does not run while anybody else writes the file, nor within the watch loop.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_TAIL_BYTES = 65536


def append_last_samples(path: str, samples: Iterable[dict[str, Any]], now_s: float) -> bool:
    """Adds the samples that are newer than the file's last one, and the word that the orchestrator is gone.

    A line that the orchestrator left torn is cut off. Whether it worked: a file that is not there is not made anew.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        newest_s = _newest(fd)
        lines = [body for body in samples if body["monotonic_s"] > newest_s]
        lines.append({"event": "orchestrator_gone", "at_s": round(now_s, 3)})
        data = "".join(f"{json.dumps(body, separators=(',', ':'))}\n" for body in lines).encode()
        while data:  # and no fsync: a disk that swap keeps busy would hold this process up, which has to be gone soon
            data = data[os.write(fd, data) :]
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def _newest(fd: int) -> float:
    """The time of the last sample in the file, 0 where there is none. Cuts a torn last line off."""
    size = os.fstat(fd).st_size
    at = max(0, size - _TAIL_BYTES)
    *lines, torn = os.pread(fd, _TAIL_BYTES, at).split(b"\n")
    if torn:
        os.ftruncate(fd, size - len(torn))
    for line in reversed(lines):
        try:
            return float(json.loads(line)["monotonic_s"])
        except (ValueError, KeyError, TypeError):  # an event, or the rest of a line that began before the tail
            continue
    return 0.0

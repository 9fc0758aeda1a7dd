"""Owns the three standard streams: that they are there, and what happens where nobody takes what is written.

Does not write anything of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def provide_streams() -> None:
    """Opens to nowhere what the caller closed, before anything else could get the numbers 0, 1 and 2."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def give_out(write: Callable[[], None]) -> bool:
    """Runs `write`, which writes to stdout, and flushes it. False where the output is lost (a full disk).

    A reader that left early (`| head`) has what it wanted.
    """
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        fall_silent(sys.stdout)
    except OSError:
        fall_silent(sys.stdout)
        return False
    return True


def fall_silent(file: IO[str]) -> None:
    """Sends what is still to come to nowhere, so that Python's last flush does not fail."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor has nothing to flush into
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, file.fileno())
        os.close(devnull)

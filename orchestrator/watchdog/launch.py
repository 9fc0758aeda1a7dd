"""Owns the start of the watchdog process, from the orchestrator's side. Does not talk to it (wire.py)."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_ROOT = Path(__file__).resolve().parents[2]


def spawn_watchdog(
    page_fd: int, *, wired: bool = sys.platform == "darwin", refused: Collection[str] = ()
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts the watchdog of a sweep; the process, and our end of the socket to it.

    Closing that end (or dying) makes the watchdog kill what it watches and exit. The first message is
    `Ready`. `wired`: a SIGKILL leaves GPU memory wired here, so a worker gets time for a clean exit. `refused`:
    readings of the probe that cannot be believed here (crosscheck.py).

    Raises:
        OSError: the process could not be started.
    """
    ours, theirs = socket.socketpair()
    # ROOT goes last: in an installed wheel it is site-packages, whose modules must not shadow the standard
    # library's.
    code = (
        f"import sys; sys.path.append({str(_ROOT)!r}); "
        f"from orchestrator.watchdog.main import main; "
        f"main({theirs.fileno()}, {page_fd}, wired={wired}, refused={tuple(sorted(refused))!r})"
    )
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-E", "-c", code, "wallfinder-watchdog"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), page_fd),
                start_new_session=True,
                cwd="/",
            )
        except OSError:
            ours.close()
            raise
    return process, ours

"""Makes what a real memory wall needs, a swap file of its own, and takes it away again, also after a failure.

Every test and benchmark that makes a wall takes its swap from here. Names carry the owner's pid, so runs side by
side do not collide, and what a killed run left behind is found and removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cgroup import WorkerCgroup
from orchestrator.errors import HostUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"wallfinder-swap-(\d+)-")
_PATH = os.pathsep.join(["/usr/sbin", "/sbin", os.environ.get("PATH", "")])
_SPARE_BYTES = 1 << 30
_CHUNK = bytes(1 << 20)


class NoWallError(Exception):
    """A wall cannot be made here; the message says why."""


def demand_wall(swap_bytes: int, folder: Path | None = None) -> None:
    """Checks everything but the kernel's consent to the swap file.

    Raises:
        NoWallError: with the reason.
    """
    if sys.platform != "linux":
        raise NoWallError("a wall takes Linux's control groups and swap files")
    if os.geteuid() != 0:
        raise NoWallError("a wall takes root, for a swap file and a control group")
    for tool in ("mkswap", "swapon", "swapoff"):
        if shutil.which(tool, path=_PATH) is None:
            raise NoWallError(f"{tool} is not installed")
    free = shutil.disk_usage(folder or _folder()).free
    if free < swap_bytes + _SPARE_BYTES:
        raise NoWallError(f"{folder or _folder()} has {free} bytes free, the swap file takes {swap_bytes}")
    try:
        group = WorkerCgroup.create(1 << 26, f"{os.getpid()}-trial")
    except HostUnfit as error:
        raise NoWallError(str(error)) from error
    group.remove()


@contextlib.contextmanager
def swap_file(swap_bytes: int, folder: Path | None = None) -> Iterator[Path]:
    """Swap of the given size for the length of the block.

    Args:
        swap_bytes: its size.
        folder: where the file goes; a folder on a disk, not in memory. /var/tmp where none is named.

    Raises:
        NoWallError: it cannot be made here.
    """
    remove_stale_swap_files()
    demand_wall(swap_bytes, folder)
    place = Path(tempfile.mkdtemp(prefix=f"wallfinder-swap-{os.getpid()}-", dir=folder or _folder()))
    file = place / "swap"
    try:
        _switch_on(file, swap_bytes)
        yield file
    finally:
        _remove(file)


def remove_stale_swap_files() -> None:
    """Removes the swap files of runs whose process is gone."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/swaps").read_text(encoding="utf-8").splitlines()[1:]:
            file = Path(line.split()[0])
            owner = _NAME.match(file.parent.name)
            if owner is not None and not Path(f"/proc/{owner[1]}").exists():
                _remove(file)


def _folder() -> Path:
    return Path("/var/tmp")  # a disk, where /tmp is often memory


def _switch_on(file: Path, swap_bytes: int) -> None:
    with file.open("wb") as out:
        os.fchmod(out.fileno(), 0o600)
        os.posix_fallocate(out.fileno(), 0, swap_bytes)
    _run("mkswap", file)
    if _run("swapon", file, may_fail=True):
        return
    # Some file systems refuse extents that were never written.
    with file.open("r+b") as out:
        for _ in range(swap_bytes // len(_CHUNK)):
            out.write(_CHUNK)
    _run("mkswap", file)
    _run("swapon", file)


def _run(tool: str, file: Path, *, may_fail: bool = False) -> bool:
    done = subprocess.run(
        [tool, str(file)], capture_output=True, text=True, check=False, env={**os.environ, "PATH": _PATH}
    )
    if done.returncode != 0 and not may_fail:
        raise NoWallError(f"{tool} {file}: {done.stderr.strip()}")
    return done.returncode == 0


def _remove(file: Path) -> None:
    if str(file) in Path("/proc/swaps").read_text(encoding="utf-8"):
        _run("swapoff", file, may_fail=True)
    shutil.rmtree(file.parent, ignore_errors=True)

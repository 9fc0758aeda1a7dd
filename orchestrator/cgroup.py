"""Owns the memory bound of a worker: a control group of its own, version 1 or 2, swap still allowed.

Does not kill what is inside (the watchdog does), and reads no measurements (watchdog/probe_linux.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import HostUnfit

_PREFIX = "wallfinder-"
_NAME = re.compile(re.escape(_PREFIX) + r"(\d+)-")
_REMOVE_S = 5.0
_REMEDY = (
    "run as root, or inside a delegated group (`systemd-run --user --scope wallfinder run ...`), "
    "or leave `worker_memory` out"
)


@dataclass(frozen=True, slots=True)
class Membership:
    """Where a process stands in the hierarchy that has the memory controller.

    `directory` is its own group; `root` the top of what is mounted, which is as far up as groups can be made.
    """

    version: int
    directory: Path
    root: Path


def find_membership(mountinfo: str, cgroup: str) -> Membership | None:
    """Finds the hierarchy of the memory controller.

    Args:
        mountinfo: the text of /proc/self/mountinfo.
        cgroup: the text of /proc/self/cgroup.

    Returns:
        version 1 where the controller is mounted as such, else version 2 where that is mounted, else None.
    """
    paths = {}
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    second = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        _, _, _, mounted, point, *_ = before.split(" ")
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in paths:
            return _place(1, _unescape(point), _unescape(mounted), paths["memory"])
        if kind == "cgroup2" and "" in paths:
            second = second or _place(2, _unescape(point), _unescape(mounted), paths[""])
    return second


def _place(version: int, point: str, mounted: str, path: str) -> Membership:
    """The group's folder below the mount point, which may show only a part (`mounted`) of the hierarchy."""
    inside = path == mounted or path.startswith(mounted.rstrip("/") + "/")
    below = path[len(mounted.rstrip("/")) :].strip("/") if inside else ""
    return Membership(version, Path(point) / below, Path(point))


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _own_membership() -> Membership:
    """Raises HostUnfit where this process has no memory controller to use."""
    found = None
    with contextlib.suppress(OSError):
        found = find_membership(
            Path("/proc/self/mountinfo").read_text(encoding="utf-8"),
            Path("/proc/self/cgroup").read_text(encoding="utf-8"),
        )
    if found is None:
        raise HostUnfit(
            "worker_memory: there is no cgroup memory controller here (it takes Linux with cgroup v1 or v2); "
            "leave `worker_memory` out"
        )
    return found


def controller_version() -> int | None:
    """The version of this process's memory controller, 1 or 2; None where there is none."""
    try:
        return _own_membership().version
    except HostUnfit:
        return None


def parents(membership: Membership) -> list[Path]:
    """The groups in which a worker's group may be made, the best first.

    Version 2 lets no group hold both processes and bounded groups, so a sibling of our own group comes
    second.
    """
    if membership.version == 2 and membership.directory != membership.root:
        return [membership.directory, membership.directory.parent]
    return [membership.directory]


def _lends_memory(parent: Path) -> bool:
    """Whether groups made in `parent` (v2) have the memory controller; switches it on where allowed."""
    try:
        if "memory" in (parent / "cgroup.subtree_control").read_text(encoding="ascii").split():
            return True
        (parent / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
        return "memory" in (parent / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except OSError:
        return False


class WorkerCgroup:
    """One worker's group. Make it with `create`, give it back with `remove`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    def create(cls, limit_bytes: int, name: str) -> WorkerCgroup:
        """Makes a group whose memory is bounded and whose swap is not.

        Args:
            limit_bytes: the bound; the kernel rounds it down to whole pages. name: `PID-ANYTHING` with the
            pid of its owner, by which `remove_stale` tells whether it is in use.

        Raises:
            HostUnfit: no controller, or not permitted.
        """
        membership = _own_membership()
        refusals = []
        for parent in parents(membership):
            if membership.version == 2 and not _lends_memory(parent):
                refusals.append(f"{parent} does not lend its memory controller")
                continue
            directory = parent / f"{_PREFIX}{name}"
            try:
                directory.mkdir()
            except OSError as error:
                refusals.append(f"{directory}: {error.strerror}")
                continue
            group = cls(directory)
            try:
                group._bound(membership.version, limit_bytes)
            except OSError as error:
                refusals.append(f"{error.filename}: {error.strerror}")
                group.remove()
                continue
            return group
        raise HostUnfit(f"worker_memory: no bounded control group can be made: {'; '.join(refusals)}; {_REMEDY}")

    def _bound(self, version: int, limit_bytes: int) -> None:
        if version == 1:
            # memory.memsw.limit_in_bytes stays as it is, unlimited: swap is what makes a wall of a bound.
            self._write("memory.limit_in_bytes", str(limit_bytes))
            return
        self._write("memory.max", str(limit_bytes))
        for file, value in (("memory.swap.max", "max"), ("memory.oom.group", "1")):
            with contextlib.suppress(FileNotFoundError):  # no swap accounting, or a kernel before 4.19
                self._write(file, value)

    @property
    def path(self) -> str:
        """The group's folder."""
        return str(self._directory)

    @property
    def limit_bytes(self) -> int:
        """The bound as the kernel holds it."""
        for file in ("memory.limit_in_bytes", "memory.max"):
            with contextlib.suppress(FileNotFoundError):
                return int((self._directory / file).read_text(encoding="ascii"))
        raise HostUnfit(f"worker_memory: {self._directory} has no memory controller any more")

    def add(self, pid: int) -> None:
        """Moves a process into the group. What it allocated before stays charged where it was.

        A process that is dead already is no error: its death is the result.

        Raises:
            HostUnfit: not permitted.
        """
        try:
            self._write("cgroup.procs", str(pid))
        except ProcessLookupError:
            return
        except OSError as error:
            raise HostUnfit(
                f"worker_memory: cannot move the worker into {self._directory}: {error.strerror}; {_REMEDY}"
            ) from error

    def remove(self) -> bool:
        """Removes the group, waiting a few seconds for what was killed to leave it; whether it is gone."""
        end_s = time.monotonic() + _REMOVE_S
        while not _rmdir(self._directory):
            if time.monotonic() >= end_s:
                return False
            time.sleep(0.02)
        return True

    def _write(self, file: str, text: str) -> None:
        (self._directory / file).write_text(text, encoding="ascii")


def _rmdir(directory: Path) -> bool:
    """Removes a group; False where something is still inside, or it is not ours to remove."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_stale() -> list[str]:
    """Removes groups that an earlier sweep left behind: those whose owner is dead and that hold no process.

    Returns:
        the folders that were removed. A machine without the controller has none.
    """
    try:
        folders = parents(_own_membership())
    except HostUnfit:
        return []
    removed = []
    for folder in folders:
        for directory in sorted(folder.glob(f"{_PREFIX}*")):
            owner = _NAME.match(directory.name)
            if owner is None or _is_alive(int(owner[1])):
                continue
            if _rmdir(directory):
                removed.append(str(directory))
    return removed


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True

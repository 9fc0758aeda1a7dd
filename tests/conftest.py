"""Owns what every test is held to: no process, swap file or cgroup of ours outlives the test that made it.

What is found is removed, so that one careless test spoils only itself, and that test fails. Time is only ever
a deadline for something to go away by itself, never a measure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Inherited by every descendant, also by one whose parents are gone: so orphans are found as well.
MARK = "WALLFINDER_TEST_RUN"
GRACE_S = 10.0
# Python's own helpers live as long as the interpreter that started them.
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True, slots=True)
class Leavings:
    """What is there besides this process: descendants by (pid, start time), swap files, cgroups."""

    processes: frozenset[tuple[int, float]]
    swap_files: frozenset[str]
    cgroups: frozenset[str]

    def beyond(self, before: Leavings) -> Leavings:
        """What is here and was not there before."""
        return Leavings(
            self.processes - before.processes,
            self.swap_files - before.swap_files,
            self.cgroups - before.cgroups,
        )

    def __bool__(self) -> bool:
        return bool(self.processes or self.swap_files or self.cgroups)


def pytest_configure(config: pytest.Config) -> None:
    """Marks whatever this process will start; a worker of xdist gets a mark of its own."""
    os.environ[MARK] = uuid.uuid4().hex
    # Ignored signals are inherited: a run in the background of a script would have children that Ctrl-C cannot reach.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves a running process, a swap file or a `wallfinder-*` cgroup behind."""
    before = _look()
    yield
    deadline = time.monotonic() + GRACE_S
    left = _look().beyond(before)
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = _look().beyond(before)
    if left:
        named = [*_remove_processes(left), *_remove_swap(left), *_remove_cgroups(left)]
        pytest.fail(f"left behind: {'; '.join(named)}", pytrace=False)


def _look() -> Leavings:
    processes = frozenset(_descendants())
    ours = {pid for pid, _ in processes}
    return Leavings(processes, frozenset(_swap_files()), frozenset(_cgroups(ours)))


def _descendants() -> Iterator[tuple[int, float]]:
    own = psutil.Process()
    found = {process.pid: process for process in own.children(recursive=True)}
    if sys.platform == "linux":  # reading another process's environment may block on macOS
        found |= {process.pid: process for process in _marked() if process.pid != own.pid}
    for process in found.values():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and not _is_helper(process):
                yield process.pid, process.create_time()
        except psutil.NoSuchProcess:
            continue


def _marked() -> Iterator[psutil.Process]:
    mark = f"{MARK}={os.environ[MARK]}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                yield psutil.Process(int(entry.name))
        except (OSError, psutil.NoSuchProcess):
            continue


def _is_helper(process: psutil.Process) -> bool:
    command = " ".join(process.cmdline())
    return any(name in command for name in _HELPERS)


def _swap_files() -> Iterator[str]:
    """Those that this run made (bench/real_wall.py names them so): the machine may have others come and go."""
    table = Path("/proc/swaps")
    if table.exists():
        for line in table.read_text(encoding="utf-8").splitlines()[1:]:
            if f"wallfinder-swap-{os.getpid()}-" in line:
                yield line.split()[0]


def _cgroups(ours: set[int], root: str = "/sys/fs/cgroup") -> Iterator[str]:
    """Groups that nobody else is in: another run's tests may have theirs at the same time."""
    for folder, names, _ in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if name.startswith("wallfinder-") and not _is_foreign(path, ours):
                yield str(path)


def _is_foreign(cgroup: Path, ours: set[int]) -> bool:
    owner = cgroup.name.split("-")[1]
    if owner.isdigit() and int(owner) not in {*ours, os.getpid()} and psutil.pid_exists(int(owner)):
        return True
    try:
        members = {int(pid) for pid in (cgroup / "cgroup.procs").read_text(encoding="ascii").split()}
    except OSError:  # gone meanwhile
        return True
    return not members <= ours


def _remove_processes(left: Leavings) -> Iterator[str]:
    for pid, started in sorted(left.processes):
        try:
            process = psutil.Process(pid)
            if process.create_time() == started:  # else the pid has gone to somebody else
                command = " ".join(process.cmdline())
                process.kill()
                yield f"process {pid} ({command[:200]})"
        except psutil.NoSuchProcess:
            yield f"process {pid} (gone by now)"


def _remove_swap(left: Leavings) -> Iterator[str]:
    for name in sorted(left.swap_files):
        ended = subprocess.run(["swapoff", name], capture_output=True, check=False)
        yield f"swap file {name}" + ("" if ended.returncode == 0 else " (still on)")


def _remove_cgroups(left: Leavings) -> Iterator[str]:
    deadline = time.monotonic() + GRACE_S
    for name in sorted(left.cgroups):
        while True:
            try:
                Path(name).rmdir()
            except OSError as error:  # busy, until the kernel has let go of what was killed just now
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                yield f"cgroup {name} ({error.strerror})"
            else:
                yield f"cgroup {name}"
            break

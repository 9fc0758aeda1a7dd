"""Tests of the worker's memory bound: finding the controller in text, and a real group where permitted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator import cgroup
from orchestrator.cgroup import WorkerCgroup, find_membership, parents, remove_stale
from orchestrator.errors import HostUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
V1_MOUNTS = (
    "25 1 0:22 / /sys/fs/cgroup rw,relatime shared:4 - tmpfs tmpfs rw,mode=755\n"
    "31 25 0:27 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
    "40 25 0:36 / /sys/fs/cgroup/unified rw,relatime shared:12 - cgroup2 cgroup2 rw\n"
)
V2_MOUNTS = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
CONTAINER_MOUNTS = "700 690 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("mounts", "own", "version", "directory"),
    [
        (V1_MOUNTS, "4:memory:/a/b\n0::/\n", 1, "/sys/fs/cgroup/memory/a/b"),
        (V1_MOUNTS, "5:cpu,cpuacct:/x\n4:memory:/\n", 1, "/sys/fs/cgroup/memory"),
        (V2_MOUNTS, "0::/user.slice/app.scope\n", 2, "/sys/fs/cgroup/user.slice/app.scope"),
        (V2_MOUNTS, "0::/\n", 2, "/sys/fs/cgroup"),
        (CONTAINER_MOUNTS, "4:memory:/docker/abc/job\n", 1, "/sys/fs/cgroup/memory/job"),
        (CONTAINER_MOUNTS, "4:memory:/docker/abcdef\n", 1, "/sys/fs/cgroup/memory"),
        (V2_MOUNTS.replace("/sys/fs/cgroup ", "/my\\040groups "), "0::/a\n", 2, "/my groups/a"),
    ],
)
def test_own_group_is_found_in_both_versions(mounts: str, own: str, version: int, directory: str) -> None:
    found = find_membership(mounts, own)

    assert found is not None
    assert (found.version, found.directory) == (version, Path(directory))


def test_no_controller_is_none() -> None:
    only_tmpfs = V1_MOUNTS.splitlines()[0] + "\n"

    assert find_membership(only_tmpfs, "0::/\n") is None
    assert find_membership(V1_MOUNTS.splitlines()[1], "3:cpu:/\n") is None  # mounted, but we are in none of its groups


def test_version_2_falls_back_to_a_sibling_and_never_above_the_mount() -> None:
    inner = find_membership(V2_MOUNTS, "0::/user.slice/app.scope\n")
    top = find_membership(V2_MOUNTS, "0::/\n")

    assert inner is not None
    assert top is not None
    assert parents(inner) == [inner.directory, Path("/sys/fs/cgroup/user.slice")]
    assert parents(top) == [Path("/sys/fs/cgroup")]


def test_version_2_writes_the_bound_and_leaves_swap_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    membership = cgroup.Membership(2, tmp_path / "own", tmp_path)
    monkeypatch.setattr(cgroup, "_own_membership", lambda: membership)

    group = WorkerCgroup.create(400 * MIB, "77-1")

    assert Path(group.path) == tmp_path / "wallfinder-77-1"  # a sibling: `own` has nothing to lend
    assert group.limit_bytes == 400 * MIB
    assert (Path(group.path) / "memory.swap.max").read_text() == "max"
    assert (Path(group.path) / "memory.oom.group").read_text() == "1"


def test_refusal_names_the_key_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    membership = cgroup.Membership(2, tmp_path / "absent" / "own", tmp_path)
    monkeypatch.setattr(cgroup, "_own_membership", lambda: membership)

    with pytest.raises(HostUnfit, match=r"worker_memory: .*does not lend.*systemd-run --user --scope"):
        WorkerCgroup.create(MIB, "77-1")


def test_no_controller_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "find_membership", lambda *_: None)

    with pytest.raises(HostUnfit, match=r"worker_memory: there is no cgroup memory controller"):
        WorkerCgroup.create(MIB, "77-1")
    assert remove_stale() == []


# -- a real group


@pytest.fixture
def group() -> Iterator[WorkerCgroup]:
    try:
        made = WorkerCgroup.create(64 * MIB, f"{os.getpid()}-test")
    except HostUnfit as error:
        pytest.skip(str(error))
    yield made
    assert made.remove()


def test_a_real_group_holds_the_bound_and_takes_a_process(group: WorkerCgroup) -> None:
    assert group.limit_bytes == 64 * MIB
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        group.add(process.pid)
        assert str(process.pid) in (Path(group.path) / "cgroup.procs").read_text().split()
        process.communicate(b"\n")


def test_a_dead_process_is_no_error(group: WorkerCgroup) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()

    group.add(process.pid)

    assert (Path(group.path) / "cgroup.procs").read_text() == ""


def test_remove_does_not_wait_for_ever(group: WorkerCgroup, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        group.add(process.pid)
        monkeypatch.setattr(cgroup, "_REMOVE_S", 0.1)
        assert group.remove() is False
        monkeypatch.undo()
        process.communicate(b"\n")


def test_stale_groups_of_dead_owners_are_removed_and_others_are_not(group: WorkerCgroup) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    stale = WorkerCgroup.create(MIB, f"{dead.pid}-9")

    removed = remove_stale()

    assert stale.path in removed
    assert not Path(stale.path).exists()
    assert Path(group.path).exists()


def test_a_process_over_the_bound_is_held_to_it(group: WorkerCgroup) -> None:
    """It cannot hold 200 MB in memory: it is swapped out, or killed for it where there is no swap."""
    code = "input(); b = bytearray(200 << 20); print(open('/proc/self/status').read()); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        group.add(process.pid)
        out, _ = process.communicate(b"\n\n")
    resident = [int(line.split()[1]) for line in out.decode().splitlines() if line.startswith("RssAnon:")]

    assert process.returncode == -9 or resident[0] * 1024 < 80 * MIB

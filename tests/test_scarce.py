"""A read-only run directory, no descriptors, no locked memory: a clear word, a readable ledger, and it goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sweeps import Desk, desk, wait_until
from test_fault_matrix import elders, phase_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

linux = pytest.mark.skipif(sys.platform != "linux", reason="takes mounts, prlimit or /proc")


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as held:
        yield held


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system of its own at `place`, always unmounted."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("takes the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, mode: str) -> bool:
    command = ["mount", "-o", f"remount,{mode}", str(place)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@linux
def test_a_read_only_run_directory_is_told_and_a_later_sweep_goes_on(night: Desk) -> None:
    with small_disk(night.runs):
        plan = night.plan(batches=[1, 2], gen_tokens=3000, reps=1, warmup=0)
        sweep = night.start("run", plan, "-o", night.runs)
        wait_until(lambda: phase_of(night, "c00064-b002") == "decode", limit_s=60)
        sweep.kill()  # files that are open for writing keep a file system from turning read-only
        sweep.communicate()
        wait_until(lambda: not night.left_behind(), limit_s=10.0)
        wait_until(lambda: remount(night.runs, "ro"))
        for refused in (night.resume(), night.run(plan), night.run(plan, "--name", "another")):
            assert refused.returncode in (2, 3), refused.stderr
            assert "Read-only file system" in refused.stderr
            assert "Traceback" not in refused.stderr
        assert night.status()["state"] == "cut_off"
        assert night.call("replay", night.runs / "night").returncode == 0
        remount(night.runs, "rw")
        done = night.resume()
        assert done.returncode == 0, done.stderr
        assert set(night.verdicts().values()) == {("completed", None)}


def limited(kind: int, soft: int) -> Callable[[], None]:
    """Sets a limit of the new process, before the program starts."""
    return lambda: resource.setrlimit(kind, (soft, soft))


def start_limited(at: Desk, kind: int, soft: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "WALLFINDER_TEST_MARK": at.mark},
        preexec_fn=limited(kind, soft),
    )


@linux
def test_without_descriptors_it_stops_with_a_word_whichever_is_the_one_too_many(night: Desk) -> None:
    """From a limit at which nothing starts up to one at which all goes well; each in between is told, none hangs."""
    plan = night.plan(batches=[1, 2])
    codes = []
    for descriptors in range(8, 40, 2):
        done = start_limited(night, resource.RLIMIT_NOFILE, descriptors, "run", plan, "-o", night.runs)
        codes.append(done.returncode)
        wait_until(lambda: not night.left_behind(), limit_s=10.0)
        assert done.returncode in (0, 1, 3), (descriptors, done.stderr)
        if done.returncode == 0:
            break
        assert "Too many open files" in done.stderr, (descriptors, done.stderr)
    assert codes[-1] == 0
    assert 3 in codes
    assert set(night.verdicts().values()) == {("completed", None)}
    assert all(event["event"] for event in night.journal())


@linux
@pytest.mark.parametrize("locked_bytes", [0, 1 << 16, 8 << 20], ids=["none", "64 KiB", "8 MiB"])
def test_a_watchdog_that_may_lock_little_says_so_and_works(night: Desk, locked_bytes: int) -> None:
    plan = night.plan(batches=[1])
    done = start_limited(night, resource.RLIMIT_MEMLOCK, locked_bytes, "run", plan, "-o", night.runs)
    assert done.returncode == 0, done.stderr
    started = next(event for event in night.journal() if event["event"] == "watchdog.started")

    assert started["backstops"]["memory_lock"] in ("verified", "absent")
    if os.geteuid() != 0:  # root may lock whatever the limit says
        assert started["backstops"]["memory_lock"] == "absent"


@linux
def test_the_watchdog_stays_locked_from_cell_to_cell(night: Desk) -> None:
    plan = night.plan(batches=[1, 2, 3, 4], gen_tokens=1500, reps=1, warmup=0)
    sweep = night.start("run", plan, "-o", night.runs)
    wait_until(lambda: phase_of(night, "c00064-b004") == "decode", limit_s=60)
    status = Path(f"/proc/{elders(night)['watchdog'].pid}/status").read_text()
    sweep.communicate(timeout=120)
    kib = {
        line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if line.startswith(("VmLck", "VmRSS"))
    }
    started = next(event for event in night.journal() if event["event"] == "watchdog.started")

    if started["backstops"]["memory_lock"] == "verified":
        assert kib["VmLck"] >= kib["VmRSS"]
    else:
        assert (kib["VmLck"] > 0) == (started["backstops"]["memory_lock_partial"] == "verified")

"""A read-only run directory, no descriptors, no locked memory: a clear word, a readable ledger, and it goes on."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from in_flight import elders, phase_of, until_gone, until_three
from small_disk import tmpfs
from sweeps import Desk, desk, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

linux = pytest.mark.skipif(sys.platform != "linux", reason="takes mounts, prlimit or /proc")


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as held:
        yield held


def remount(place: Path, mode: str) -> bool:
    command = ["mount", "-o", f"remount,{mode}", str(place)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@linux
def test_a_read_only_run_directory_is_told_and_a_later_sweep_goes_on(night: Desk) -> None:
    with tmpfs(night.runs):
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
@pytest.mark.parametrize("fewer", [1, 20], ids=["one too few", "none at all"])
def test_descriptors_that_run_out_in_the_middle_stop_before_the_next_cell(night: Desk, fewer: int) -> None:
    """The cell in flight gets its line in any case, and the one that could not start is not judged."""
    plan = night.plan(batches=[1, 2], gen_tokens=2500, reps=1, warmup=0)
    sweep = night.start("run", plan, "-o", night.runs)
    wait_until(lambda: phase_of(night, "c00064-b001") == "decode")
    orchestrator = until_three(sweep)["orchestrator"]
    _, hard = resource.prlimit(sweep.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(sweep.pid, resource.RLIMIT_NOFILE, (max(3, orchestrator.num_fds() - fewer), hard))
    _, err = sweep.communicate(timeout=120)
    until_gone(night, sweep)

    assert sweep.returncode == 3, err
    assert "a worker for c00064-b002 could not be started: [Errno 24] Too many open files" in err
    assert "Traceback" not in err
    records = [event["record"] for event in night.journal() if event["event"] == "cell.ended"]
    ended = [(record["cell_id"], record["verdict"], record["cause"]) for record in records]
    assert ended == [("c00064-b001", "completed", None), ("c00064-b002", "interrupted", "not_started")]

    journal = night.runs / "night" / "journal.jsonl"
    boot = next(event["boot_id"] for event in night.journal() if event["event"] == "cell.started")
    journal.write_bytes(journal.read_bytes().replace(boot.encode(), b"an-earlier-boot"))  # a restart mends much
    done = night.resume()
    assert done.returncode == 0, done.stderr
    assert set(night.verdicts().values()) == {("completed", None)}


def without_privilege(soft: int) -> list[str]:
    """A command before another: it may lock this many bytes and no more, also where it is root's."""
    command = ["prlimit", f"--memlock={soft}:{soft}"]
    if os.geteuid() == 0:
        command += ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "--"]
    if any(shutil.which(tool) is None for tool in ("prlimit", "setpriv")):
        pytest.skip("takes prlimit and setpriv")
    return command


@linux
@pytest.mark.parametrize("locked_bytes", [0, 1 << 16, 8 << 20], ids=["none", "64 KiB", "8 MiB"])
def test_a_watchdog_that_may_lock_little_says_so_and_works(night: Desk, locked_bytes: int) -> None:
    plan = night.plan(batches=[1, 2, 3], gen_tokens=1500, reps=1, warmup=0)
    sweep = night.start("run", plan, "-o", night.runs, under=without_privilege(locked_bytes))
    locked = []
    for batch in (1, 3):
        wait_until(lambda batch=batch: phase_of(night, f"c00064-b{batch:03}") == "decode", limit_s=60)  # type: ignore[misc] # mypy and lambdas
        locked.append(memory_of(until_three(sweep)["watchdog"].pid)["VmLck"])
    _, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, err
    started = next(event for event in night.journal() if event["event"] == "watchdog.started")

    assert started["backstops"]["memory_lock"] == "absent"
    partly = "verified" if locked_bytes >= 1 << 20 else started["backstops"]["memory_lock_partial"]
    assert started["backstops"]["memory_lock_partial"] == partly
    for bytes_ in locked:
        assert (bytes_ > 0) == (partly == "verified")
        assert bytes_ <= locked_bytes
    assert set(night.verdicts().values()) == {("completed", None)}


def memory_of(pid: int) -> dict[str, int]:
    """What the kernel says of a process's memory, in bytes."""
    lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Vm")]
    return {name.rstrip(":"): int(number) * 1024 for name, number, _ in lines}


@linux
def test_the_watchdog_stays_locked_from_cell_to_cell(night: Desk) -> None:
    plan = night.plan(batches=[1, 2, 3, 4], gen_tokens=1500, reps=1, warmup=0)
    sweep = night.start("run", plan, "-o", night.runs)
    read = []
    for batch in (1, 2, 4):
        wait_until(lambda batch=batch: phase_of(night, f"c00064-b{batch:03}") == "decode", limit_s=60)  # type: ignore[misc] # mypy and lambdas
        read.append(memory_of(elders(sweep)["watchdog"].pid))
    sweep.communicate(timeout=120)
    started = next(event for event in night.journal() if event["event"] == "watchdog.started")

    for memory in read:
        if started["backstops"]["memory_lock"] == "verified":
            assert memory["VmLck"] >= memory["VmRSS"]
        else:
            assert (memory["VmLck"] > 0) == (started["backstops"]["memory_lock_partial"] == "verified")

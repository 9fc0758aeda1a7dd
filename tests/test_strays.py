"""Tests that nothing a worker started outlives the attempt, also where it left the worker's group and session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from sweeps import Desk, desk, wait_until
from watchdog_harness import is_gone

from orchestrator import strays
from orchestrator.watchdog.strays import TAG, end_strays, tag_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SLEEPER = "import time; print(1, flush=True); time.sleep(3600)"
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as held:
        yield held


@pytest.fixture
def tagged() -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, TAG: strays.attempt_tag(7)}
    command = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_only_what_carries_the_tag_is_ended(tagged: subprocess.Popen[bytes]) -> None:
    assert strays.end_attempt(strays.attempt_tag(8)) == 0
    assert tagged.poll() is None
    assert strays.end_attempt(strays.attempt_tag(7)) == 1
    assert tagged.wait(30) == -signal.SIGKILL


def test_nothing_of_a_living_orchestrator_is_abandoned(tagged: subprocess.Popen[bytes]) -> None:
    strays.end_abandoned()

    assert tagged.poll() is None


@pytest.mark.parametrize(
    ("tag", "abandoned"),
    [
        (strays.attempt_tag(1), False),
        (f"{os.getpid()}-12345-1", True),  # the number is another process's by now
        (f"{2**22 - 3}-5-1", True),
        ("", False),
        ("mine", False),
        ("12-x-1", False),
        ("1-", False),
    ],
)
def test_whose_a_tag_is(tag: str, abandoned: bool) -> None:
    assert strays.is_abandoned(tag) is abandoned


@linux
def test_processes_that_cannot_be_read_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()

    assert tag_of(77, str(tmp_path)) is None
    assert end_strays("x", str(tmp_path)) == 0
    assert end_strays("x", str(tmp_path / "nowhere")) == 0


def grandchild(night: Desk, attempt: str = "attempt-1") -> int:
    """The pid of the process that the fault started, by the worker's log."""
    log = night.runs / "night" / "cells" / "c00064-b001" / attempt / "worker.log"
    wait_until(lambda: log.exists() and b"grandchild" in log.read_bytes())
    return int(log.read_text().partition("grandchild ")[2].split()[0])


def test_a_child_that_left_the_session_ends_with_its_attempt(night: Desk) -> None:
    night.run(night.plan(batches=[1, 2], faults={"c00064-b001": "grandchild_session"}))

    assert not psutil.pid_exists(grandchild(night)) or is_gone(grandchild(night))
    assert set(night.verdicts().values()) == {("completed", None)}


@linux
def test_it_ends_too_when_the_orchestrator_is_killed(night: Desk) -> None:
    faults = {"c00064-b001": "grandchild_session@prefill"}
    sweep = night.start("run", night.plan(batches=[1], faults=faults, gen_tokens=100_000, warmup=0), "-o", night.runs)
    pid = grandchild(night)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait()

    wait_until(lambda: is_gone(pid))


@linux
def test_the_next_sweep_ends_it_when_worker_watchdog_and_orchestrator_were_killed_together(night: Desk) -> None:
    faults = {"c00064-b001#1": "grandchild_session@prefill"}
    plan = night.plan(batches=[1], faults=faults, gen_tokens=2_000, warmup=0)
    sweep = night.start("run", plan, "-o", night.runs)
    pid = grandchild(night)
    elders = [process for process in night.left_behind() if process.pid != pid]
    for process in elders:
        process.send_signal(signal.SIGSTOP)  # so that none of them has time to clean up
    for process in elders:
        process.kill()
    sweep.wait()
    wait_until(lambda: all(is_gone(process.pid) for process in elders))

    assert not is_gone(pid)
    night.resume()
    assert is_gone(pid)
    assert night.verdicts() == {"c00064-b001": ("completed", None)}

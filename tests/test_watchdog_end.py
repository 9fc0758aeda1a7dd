"""Tests of what the watchdog leaves behind when the orchestrator goes away: nothing, whichever way it went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from watchdog_harness import ROOT, Harness, is_gone, state_of, wait_until

from orchestrator.cgroup import WorkerCgroup
from orchestrator.errors import HostUnfit
from orchestrator.watchdog import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to see what the watchdog does")


@pytest.fixture
def dog() -> Iterator[Harness]:
    with Harness() as harness:
        harness.hear(wire.Ready)
        yield harness


def line_of(worker: subprocess.Popen[bytes]) -> bytes:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def test_end_of_the_socket_ends_worker_group_cgroup_and_watchdog(dog: Harness) -> None:
    try:
        group = WorkerCgroup.create(10**9, f"{os.getpid()}-eof")
        cgroup = group.path
    except HostUnfit:
        cgroup = None
    worker = dog.start("parent")
    if cgroup is not None:
        group.add(worker.pid)
    child = int(line_of(worker))
    dog.watch(worker, cgroup=cgroup)
    dog.hear(wire.Samples)
    dog.socket.close()
    worker.wait(20)

    assert worker.returncode == -signal.SIGKILL
    assert dog.process.wait(20) == 0
    wait_until(lambda: is_gone(child))
    assert cgroup is None or not Path(cgroup).exists()


@pytest.fixture
def mac() -> Iterator[Harness]:
    """A watchdog that believes a SIGKILL would leave GPU memory wired."""
    with Harness(wired=True) as harness:
        harness.hear(wire.Ready)
        yield harness


@pytest.mark.parametrize(
    ("play", "status"), [("wait", 0), ("deaf", -signal.SIGKILL)], ids=["heeds the flag", "deaf to it"]
)
def test_where_sigkill_leaves_memory_wired_the_worker_is_asked_first(mac: Harness, play: str, status: int) -> None:
    worker = mac.start(play)
    mac.watch(worker)
    mac.hear(wire.Samples)
    mac.socket.close()

    assert worker.wait(30) == status
    assert mac.page.stop_requested
    assert mac.process.wait(30) == 0


def test_elsewhere_nobody_is_asked(dog: Harness) -> None:
    worker = dog.start("wait")
    dog.watch(worker)
    dog.hear(wire.Samples)
    dog.socket.close()

    assert worker.wait(30) == -signal.SIGKILL
    assert not dog.page.stop_requested


def test_another_attempt_is_not_asked_to_stop_when_a_lost_one_is_killed(mac: Harness) -> None:
    """The page belongs to the new attempt already: its flag is not the old worker's."""
    old = mac.start("wait")
    mac.watch(old)
    mac.hear(wire.Samples)
    new = mac.start("finish", "60")
    mac.watch(new)

    assert old.wait(30) == -signal.SIGKILL
    assert mac.release(new).rungs == []
    assert new.returncode == 0


ORCHESTRATOR = """
import subprocess, sys, time
sys.path[:0] = [{root!r}, {tests!r}]
from watchdog_harness import Harness
from orchestrator.watchdog import wire
dog = Harness().__enter__()
dog.hear(wire.Ready)
worker = dog.start("stubborn")
worker.stdout.readline()
dog.watch(worker)
dog.hear(wire.Samples)
print(dog.process.pid, worker.pid, flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("paused", [False, True], ids=["awake", "stopped"])
def test_killed_orchestrator_leaves_nothing(paused: bool) -> None:
    """Also where the watchdog was stopped: the kernel wakes it when its parent dies."""
    code = ORCHESTRATOR.format(root=str(ROOT), tests=str(ROOT / "tests"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as orchestrator:
        assert orchestrator.stdout is not None
        watchdog, worker = map(int, orchestrator.stdout.readline().split())
        if paused:
            os.kill(watchdog, signal.SIGSTOP)
            wait_until(lambda: state_of(watchdog) == "T")
        orchestrator.kill()
        orchestrator.wait()
        wait_until(lambda: is_gone(worker) and is_gone(watchdog), 10)


def test_shutdown_ends_it_and_what_it_watches(dog: Harness) -> None:
    worker = dog.start("deaf")
    dog.watch(worker)
    dog.hear(wire.Samples)
    dog.say(wire.Shutdown())

    assert dog.process.wait(20) == 0
    assert worker.wait(20) == -signal.SIGKILL


def test_signals_of_a_terminal_do_not_end_it(dog: Harness) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
        os.kill(dog.process.pid, number)
    worker = dog.start("finish")
    dog.watch(worker)

    assert dog.release(worker).cause is None

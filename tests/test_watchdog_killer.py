"""Tests of the stop ladder: its times as a table, and whom it may signal by real processes."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys

import pytest
from watchdog_harness import wait_for_death

from orchestrator.watchdog.killer import (
    FLAG,
    KILL,
    TERM,
    UNKILLABLE,
    Graces,
    Killer,
    Ladder,
    begin,
    climb,
    graces,
    signal_group,
)

ALLOWED = Graces(flag_s=2.0, term_s=2.0, kill_s=30.0)


@pytest.mark.parametrize(
    ("rung", "after_s", "hurry", "expected"),
    [
        (FLAG, 1.9, False, FLAG),
        (FLAG, 2.0, False, TERM),
        (TERM, 1.9, False, TERM),
        (TERM, 2.0, False, KILL),
        (KILL, 29.9, False, KILL),
        (KILL, 30.0, False, UNKILLABLE),
        (UNKILLABLE, 3600.0, False, UNKILLABLE),
        (FLAG, 0.0, True, KILL),
        (TERM, 0.0, True, KILL),
        (KILL, 1.0, True, KILL),
        (FLAG, 3600.0, False, TERM),  # one rung at a time, however late the tick
    ],
)
def test_rung_that_is_due(rung: str, after_s: float, hurry: bool, expected: str) -> None:
    ladder = climb(Ladder(rung, 100.0, ALLOWED), 100.0 + after_s, hurry)

    assert ladder.rung == expected
    assert ladder.rung_at_s == (100.0 if expected == rung else 100.0 + after_s)


def test_hurry_begins_with_sigkill() -> None:
    assert begin(5.0, ALLOWED, hurry=True).rung == KILL
    assert begin(5.0, ALLOWED, hurry=False).rung == FLAG


@pytest.mark.parametrize("wired", [False, True])
@pytest.mark.parametrize("step_s", [None, 0.0, 0.2, 2.2, 600.0])
@pytest.mark.parametrize("footprint", [None, 10**9, 500 * 10**9])
def test_graces_are_bounded_however_slow_and_large_the_worker(
    step_s: float | None, footprint: int | None, wired: bool
) -> None:
    allowed = graces(step_s, footprint, wired)

    assert 0.5 <= allowed.flag_s <= (10.0 if wired else 0.5)
    assert sum(dataclasses.astuple(allowed)) <= 45.0


def test_grace_follows_the_step_and_where_it_matters_the_footprint() -> None:
    assert graces(2.0, 50 * 10**9, wired=False) == Graces(flag_s=0.5)
    assert graces(2.0, 50 * 10**9, wired=True) == Graces(flag_s=8.0)


def test_killer_takes_each_rung_once_and_says_when() -> None:
    asked = []
    code = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        killer = Killer(worker.pid, lambda: asked.append("stop"))

        assert killer.tick(9.0) == []  # nobody said so yet
        assert killer.start(10.0, ALLOWED) == [FLAG]
        assert asked == ["stop"]
        assert killer.start(10.5, ALLOWED) == []
        assert killer.tick(12.0) == [TERM]
        assert killer.tick(13.9) == []
        assert worker.poll() is None
        assert killer.tick(14.0) == [KILL]
        assert worker.wait(20) == -signal.SIGKILL
    assert killer.rungs == [(FLAG, 10.0), (TERM, 12.0), (KILL, 14.0)]


def test_worker_that_outlives_the_ladder_is_unkillable() -> None:
    """Nobody can make a process survive SIGKILL; one that is a zombie already stands in for it."""
    worker = subprocess.Popen(["true"], start_new_session=True)
    wait_for_death(worker.pid)
    killer = Killer(worker.pid, lambda: None)
    killer.start(0.0, ALLOWED, hurry=True)

    assert not killer.is_unkillable
    assert killer.tick(30.0) == [UNKILLABLE]
    assert killer.is_unkillable
    assert killer.tick(60.0) == []
    worker.wait()


def test_signalling_a_zombie_group_is_no_error() -> None:
    worker = subprocess.Popen(["true"], start_new_session=True)
    wait_for_death(worker.pid)

    signal_group(worker.pid, signal.SIGKILL)

    assert worker.wait() == 0


def test_signalling_nobody_says_so() -> None:
    worker = subprocess.Popen(["true"], start_new_session=True)
    worker.wait()

    assert signal_group(worker.pid, signal.SIGTERM) is False


def test_process_that_leads_no_group_is_not_signalled() -> None:
    """A worker leads its group: this one has got the number of a worker that is gone."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        assert signal_group(stranger.pid, signal.SIGKILL) is False
        stranger.communicate(b"\n")
        assert stranger.returncode == 0


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_numbers_that_mean_everybody_are_refused(pid: int) -> None:
    with pytest.raises(ValueError, match="no worker"):
        signal_group(pid, 0)

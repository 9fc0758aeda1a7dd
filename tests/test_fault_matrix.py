"""The fault matrix: {phase} x {what the worker does in it} x {who is killed}. Nothing lost, nobody left behind."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from sweeps import Desk, desk, wait_until

from orchestrator.errors import WallfinderError
from orchestrator.recordings import recorded_lines

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="finds processes by their environment, which may block on macOS"
    ),
]

PHASES = ("load", "warmup", "prefill", "decode")
# What a worker may be doing when somebody dies: waiting, waiting in C with the interpreter's lock, turning in Python.
DEEDS = ("hang:deaf", "hang_gil:deaf", "spin")
PATIENT = {"stall": {"soft": "200s", "hard": "250s"}}
ENDED = {
    "worker": ("crashed", "killed"),
    "watchdog": ("interrupted", "watchdog_died"),
    "orchestrator": ("interrupted", "orchestrator_died"),
    "all": ("interrupted", "orchestrator_died"),
}


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as held:
        yield held


def phase_of(at: Desk, cell_id: str) -> str | None:
    """Where the first attempt of a cell is, by its recording."""
    path = at.runs / "night" / "cells" / cell_id / "attempt-1" / "samples.jsonl"
    with contextlib.suppress(WallfinderError):
        for line in reversed(list(recorded_lines(path))):
            if "progress" in line:
                return str(line["progress"]["phase"])
    return None


def elders(at: Desk) -> dict[str, psutil.Process]:
    """The three processes of the sweep by role."""
    found = {}
    for process in at.left_behind():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            role = "watchdog" if "wallfinder-watchdog" in line else "worker" if "worker" in line else "orchestrator"
            found[role] = process
    return found


def kill(at: Desk, who: str) -> None:
    wait_until(lambda: len(elders(at)) == 3)
    victims = elders(at)
    if who == "all":
        for process in victims.values():
            process.send_signal(signal.SIGSTOP)  # so that none of them has time to clean up
    for role, process in victims.items():
        if who in (role, "all"):
            process.kill()


def until_gone(at: Desk, sweep: subprocess.Popen[str]) -> None:
    sweep.communicate(timeout=60)
    wait_until(lambda: not at.left_behind(), limit_s=10.0)


@pytest.mark.parametrize("who", ENDED)
@pytest.mark.parametrize("phase", PHASES)
def test_who_dies_in_which_phase(night: Desk, phase: str, who: str) -> None:
    cells = {f"c00064-b{n:03}": deed for n, deed in enumerate(DEEDS, 1)}
    faults = {
        f"{cell_id}#1": deed.replace(":", f"@{phase}:") if ":" in deed else f"{deed}@{phase}"
        for cell_id, deed in cells.items()
    }
    plan = night.plan(batches=[1, 2, 3], faults=faults, watchdog=PATIENT, retries={"crashed": 1, "failed": 0})
    sweep = night.start("run", plan, "-o", night.runs)
    for cell_id in cells:
        wait_until(lambda cell_id=cell_id: phase_of(night, cell_id) == phase, limit_s=60)  # type: ignore[misc] # mypy and lambdas
        kill(night, who)
        if who in ("orchestrator", "all"):
            until_gone(night, sweep)
            assert night.status()["state"] == "cut_off"
            sweep = night.start("resume", night.runs / "night")
    _, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, err

    records = [event["record"] for event in night.journal() if event["event"] == "cell.ended"]
    for cell_id in cells:
        ended = [(r["attempt"], r["verdict"], r["cause"]) for r in records if r["cell_id"] == cell_id]
        assert ended == [(1, *ENDED[who]), (2, "completed", None)], cell_id
    assert set(night.verdicts().values()) == {("completed", None)}


# -- stopped, and continued


def long_cell(at: Desk, **keys: Any) -> subprocess.Popen[str]:
    """A sweep of one healthy cell that takes several seconds, in its decode phase."""
    plan = at.plan(batches=[1], gen_tokens=6000, reps=1, warmup=0, **keys)
    sweep = at.start("run", plan, "-o", at.runs)
    wait_until(lambda: phase_of(at, "c00064-b001") == "decode")
    return sweep


@pytest.mark.parametrize("who", ["worker", "watchdog", "orchestrator"])
def test_a_process_that_is_stopped_for_a_moment_costs_nothing(night: Desk, who: str) -> None:
    sweep = long_cell(night)
    process = elders(night)[who]
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(2.0)  # how long it is stopped: longer than a late tick may be
    process.send_signal(signal.SIGCONT)
    _, err = sweep.communicate(timeout=120)

    assert sweep.returncode == 0, err
    assert night.verdicts() == {"c00064-b001": ("completed", None)}
    assert night.status()["cells"][0]["attempts"] == 1


def test_a_worker_that_stays_stopped_is_ended_by_its_time_limit(night: Desk) -> None:
    sweep = long_cell(night, cell_time_limit="5s")
    elders(night)["worker"].send_signal(signal.SIGSTOP)
    _, err = sweep.communicate(timeout=120)

    assert sweep.returncode == 0, err
    assert night.verdicts() == {"c00064-b001": ("timed_out", "time_limit")}


@pytest.mark.parametrize("who", ["worker", "orchestrator"])
def test_one_that_is_stopped_and_then_killed_leaves_nothing(night: Desk, who: str) -> None:
    sweep = long_cell(night)
    process = elders(night)[who]
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    process.kill()
    until_gone(night, sweep)
    night.resume()

    assert night.verdicts()["c00064-b001"][0] == ("crashed" if who == "worker" else "completed")

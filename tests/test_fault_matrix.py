"""The fault matrix: {phase} x {what the worker does in it} x {who is killed}. Nothing lost, nobody left behind."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from in_flight import until_gone, until_standing, until_three
from sweeps import Desk, desk, wait_until
from watchdog_harness import is_gone

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
# What a worker may be doing when somebody dies: waiting, waiting in C with the interpreter's lock, turning in Python,
# working slowly, waiting for a child that holds its pipes.
DEEDS = {
    "hang": "hang@{}:deaf",
    "hang_gil": "hang_gil@{}:deaf",
    "spin": "spin@{}",
    "slow": "slow@{}:20000",
    "grandchild": "grandchild@{}:600",
}
# Where a slow worker is seen at work: what is slow is the chunk or step after the one at which it began.
SLOW_IN = {"load": "warmup", "prefill": "decode"}
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


def kill(sweep: subprocess.Popen[str], who: str) -> None:
    three = until_three(sweep)
    victims = list(three.values()) if who == "all" else [three[who]]
    if who == "all":
        for process in victims:
            process.send_signal(signal.SIGSTOP)  # so that none of them has time to clean up
    for process in victims:
        process.kill()
    if who == "all":
        sweep.communicate(timeout=60)
        wait_until(lambda: all(is_gone(process.pid) for process in victims))


@pytest.mark.parametrize("who", ENDED)
@pytest.mark.parametrize("phase", PHASES)
def test_who_dies_in_which_phase(night: Desk, phase: str, who: str) -> None:
    """One cell for each deed: its first attempt is cut off so, its second one is healthy."""
    cells = {f"c00064-b{n:03}": deed for n, deed in enumerate(DEEDS, 1)}
    faults = {f"{cell_id}#1": DEEDS[deed].format(phase) for cell_id, deed in cells.items()}
    plan = night.plan(
        batches=list(range(1, len(cells) + 1)),
        faults=faults,
        watchdog=PATIENT,
        retries={"crashed": 1, "failed": 0},
    )
    sweep = night.start("run", plan, "-o", night.runs)
    for cell_id, deed in cells.items():
        until_standing(night, sweep, cell_id, SLOW_IN.get(phase, phase) if deed == "slow" else phase)
        kill(sweep, who)
        if who in ("orchestrator", "all"):
            if (who, deed) != ("all", "grandchild"):  # then nobody is left to end it, before the next sweep does
                until_gone(night, sweep)
            sweep = night.start("resume", night.runs / "night")
    _, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, err

    records = [event["record"] for event in night.journal() if event["event"] == "cell.ended"]
    for cell_id in cells:
        ended = [(r["attempt"], r["verdict"], r["cause"]) for r in records if r["cell_id"] == cell_id]
        assert ended == [(1, *ENDED[who]), (2, "completed", None)], cell_id
    assert set(night.verdicts().values()) == {("completed", None)}


@pytest.mark.parametrize("who", ["watchdog", "orchestrator"])
def test_a_run_that_was_cut_off_says_so_and_names_no_cell_done(night: Desk, who: str) -> None:
    """Also where the journal is all that is left of the sweep: its last line is the start of the cell."""
    sweep = night.start("run", night.plan(batches=[1, 2], faults={"*#1": "hang:deaf"}), "-o", night.runs)
    until_standing(night, sweep, "c00064-b001", "decode")
    three = until_three(sweep)
    if who == "watchdog":
        three["orchestrator"].send_signal(signal.SIGSTOP)  # it will not hear of the other's death
    three["watchdog"].kill()
    three["orchestrator"].kill()
    until_gone(night, sweep)

    assert not psutil.pid_exists(three["orchestrator"].pid)
    assert night.journal()[-1]["event"] == "cell.started"
    assert night.status()["state"] == "cut_off"
    assert set(night.verdicts().values()) == {(None, None)}

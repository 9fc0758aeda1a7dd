"""A process of a sweep that is stopped (SIGSTOP): a moment costs nothing, and one that stays stopped is dealt with.

A watchdog that stays stopped is in test_cut_off.py, one whose orchestrator dies meanwhile in test_watchdog_end.py.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from in_flight import elders, phase_of, stop, stopped_for, until_gone, until_three
from sweeps import Desk, desk, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="tells a stopped process by its state in /proc"),
]
CELL = "c00064-b001"
STOPPED_S = 3.0
# A cell that stood still for half of the time for which processes are stopped here would be ended.
STRICT = {"stall": {"soft": "1s", "hard": "1500ms"}}


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as held:
        yield held


def long_cell(at: Desk, steps: int = 5000, **keys: Any) -> subprocess.Popen[str]:
    """A sweep of one healthy cell that takes several seconds, in its decode phase."""
    sweep = at.start("run", at.plan(batches=[1], gen_tokens=steps, reps=1, warmup=0, **keys), "-o", at.runs)
    wait_until(lambda: phase_of(at, CELL) == "decode")
    until_three(sweep)
    return sweep


def attempt_folder(at: Desk, attempt: int = 1) -> Path:
    return at.runs / "night" / "cells" / CELL / f"attempt-{attempt}"


@pytest.mark.parametrize("who", ["worker", "watchdog", "orchestrator"])
def test_a_process_that_is_stopped_for_a_moment_costs_nothing(night: Desk, who: str) -> None:
    sweep = long_cell(night, watchdog=STRICT)
    stopped_for(elders(sweep)[who], STOPPED_S)
    _, err = sweep.communicate(timeout=120)

    assert sweep.returncode == 0, err
    assert night.verdicts() == {CELL: ("completed", None)}
    assert night.status()["cells"][0]["attempts"] == 1
    watched = json.loads((attempt_folder(night) / "result.json").read_bytes())["watchdog"]
    assert (watched["cause"], watched["rungs"], watched["memory_evidence"]) == (None, [], {})
    assert watched["suspended_s"] == 0.0
    if who == "watchdog":
        assert watched["late_max_s"] > STOPPED_S / 2


def test_all_three_stopped_for_a_moment_cost_nothing(night: Desk) -> None:
    """As a debugger, a full freezer or a laptop's lid would do it."""
    sweep = long_cell(night, watchdog=STRICT)
    three = elders(sweep)
    for role in ("worker", "watchdog"):
        stop(three[role])
    stopped_for(three["orchestrator"], STOPPED_S)
    for role in ("watchdog", "worker"):
        three[role].resume()
    _, err = sweep.communicate(timeout=120)

    assert sweep.returncode == 0, err
    assert night.verdicts() == {CELL: ("completed", None)}


def test_a_worker_that_stays_stopped_is_ended_by_its_time_limit(night: Desk) -> None:
    """Nothing counts against it meanwhile but its time; the ladder's SIGCONT lets it see its SIGTERM."""
    sweep = long_cell(night, watchdog=STRICT, cell_time_limit="5s")
    elders(sweep)["worker"].suspend()
    _, err = sweep.communicate(timeout=120)

    assert sweep.returncode == 0, err
    assert night.verdicts() == {CELL: ("timed_out", "time_limit")}
    (ended,) = [event["record"] for event in night.journal() if event["event"] == "cell.ended"]
    assert [name for name, _ in ended["rungs"]] == ["flag", "term"]
    assert ended["signal"] == "SIGTERM"


def test_a_stopped_orchestrator_loses_samples_and_nothing_else(night: Desk) -> None:
    """Its socket fills up: the watchdog neither waits nor grows, and says how many samples found no room."""
    sweep = long_cell(night, steps=12_000, watchdog={"sample_every": "10ms"})
    three = elders(sweep)
    stop(three["orchestrator"])
    wait_until(lambda: not three["worker"].is_running() or three["worker"].status() == "zombie", limit_s=120.0)
    resident_bytes = three["watchdog"].memory_info().rss
    three["orchestrator"].resume()
    _, err = sweep.communicate(timeout=120)

    assert sweep.returncode == 0, err
    assert night.verdicts() == {CELL: ("completed", None)}
    watched = json.loads((attempt_folder(night) / "result.json").read_bytes())["watchdog"]
    recorded = [json.loads(line) for line in (attempt_folder(night) / "samples.jsonl").read_text().splitlines()]
    assert watched["samples_dropped"] > 0
    assert sum("event" not in line for line in recorded) + watched["samples_dropped"] == watched["samples"]
    assert resident_bytes < 24e6


ENDED = {
    "worker": ("crashed", "killed"),
    "watchdog": ("interrupted", "watchdog_died"),
    "orchestrator": ("interrupted", "orchestrator_died"),
}


@pytest.mark.parametrize("who", ENDED)
def test_one_that_is_stopped_and_then_killed_is_as_one_that_is_killed(night: Desk, who: str) -> None:
    sweep = long_cell(night, steps=2500, retries={"crashed": 1, "failed": 0})
    process = elders(sweep)[who]
    stop(process)
    process.kill()
    until_gone(night, sweep)
    if who == "orchestrator":
        assert night.resume().returncode == 0

    records = [event["record"] for event in night.journal() if event["event"] == "cell.ended"]
    ended = [(record["attempt"], record["verdict"], record["cause"]) for record in records]
    assert ended == [(1, *ENDED[who]), (2, "completed", None)]


@pytest.mark.parametrize("who", ["worker", "watchdog"])
def test_a_stopped_child_does_not_outlive_the_orchestrator(night: Desk, who: str) -> None:
    sweep = long_cell(night, steps=60_000)
    three = elders(sweep)
    stop(three[who])
    three["orchestrator"].kill()
    until_gone(night, sweep)

    assert night.status()["state"] == "cut_off"


def test_a_stopped_sweep_is_stopped_in_order_once_it_goes_on(night: Desk) -> None:
    """Ctrl-Z, then a polite end: the signal waits until the orchestrator runs again."""
    sweep = long_cell(night, steps=60_000)
    orchestrator = elders(sweep)["orchestrator"]
    stop(orchestrator)
    sweep.terminate()
    orchestrator.resume()
    _, err = sweep.communicate(timeout=120)

    assert sweep.returncode == 143, err
    assert night.journal()[-1]["event"] == "sweep.ended"
    records = [event["record"] for event in night.journal() if event["event"] == "cell.ended"]
    assert [(record["verdict"], record["cause"]) for record in records] == [("interrupted", "interrupted")]

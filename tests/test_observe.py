"""Tests of a watchdog that only observes: it tells what it would have done, and lets the cell run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sweeps import Desk, desk

from orchestrator.attempt_spec import attempt_spec, backstop_s
from orchestrator.cells import Cell
from orchestrator.measuring import Task
from orchestrator.plan import load_plan, resolve_limits
from worker.protocol import ModelSource

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOW = {"c00064-b002": "slow:150"}
SHARP = {"mode": "observe", "step_inflation": {"soft": 2, "hard": 3, "sustained": "200ms"}, "sample_every": "50ms"}


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as held:
        yield held


def test_a_cell_that_would_have_been_ended_completes_and_says_so(night: Desk) -> None:
    done = night.run(night.plan(batches=[1, 2], gen_tokens=24, faults=SLOW, watchdog=SHARP))
    assert done.returncode == 0, done.stderr
    cells = {cell["cell_id"]: cell for cell in night.status()["cells"]}
    slow, healthy = cells["c00064-b002"], cells["c00064-b001"]

    assert slow["verdict"] == "completed"
    assert slow["would_have"]["cause"] == "step_inflation"
    assert 0 < slow["would_have"]["after_s"] < slow["duration_s"]
    assert slow["would_have"]["evidence"]["step_inflation"] > 3
    assert healthy["would_have"] is None
    assert "would have been ended" in done.stdout

    recording = night.runs / "night" / "cells" / "c00064-b002" / "attempt-1" / "samples.jsonl"
    events = [line for line in map(json.loads, recording.read_text().splitlines()) if "event" in line]
    assert [event["event"] for event in events] == ["watch", "would_act", "released"]
    assert events[0]["observe"] is True


def test_the_time_limit_holds_all_the_same(night: Desk) -> None:
    plan = night.plan(batches=[1], faults={"*": "hang"}, cell_time_limit="2s", watchdog={"mode": "observe"})
    night.run(plan)

    assert night.verdicts() == {"c00064-b001": ("timed_out", "time_limit")}


def test_the_workers_own_timer_leaves_an_observed_cell_its_time(night: Desk) -> None:
    for mode, least_s in (("enforce", 60.0), ("observe", 4 * 3600.0)):
        body = {"mode": mode, "stall": {"soft": "1s", "hard": "2s"}}
        plan = load_plan(night.plan(batches=[1], cell_time_limit="4h", watchdog=body))
        settings = plan.settings(None)
        assert backstop_s(settings, resolve_limits(settings, 1 << 34, None)) == least_s


def test_after_a_pause_a_cell_warms_up_at_least_once(night: Desk) -> None:
    settings = load_plan(night.plan(batches=[1], warmup=0)).settings(None)
    limits = resolve_limits(settings, 1 << 34, None)
    model = ModelSource(config_json="{}")

    def warmups(*, cold: bool) -> int:
        task = Task(Cell(None, 64, 1), settings, 1, settings.repeats, Path("unused"))
        return attempt_spec(task, 1, model, limits, cold=cold).warmup

    assert (warmups(cold=False), warmups(cold=True)) == (0, 1)


def test_each_pause_is_on_record(night: Desk) -> None:
    night.run(night.plan(batches=[1, 2]))
    pauses = [event for event in night.journal() if event["event"] == "host.settled"]

    assert [pause["after"] for pause in pauses] == ["c00064-b001"]
    assert pauses[0]["waited_s"] > 0
    assert {"available_came_back_bytes", "swap_came_back_bytes", "wired_came_back_bytes"} <= pauses[0].keys()

"""Tests of what other thresholds would have done on recorded samples."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from simulated_cell import GB, HOST, Cell
from sweeps import Desk, desk

from orchestrator.errors import LedgerError, PlanError
from orchestrator.plan import load_watchdog
from orchestrator.recordings import recorded_lines
from orchestrator.replay import Difference, Effect, Moment, Played, compare, play
from orchestrator.thinning import thin
from orchestrator.watchdog.policy import Stop
from orchestrator.watchdog.recording import encode_sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestrator.watchdog.limits import Limits


def recorded(cell: Cell, name: str = "acted") -> list[dict[str, Any]]:
    """The recording of a simulated cell, with the event of its stop."""
    lines: list[dict[str, Any]] = [{"event": "watch", "at_s": 1000.0}]
    before = 0
    for sample, action in cell.played:
        lines.append(encode_sample(sample, before))
        before = sample.progress.total_steps if sample.progress else before
        if isinstance(action, Stop):
            lines.append({"event": name, "at_s": sample.monotonic_s, "cause": action.cause, "evidence": {}})
    return lines


def wall(limits: Limits = HOST) -> Cell:
    cell = Cell(limits, available_frac=0.03).run(20)
    return cell.run(60, step_s=2.0, swap_in=20e6, swap_out=200e6)


def healthy() -> Cell:
    return Cell(HOST).run(120)


def test_the_same_limits_do_what_was_done() -> None:
    cell = wall()
    played = play(recorded(cell), HOST)

    assert cell.stop is not None
    assert played.acted is not None
    assert played.replayed is not None
    assert played.replayed.cause == cell.stop.cause == "swap_growth"
    assert played.replayed.after_s == pytest.approx(played.acted.after_s, abs=0.11)  # recorded to the microsecond
    assert played.replayed.evidence["rule"] == cell.stop.evidence["rule"] == "slow and memory"
    assert compare(played, completed=False) == Difference(Effect.SAME)


def test_later_thresholds_end_it_later_or_not_within_what_was_recorded() -> None:
    patient = dataclasses.replace(HOST, corroborated_s=1000.0, swap_sustained_s=1000.0, inflation_sustained_s=1000.0)
    played = play(recorded(wall()), dataclasses.replace(patient, stall_hard_s=10_000.0, pressure_sustained_s=1000.0))
    difference = compare(played, completed=False)

    assert difference.effect is Effect.KEPT
    assert difference.at_least


def test_earlier_thresholds_save_the_difference() -> None:
    slow = dataclasses.replace(HOST, corroborated_s=8.0, swap_hard_bytes=400 * GB, inflation_hard=1e6)
    lines = recorded(wall(slow))
    played = play(lines, HOST)
    difference = compare(played, completed=False)

    assert played.acted is not None
    assert played.replayed is not None
    assert difference.effect is Effect.EARLIER
    assert difference.saved_s == pytest.approx(played.acted.after_s - played.replayed.after_s, abs=0.01)
    assert difference.saved_s == pytest.approx(7.0, abs=1.0)


def test_a_cell_that_only_a_sharp_watchdog_would_have_ended_is_named_lost() -> None:
    cell = Cell(HOST).run(20)
    cell.run(30, step_s=0.9)  # a co-tenant: 4.5 times, below the hard limit
    played = play(recorded(cell), dataclasses.replace(HOST, inflation_hard=3.0))

    assert cell.lives()
    assert compare(played, completed=True).effect is Effect.LOST
    assert compare(played, completed=False).effect is Effect.EARLIER


THEN = Moment("stalled", 50)


@pytest.mark.parametrize(
    ("played", "completed", "expected"),
    [
        (Played(None, False, None, 60, 600, False), True, Difference(Effect.SAME)),
        (Played(Moment("stalled", 50), False, None, 52, 520, False), False, Difference(Effect.KEPT, -2, True)),
        (Played(THEN, False, Moment("stalled", 20), 52, 520, False), False, Difference(Effect.EARLIER, 30)),
        (Played(THEN, False, Moment("stalled", 51), 52, 520, False), False, Difference(Effect.LATER, -1)),
        (Played(Moment("stalled", 50), True, None, 90, 900, False), True, Difference(Effect.KEPT)),
        (Played(Moment("stalled", 50), True, Moment("stalled", 50.1), 90, 900, False), True, Difference(Effect.SAME)),
        (Played(Moment("stalled", 50), True, Moment("stalled", 20), 90, 900, False), True, Difference(Effect.LOST, 70)),
        (Played(None, False, Moment("stalled", 20), 90, 900, False), False, Difference(Effect.EARLIER, 70)),
    ],
)  # fmt: skip
def test_what_a_difference_is_called(played: Played, completed: bool, expected: Difference) -> None:
    assert compare(played, completed=completed) == expected


def test_what_a_person_asked_for_is_no_act_of_the_watchdogs() -> None:
    lines = [*recorded(healthy()), {"event": "acted", "at_s": 1120.0, "cause": "interrupted", "evidence": {}}]

    assert play(lines, HOST).acted is None


def test_thinned_recordings_tell_the_same() -> None:
    quiet = Cell(HOST).run(400)
    lines = recorded(quiet)
    for _ in range(4):
        lines = thin(lines)
    assert play(lines, HOST).replayed is None
    assert play(lines, HOST).thinned

    cell = Cell(HOST, available_frac=0.03).run(100)
    cell.run(60, step_s=2.0, swap_in=20e6, swap_out=200e6)
    ended = recorded(cell)
    whole = play(ended, HOST)
    padded = thin([*ended, *[{"event": "padding", "at_s": 0.0}] * 700])  # so that even the end is old
    again = play(padded, HOST)

    assert whole.replayed is not None
    assert again.replayed is not None
    assert again.replayed.cause == whole.replayed.cause
    assert again.replayed.after_s == pytest.approx(whole.replayed.after_s, abs=1.0)


def test_a_torn_last_line_is_left_out_and_another_is_named(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b'{"event":"watch"}\n{"monotonic_s": 1.0, "boo')
    assert list(recorded_lines(path)) == [{"event": "watch"}]

    path.write_bytes(b'{"event":"watch"}\n[1, 2]\n{"event":"acted"}\n')
    with pytest.raises(LedgerError, match=r"samples.jsonl:2: is no sample"):
        list(recorded_lines(path))


@pytest.mark.parametrize(
    "text",
    [
        "watchdog: {stall: {hard: 7s, soft: 2s}}\n",
        "stall: {hard: 7s, soft: 2s}\n",
        "model: x\nwatchdog: {stall: {hard: 7s, soft: 2s}}\n",
    ],
)
def test_thresholds_come_from_a_plan_or_from_their_keys_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dog.yaml"
    path.write_text(text)

    assert load_watchdog(path).stall.hard_s == 7.0
    assert load_watchdog(path).step_inflation.hard == 6.0


def test_every_error_of_a_thresholds_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "dog.yaml"
    path.write_text("watchdog:\n  stall: {soft: 5}\n  swap_grwth: {soft: 1%}\n")
    with pytest.raises(PlanError) as caught:
        load_watchdog(path)

    assert [problem.partition("dog.yaml:")[2].split(":")[0] for problem in caught.value.problems] == ["2", "3"]
    path.write_text("- 1\n")
    with pytest.raises(PlanError, match="holds no thresholds"):
        load_watchdog(path)


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as held:
        yield held


def test_a_run_is_replayed_from_its_files(night: Desk, tmp_path: Path) -> None:
    dog = {"stall": {"soft": "1s", "hard": "6s"}}
    plan = night.plan(batches=[1, 2], faults={"c00064-b002": "hang"}, watchdog=dog)
    night.run(plan)
    (tmp_path / "sharp.yaml").write_text("stall: {soft: 1s, hard: 2s}\n")
    run = night.runs / "night"

    as_recorded = json.loads(night.call("replay", run, "--json").stdout)
    assert [(one["cell_id"], one["effect"]) for one in as_recorded["attempts"]] == [
        ("c00064-b001", "same"),
        ("c00064-b002", "same"),
    ]
    sharp = json.loads(night.call("replay", run, "--watchdog", tmp_path / "sharp.yaml", "--json").stdout)
    hung = sharp["attempts"][1]
    assert hung["effect"] == "earlier"
    assert hung["acted"]["cause"] == hung["replayed"]["cause"] == "stalled"
    assert hung["saved_s"] == pytest.approx(4.0, abs=0.6)

    told = night.call("replay", run, "--watchdog", tmp_path / "sharp.yaml")
    assert told.returncode == 0
    assert "earlier" in told.stdout
    (run / "cells" / "c00064-b001" / "attempt-1" / "samples.jsonl").unlink()
    assert "not replayed: no samples" in night.call("replay", run).stdout
    (run / "cells" / "c00064-b002" / "attempt-1" / "samples.jsonl").write_text('{"monotonic_s": 1}\n{}\n')
    broken = night.call("replay", run)
    assert broken.returncode == 2
    assert "samples.jsonl" in broken.stderr
    assert night.call("replay", run, "--watchdog", tmp_path / "nowhere.yaml").returncode == 2

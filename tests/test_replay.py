"""Tests of what other thresholds would have done on recorded samples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from simulated_cell import GB, HOST, Cell
from sweeps import Desk, desk

from orchestrator.errors import LedgerError, PlanError
from orchestrator.plan import Watchdog, load_watchdog
from orchestrator.recordings import recorded_limits, recorded_lines
from orchestrator.replay import Difference, Effect, Moment, Played, compare, play
from orchestrator.replaying import with_thresholds
from orchestrator.thinning import thin
from orchestrator.watchdog.limits import Limits
from orchestrator.watchdog.policy import Stop
from orchestrator.watchdog.recording import encode_sample

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    assert played.replayed.after_s == pytest.approx(played.acted.after_s, abs=1e-3)
    assert cell.stop.evidence["rule"] == "slow and memory"
    for name, value in cell.stop.evidence.items():  # recorded to the microsecond
        assert played.replayed.evidence[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-3))
    assert compare(played, "hit_the_wall") == Difference(Effect.SAME)


def test_later_thresholds_end_it_later_or_not_within_what_was_recorded() -> None:
    patient = dataclasses.replace(HOST, corroborated_s=1000.0, swap_sustained_s=1000.0, inflation_sustained_s=1000.0)
    played = play(recorded(wall()), dataclasses.replace(patient, stall_hard_s=10_000.0, pressure_sustained_s=1000.0))
    difference = compare(played, "hit_the_wall")

    assert difference.effect is Effect.KEPT
    assert difference.at_least


def test_earlier_thresholds_save_the_difference() -> None:
    slow = dataclasses.replace(HOST, corroborated_s=8.0, swap_hard_bytes=400 * GB, inflation_hard=1e6)
    lines = recorded(wall(slow))
    played = play(lines, HOST)
    difference = compare(played, "hit_the_wall")

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
    assert compare(played, "completed") == Difference(Effect.LOST, -played.lasted_s)
    assert compare(played, "hit_the_wall").effect is Effect.EARLIER


WALL, DONE = "hit_the_wall", "completed"


def ran(acted: float | None, replayed: float | None, lasted_s: float = 90, *, observed: bool = False) -> Played:
    """A recording of `lasted_s` with acts at these seconds."""
    moments = [None if at is None else Moment("stalled", at) for at in (acted, replayed)]
    return Played(moments[0], observed, moments[1], lasted_s, round(lasted_s * 10), False)


@pytest.mark.parametrize(
    ("played", "verdict", "expected"),
    [
        (ran(None, None), DONE, Difference(Effect.SAME)),
        (ran(None, None), None, Difference(Effect.SAME)),
        (ran(50, None, 52), WALL, Difference(Effect.KEPT, -2, at_least=True)),
        (ran(50, None, 52), DONE, Difference(Effect.KEPT)),  # it came too late to be ended
        (ran(50, 20, 52), WALL, Difference(Effect.EARLIER, 30)),
        (ran(50, 20, 52), DONE, Difference(Effect.LOST, -52)),
        (ran(50, 51, 52), WALL, Difference(Effect.LATER, -1)),
        (ran(50, None, observed=True), DONE, Difference(Effect.KEPT)),
        (ran(50, 50.1, observed=True), DONE, Difference(Effect.SAME)),
        (ran(50, 20, observed=True), DONE, Difference(Effect.LOST, -90)),
        (ran(50, 20, observed=True), "crashed", Difference(Effect.EARLIER, 70)),
        (ran(None, 20), "crashed", Difference(Effect.EARLIER, 70)),
        (ran(None, 20), "host_died", Difference(Effect.EARLIER, 70)),
        (ran(None, 20), DONE, Difference(Effect.LOST, -90)),
        (ran(None, 20), "interrupted", Difference(Effect.UNDECIDED)),
        (ran(None, 20), None, Difference(Effect.UNDECIDED)),
    ],
)  # fmt: skip
def test_what_a_difference_is_called(played: Played, verdict: str | None, expected: Difference) -> None:
    assert compare(played, verdict) == expected


def test_another_cause_at_the_same_moment_is_not_the_same() -> None:
    played = dataclasses.replace(ran(50, 50), replayed=Moment("swap_growth", 50.2))

    assert compare(played, WALL) == Difference(Effect.OTHER_CAUSE)


def test_moments_are_no_closer_than_the_ticks_that_were_recorded() -> None:
    played = dataclasses.replace(ran(50, 50), replayed=Moment("stalled", 53, near_s=4.0))

    assert compare(played, WALL).effect is Effect.SAME
    assert compare(ran(50, 53), WALL).effect is Effect.LATER


def test_what_a_person_asked_for_is_no_act_of_the_watchdogs() -> None:
    lines = [*recorded(healthy()), {"event": "acted", "at_s": 1120.0, "cause": "interrupted", "evidence": {}}]

    assert play(lines, HOST).acted is None


def test_what_comes_after_a_stop_by_a_person_says_nothing() -> None:
    """The worker stands still because it was told to; the event may be written before older samples."""
    cell = Cell(HOST).run(20).run(80, frozen=True)
    event = {"event": "acted", "at_s": 1020.5, "cause": "interrupted", "evidence": {}}
    lines = [line for line in recorded(cell) if line.get("event") != "acted"]

    assert cell.stop is not None
    assert play([lines[0], event, *lines[1:]], HOST).replayed is None
    assert play(lines, HOST).replayed is not None


def test_a_stop_that_the_next_sample_does_not_bear_out_is_none() -> None:
    """As live: the watchdog looks again before it acts."""
    limits = dataclasses.replace(HOST, stall_soft_s=1.0, stall_hard_s=2.0)
    cell = Cell(HOST).run(5).run(2.0, frozen=True)
    cell.progress_at_s = cell.now_s
    once = recorded(cell.run(5))
    late = recorded(Cell(HOST).run(5).run(3.0, frozen=True))

    assert play(once, limits).replayed is None
    observing = play([{**once[0], "observe": True}, *once[1:]], limits)  # which does not ask again
    assert observing.replayed is not None
    assert observing.replayed.cause == "stalled"
    assert play(late, limits).replayed is not None


def test_a_dead_worker_is_not_judged() -> None:
    cell = Cell(HOST).run(5)
    cell.state_letter = "Z"
    cell.run(100, frozen=True)
    lines = [line for line in recorded(cell) if line.get("event") != "acted"]

    assert cell.stop is not None
    assert play(lines, HOST).replayed is None


def test_samples_came_as_often_as_they_came_whatever_a_file_says() -> None:
    """Held against the 100 ms of a file, every gap of two seconds would be a pause of the watchdog."""
    cell = Cell(dataclasses.replace(HOST, sample_every_s=2.0)).run(60, tick_s=2.0).run(200, frozen=True, tick_s=2.0)
    played = play(recorded(cell), with_thresholds(Watchdog(), cell.limits))

    assert cell.stop is not None
    assert played.replayed is not None
    assert compare(played, WALL) == Difference(Effect.SAME)


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


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b'{"event":"watch","at_s":1.0}\n{"monotonic_s": 1.0, "boo')

    assert list(recorded_lines(path)) == [{"event": "watch", "at_s": 1.0}]


SAMPLE = '{"monotonic_s":1.0,"boottime_s":1.0,"late_s":0.0'


@pytest.mark.parametrize(
    "line",
    [
        "[1, 2]",
        "{",
        "[" * 5000,
        "\xff",
        '{"event":"watch"}',
        '{"event":1,"at_s":1.0}',
        '{"monotonic_s":1}',
        '{"monotonic_s":"1","boottime_s":1.0,"late_s":0.0}',
        SAMPLE + ',"every":0}',
        SAMPLE + ',"host":[1]}',
        SAMPLE + ',"host":{"swap_used_bytes":"much"}}',
        SAMPLE + ',"worker":{"state":1}}',
        SAMPLE + ',"progress":{}}',
    ],
)
def test_a_line_that_is_no_sample_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(f"{SAMPLE}}}\n{line}\n{SAMPLE}}}\n", encoding="latin-1")

    with pytest.raises(LedgerError, match=r"samples.jsonl:2: is no sample"):
        list(recorded_lines(path))


def test_a_file_without_line_ends_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 36)

    with pytest.raises(LedgerError, match=r"samples.jsonl:1: is no sample"):
        list(recorded_lines(path))


def test_limits_of_another_version_and_such_that_are_none() -> None:
    assert recorded_limits({"memory_bytes": 5, "of_a_later_version": 1}) == Limits(memory_bytes=5)
    for body in ({}, [], {"memory_bytes": "much"}, {"memory_bytes": 5, "pressure_level": "high"}):
        with pytest.raises(ValueError, match=r"memory_bytes|pressure_level|dict"):
            recorded_limits(body)


@pytest.mark.parametrize(
    "text",
    [
        "watchdog: {stall: {hard: 7s, soft: 2s}}\n",
        "stall: {hard: 7s, soft: 2s}\n",
        "model: x\nwatchdog: {stall: {hard: 7s, soft: 2s}}\n",
        "model: org/x\nbatches: [1]\nvariants: [{name: a}]\nwatchdog: {stall: {hard: 7s, soft: 2s}}\n",
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
    for text in ("- 1\n", "{}\n", "", "7\n"):
        path.write_text(text)
        with pytest.raises(PlanError, match="holds no thresholds"):
            load_watchdog(path)
    path.write_text("stal: {hard: 7s}\nstall: {soft: 9s, hard: 7s}\n")
    with pytest.raises(PlanError) as caught:
        load_watchdog(path)
    assert caught.value.problems == [
        f"{path}:1: stal: is not a key here; did you mean stall?",
        f"{path}:2: stall: soft is over hard; write soft at most as large as hard",
    ]
    path.write_text("modl: x\nwatchdog: {stall: {hard: 70s}}\n")
    with pytest.raises(PlanError, match=r"dog.yaml:1: modl: is not a key here; did you mean model"):
        load_watchdog(path)


def test_a_plan_without_thresholds_has_the_defaults(tmp_path: Path) -> None:
    assert load_watchdog(Path(__file__).parent.parent / "configs" / "smoke.yaml") == Watchdog()


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as held:
        yield held


@pytest.mark.slow
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
    healthy = run / "cells" / "c00064-b001" / "attempt-1" / "samples.jsonl"
    hanging = run / "cells" / "c00064-b002" / "attempt-1" / "samples.jsonl"

    # As recordings were before they had events: limits and act are in result.json.
    lines = hanging.read_text().splitlines(keepends=True)
    hanging.write_text("".join(line for line in lines if '"event"' not in line))
    older = json.loads(night.call("replay", run, "--cell", "*b002", "--json").stdout)
    (old,) = older["attempts"]
    assert (old["effect"], old["acted"]["cause"]) == ("same", "stalled")
    assert older["summary"] == {"effects": {"same": 1}, "not_replayed": 0, "saved_s": 0.0, "lost_s": 0.0}
    assert old["acted"]["after_s"] == pytest.approx(hung["acted"]["after_s"], abs=0.2)

    healthy.unlink()
    (healthy.parent.parent / "attempt-1.bak").mkdir()
    assert "not replayed: no recording" in night.call("replay", run).stdout
    hanging.write_text(f"{lines[0]}{lines[1]}{{}}\n")
    broken = night.call("replay", run)
    assert broken.returncode == 2
    assert "samples.jsonl:3: is no sample" in broken.stderr
    hanging.write_text('{"event":"watch","at_s":1.0,"limits":{}}\n')
    assert "samples.jsonl:1: holds no limits" in night.call("replay", run).stderr
    for arguments, words in ((("--watchdog", "nowhere.yaml"), "nowhere.yaml"), (("--cell", "c9*"), "--cell: c9*")):
        refused = night.call("replay", run, *arguments)
        assert refused.returncode == 2
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_completed_cell_that_would_be_lost_is_told(night: Desk, tmp_path: Path) -> None:
    night.run(night.plan(batches=[2], gen_tokens=24, faults={"c00064-b002": "slow:150"}))
    (tmp_path / "sharp.yaml").write_text("step_inflation: {soft: 2, hard: 3, sustained: 200ms}\n")

    document = json.loads(
        night.call("replay", night.runs / "night", "--watchdog", tmp_path / "sharp.yaml", "--json").stdout
    )
    (lost,) = document["attempts"]
    assert (lost["verdict"], lost["effect"], lost["replayed"]["cause"]) == ("completed", "lost", "step_inflation")
    assert document["summary"]["lost_s"] == lost["lasted_s"] == -lost["saved_s"]
    told = night.call("replay", night.runs / "night", "--watchdog", tmp_path / "sharp.yaml").stdout
    assert "COMPLETED CELL LOST" in told
    assert "0.0 s saved, and" in told

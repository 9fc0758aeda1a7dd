"""The sentinel: a reference cell measured again, and what becomes of the cells beside a change of the host."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from sweeps import desk

from orchestrator.history import History
from orchestrator.records import CellRecord, Metrics, Verdict
from orchestrator.sentinel import drift

if TYPE_CHECKING:
    from pathlib import Path


def record(
    tps: float | None = 100.0, low: float | None = 98.0, high: float | None = 102.0, **changes: Any
) -> CellRecord:
    plain = CellRecord(
        cell_id="c00064-b001",
        variant=None,
        context=64,
        batch=1,
        attempt=1,
        verdict=Verdict.COMPLETED,
        valid=True,
        metrics=Metrics(reps=3, generation_tps=tps, generation_tps_low=low, generation_tps_high=high),
    )
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize(
    ("again", "drifted"),
    [
        (record(), False),
        (record(96.0, 94.0, 97.0), False),  # apart, but by less than 5 %
        (record(90.0, 80.0, 99.0), False),  # 10 %, but within the noise
        (record(90.0, 88.0, 92.0), True),
        (record(110.0, 108.0, 112.0), True),  # faster is a change too: the first time was the slow one
        (record(90.0, None, None), True),  # one repetition has no interval
        (record(97.0, None, None), False),
        (record(None, None, None, verdict=Verdict.HIT_THE_WALL, cause="swap_growth"), True),
        (record(None, None, None, verdict=Verdict.CRASHED), True),
    ],
)
def test_what_is_a_change_of_the_host(again: CellRecord, drifted: bool) -> None:
    found = drift(record(), again)
    assert found.drifted is drifted
    assert bool(found.why) is drifted


def event(kind: str, **body: Any) -> dict[str, Any]:
    return {"event": kind, "at": "2026-01-01T00:00:00.000Z", **body}


def ended(cell_id: str, **changes: Any) -> dict[str, Any]:
    return event("cell.ended", record=record(cell_id=cell_id, **changes).to_json())


def sentinel(number: int, doubtful: list[str], *, drifted: bool) -> dict[str, Any]:
    return event(
        "sentinel.ended",
        number=number,
        cell_id="a",
        ratio=0.8 if drifted else 1.0,
        drifted=drifted,
        why="",
        doubtful=doubtful,
        record=record(cell_id="a").to_json(),
    )


def test_the_journal_says_which_cells_lie_beside_a_change() -> None:
    history = History()
    history.apply(ended("invalid first", valid=False, invalid_reasons=("noisy",)))
    history.apply(ended("a"))
    history.apply(ended("b"))
    assert history.reference is not None
    assert history.reference.cell_id == "a"  # the first that is valid
    assert history.unguarded == ["invalid first", "b"]
    history.apply(sentinel(1, [], drifted=False))
    history.apply(ended("c"))
    history.apply(ended("d", valid=False, invalid_reasons=("noisy",)))
    history.apply(sentinel(2, ["c", "d"], drifted=True))
    assert history.drifted
    assert history.unguarded == []
    assert history.counting("b")[-1].valid
    assert history.counting("c")[-1].invalid_reasons == ("drifted",)
    assert history.counting("d")[-1].invalid_reasons == ("noisy", "drifted")
    history.apply(sentinel(3, [], drifted=False))
    assert not history.drifted
    assert [mark.number for mark in history.sentinels] == [1, 2, 3]


def test_a_sentinel_that_stays_the_same_marks_nothing(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(batches=[1, 2, 3, 4, 5], sentinel=2, gen_tokens=64, reps=2, warmup=1)  # two are not judged noisy
        done = at.run(plan, "--plain")
        assert done.returncode == 0, done.stderr
        marks = [line for line in at.journal() if line["event"] == "sentinel.ended"]
        # After the reference come four cells: one sentinel for two of them each.
        assert [mark["number"] for mark in marks] == [1, 2]
        assert {mark["cell_id"] for mark in marks} == {"c00064-b001"}
        assert (at.runs / "night/sentinel/attempt-2/result.json").is_file()
        assert [cell["attempts"] for cell in at.status()["cells"]] == [1] * 5
        for mark in marks:  # a busy machine may be a changed one; then it says so
            assert mark["drifted"] is (abs(mark["ratio"] - 1) > 0.05 and bool(mark["why"]))


def test_a_host_that_became_slower_is_noticed_and_its_cells_are_marked(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        # "#2" is a cell's second attempt, and the second sentinel.
        plan = at.plan(
            batches=[1, 2, 3, 4, 5, 6, 7], sentinel=2, gen_tokens=40, reps=2, faults={"c00064-b001#2": "slow:5"}
        )
        done = at.run(plan, "--plain", "--fail-on", "invalid")
        assert done.returncode == 1, done.stderr
        marks = {line["number"]: line for line in at.journal() if line["event"] == "sentinel.ended"}
        assert marks[2]["drifted"]
        assert marks[2]["ratio"] < 0.5
        assert marks[2]["doubtful"] == ["c00064-b004", "c00064-b005"]
        document = at.status()
        cells = {cell["batch"]: cell for cell in document["cells"]}
        # Those before the change, and those after it until the reference is itself again.
        assert all("drifted" in cells[batch]["invalid_reasons"] for batch in (4, 5, 6, 7))
        assert [mark["drifted"] for mark in document["sentinels"]][1] is True
        # They can be asked for again.
        again = at.resume("night", "--retry", "invalid")
        assert again.returncode in (0, 1), again.stderr
        assert {cell["batch"]: cell["attempts"] for cell in at.status()["cells"]}[4] == 2


def test_a_sentinel_that_was_cut_off_keeps_its_folder_and_is_taken_again(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        at.run(at.plan(batches=[1, 2, 3], sentinel=2, reps=1), "--plain")
        # As a machine that goes down leaves it: begun, and no end.
        journal = at.runs / "night/journal.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        end = next(number for number, line in enumerate(lines) if b'"sentinel.ended"' in line)
        journal.write_bytes(b"".join(lines[:end]))
        kept = at.runs / "night/sentinel/attempt-1/result.json"
        before = kept.read_bytes()
        again = at.run(at.plan(batches=[1, 2, 3, 4], sentinel=2, reps=1), "--plain", "--extend")
        assert again.returncode == 0, again.stderr
        assert kept.read_bytes() == before
        numbers = [line["number"] for line in at.journal() if line["event"] == "sentinel.ended"]
        assert numbers == [2, 3]


def test_a_resumed_sweep_first_looks_whether_the_host_is_the_same(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        at.run(at.plan(batches=[1, 2], sentinel=9, reps=1), "--plain")
        at.run(at.plan(batches=[1, 2, 3], sentinel=9, reps=1), "--plain", "--extend")
        events = [line["event"] for line in at.journal()]
        second = events[events.index("plan.changed") :]
        assert second.index("sentinel.ended") < second.index("cell.started")

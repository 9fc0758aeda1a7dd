"""`interleave: true`: repetitions of all cells in turn, each in a process of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sweeps import desk, wait_until

if TYPE_CHECKING:
    from pathlib import Path

CELLS = ["c00064-b001", "c00064-b002", "c00064-b004"]


def test_every_round_takes_one_repetition_of_every_cell(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        done = at.run(at.plan(interleave=True, reps=3), "--plain")
        assert done.returncode == 0, done.stderr
        started = [line["cell_id"] for line in at.journal() if line["event"] == "cell.started"]
        assert started == CELLS * 3
        records = [line["record"] for line in at.journal() if line["event"] == "cell.ended"]
        assert [record["partial"] for record in records] == [True] * 6 + [False] * 3
        for cell in at.status()["cells"]:
            assert (cell["verdict"], cell["attempts"]) == ("completed", 3)
            assert len(cell["rep_tps"]) == 3
        for attempt in (1, 2, 3):
            result = json.loads((at.runs / f"night/cells/c00064-b002/attempt-{attempt}/result.json").read_bytes())
            assert len(result["reps"]) == 1


def test_a_wall_ends_a_cell_s_turns_and_those_it_speaks_for(tmp_path: Path) -> None:
    faults = {"c00064-b002#2": "abort:oom"}
    with desk(tmp_path) as at:
        done = at.run(at.plan(interleave=True, reps=3, after_wall="skip_dominated", faults=faults), "--plain")
        assert done.returncode == 0, done.stderr
        assert at.verdicts() == {
            "c00064-b001": ("completed", None),
            "c00064-b002": ("hit_the_wall", "metal_oom"),
            "c00064-b004": ("skipped", None),
        }
        wall = next(cell for cell in at.status()["cells"] if cell["batch"] == 2)
        assert len(wall["rep_tps"]) == 1  # what its first turn measured is kept


def test_a_crash_in_a_turn_can_be_tried_again(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        at.run(at.plan(interleave=True, reps=2, faults={"c00064-b002#2": "segfault"}), "--plain")
        assert at.verdicts()["c00064-b002"] == ("crashed", "sigsegv")
        again = at.resume("night", "--retry", "crashed")
        assert again.returncode == 0, again.stderr
        assert {verdict for verdict, _ in at.verdicts().values()} == {"completed"}


def test_a_sweep_that_was_killed_keeps_its_turns(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        sweep = at.start("run", at.plan(interleave=True, reps=3), "-o", at.runs, "--plain")
        journal = at.runs / "night/journal.jsonl"
        wait_until(lambda: journal.exists() and journal.read_bytes().count(b'"cell.ended"') >= 4)
        sweep.kill()
        sweep.communicate()
        wait_until(lambda: not at.left_behind())
        assert {cell["verdict"] for cell in at.status()["cells"]} == {None}
        again = at.resume("night")
        assert again.returncode == 0, again.stderr
        cells = at.status()["cells"]
        assert [len(cell["rep_tps"]) for cell in cells] == [3, 3, 3]
        assert sum(cell["attempts"] for cell in cells) <= 10  # nine, and the one that was cut off


def test_repetitions_go_on_until_they_agree(tmp_path: Path) -> None:
    reps = {"min": 2, "max": 5, "until_cv": 1e-6, "max_time": "5m"}
    with desk(tmp_path) as at:
        done = at.run(at.plan(batches=[1], interleave=True, reps=reps), "--plain")
        assert done.returncode == 0, done.stderr
        (cell,) = at.status()["cells"]
        assert cell["attempts"] == len(cell["rep_tps"]) == 5

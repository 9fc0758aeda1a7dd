"""A run directory is there whole or not at all; and the files in it that are replaced in one step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from orchestrator.durable import replace_file
from orchestrator.errors import LedgerError
from orchestrator.run_directory import RunDirectory, create, find
from orchestrator.worker_log import CAP_BYTES, HEAD_BYTES, TAIL_BYTES, WorkerLog

if TYPE_CHECKING:
    from pathlib import Path


def test_a_new_run_is_whole(tmp_path: Path) -> None:
    run = create(tmp_path / "runs", "night", "model: x\n", {"chip": "y"})
    assert sorted(path.name for path in run.path.iterdir()) == [
        "cells",
        "host.json",
        "journal.jsonl",
        "plan.yaml",
    ]
    assert run.plan_path.read_text() == "model: x\n"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["night"]
    assert find("night", tmp_path / "runs") == find(str(run.path)) == run


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError):
        create(tmp_path, "night", "", {})
    assert [path.name for path in tmp_path.iterdir()] == ["night"]
    assert (tmp_path / "night" / "thesis.txt").read_text() == "years of work"
    with pytest.raises(LedgerError, match="is no run directory"):
        find(str(tmp_path / "night"))


def test_what_a_killed_start_left_is_taken_away_and_a_living_ones_is_not(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".night.999999999.new", tmp_path / f".night.{os.getppid()}.new"
    dead.mkdir()
    alive.mkdir()
    create(tmp_path, "night", "", {})
    assert not dead.exists()
    assert alive.exists()


def test_a_run_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    create(tmp_path, "monday", "", {})
    with pytest.raises(LedgerError, match=r"tuesday: is not there; runs in .*: monday"):
        find("tuesday", tmp_path)


def test_an_output_dir_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((LedgerError, FileExistsError)):
        create(tmp_path / "file", "night", "", {})
    assert (tmp_path / "file").read_text() == ""


def test_adding_cells_keeps_the_earlier_plan(tmp_path: Path) -> None:
    run = create(tmp_path, "night", "old", {})
    run.freeze_plan("new")
    run.freeze_plan("newer")
    assert run.plan_path.read_text() == "newer"
    assert (run.path / "plan-1.yaml").read_text() == "old"
    assert (run.path / "plan-2.yaml").read_text() == "new"


def test_a_replacement_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    replace_file(path, b"old")
    path.with_name(f".result.json.{os.getpid()}.tmp").mkdir()  # in the way of the temporary file
    with pytest.raises(OSError, match="directory"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_an_attempts_folder_is_made_below_its_cell(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path).attempt_folder("kv8/c00064-b001", 2)
    assert folder == tmp_path / "cells" / "kv8" / "c00064-b001" / "attempt-2"
    assert folder.is_dir()


def test_a_flood_is_capped_and_its_head_and_tail_are_kept(tmp_path: Path) -> None:
    log = WorkerLog(tmp_path / "worker.log")
    os.write(log.fd, b"first words\n")
    for _ in range(3):
        os.write(log.fd, b"x" * CAP_BYTES)
        log.trim()
        assert (tmp_path / "worker.log").stat().st_size <= CAP_BYTES
    os.write(log.fd, b"\xff last words")
    assert log.tail().endswith("\ufffd last words")
    log.close()
    kept = (tmp_path / "worker.log").read_bytes()
    assert kept.startswith(b"first words\n")
    assert kept.endswith(b"\xff last words")
    assert b"bytes of output cut here" in kept
    assert len(kept) <= HEAD_BYTES + TAIL_BYTES + 100


def test_a_short_log_is_kept_as_it_is(tmp_path: Path) -> None:
    log = WorkerLog(tmp_path / "worker.log")
    os.write(log.fd, b"one line\n")
    assert log.tail() == "one line\n"
    log.close()
    assert (tmp_path / "worker.log").read_bytes() == b"one line\n"

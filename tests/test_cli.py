"""The command line: what it prints where, and which exit code it gives. Real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import desk

REPOSITORY = Path(__file__).parent.parent


def test_help_and_version_say_what_there_is(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        told = at.call("--help")
        assert told.returncode == 0
        assert all(command in told.stdout for command in ("run", "resume", "plan", "status"))
        assert at.call("--version").stdout.startswith("wallfinder, version ")


def test_the_table_is_data_and_progress_is_not(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        done = at.run(at.plan(batches=[1]))
        assert done.returncode == 0
        assert "c00064-b001" in done.stdout
        assert "completed" in done.stdout
        assert "started" in done.stderr
        assert "started" not in done.stdout


def test_status_of_a_run_by_folder_and_by_name(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        at.run(at.plan(batches=[1]))
        by_folder = at.call("status", at.runs / "night")
        by_name = at.call("status", "night", "-o", at.runs)
        assert by_folder.returncode == by_name.returncode == 0
        assert by_folder.stdout == by_name.stdout
        assert "c00064-b001" in by_folder.stdout


def test_status_of_a_run_that_is_not_there(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        told = at.call("status", at.runs / "absent")
        assert told.returncode == 2
        assert "is not there" in told.stderr
        assert "Traceback" not in told.stderr


def test_a_sweep_without_a_file(tmp_path: Path) -> None:
    """Options alone; the model is not there, which the cells tell."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    with desk(tmp_path) as at:
        options = ("-m", model, "-b", "1,2", "-c", "16", "-g", "4", "-n", "1", "--name", "quick", "-o", at.runs)
        done = at.call("run", *options)
        assert done.returncode == 1, done.stderr
        assert [verdict for verdict, _ in at.verdicts("quick").values()] == ["failed", "failed"]
        assert "No safetensors" in at.status("quick")["cells"][0]["detail"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "-m/--model"),
        (["-m", "org/x", "-b", "1"], "-c/--contexts"),
        (["-m", "org/x", "-b", "0", "-c", "64"], "-b/--batches"),
        (["-m", "org/x", "-b", "one", "-c", "64"], "1,2,4"),
        (["PLAN", "-b", "1"], "not both"),
        (["PLAN", "--name", "a/b"], "--name"),
        (["absent.yaml"], "absent.yaml"),
    ],
)
def test_wrong_usage_is_told_with_its_flag(tmp_path: Path, arguments: list[str], words: str) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(batches=[1])
        told = at.call("run", *(plan if word == "PLAN" else word for word in arguments), "-o", at.runs)
        assert told.returncode == 2
        assert words in told.stderr
        assert "Traceback" not in told.stderr
        assert not at.runs.exists()


def test_all_errors_of_a_plan_at_once_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("model: org/x\nbatchs: [1]\ncontexts: [64, 0]\nreps: 010\n")
    with desk(tmp_path) as at:
        told = at.run(tmp_path / "bad.yaml")
        assert told.returncode == 2
        for line, key in ((2, "batchs"), (3, "contexts"), (4, "reps")):
            assert f"bad.yaml:{line}: {key}" in told.stderr
        assert not at.runs.exists()


def test_the_schema_is_json_and_the_dry_run_runs_nothing(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        schema = json.loads(at.call("plan", "--schema").stdout)
        assert "batches" in schema["properties"]
        shown = at.call("plan", REPOSITORY / "configs" / "origin.yaml")
        assert shown.returncode == 0, shown.stderr
        assert "c16384-b016" in shown.stdout
        document = json.loads(at.call("plan", REPOSITORY / "configs" / "origin.yaml", "--json").stdout)
        assert len(document["cells"]) == 24
        assert not at.runs.exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder belongs")
    with desk(tmp_path) as at:
        told = at.run(at.plan(batches=[1]))
        assert told.returncode == 2
        assert "--output-dir" in told.stderr or "runs" in told.stderr
        assert "Traceback" not in told.stderr


def test_a_closed_stdout_loses_nothing(tmp_path: Path) -> None:
    """`wallfinder run PLAN | head -1`: the sweep goes on, and its record is whole."""
    with desk(tmp_path) as at:
        process = at.start("run", at.plan(batches=[1, 2]), "-o", at.runs)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        process.wait(timeout=60)
        assert at.status()["state"] == "complete"
        process.stdout = process.stderr = None


@pytest.mark.parametrize("redirection", ["2>&-", ">&-", ">/dev/full", "<&-"])
def test_streams_that_are_closed_or_full_cost_no_cell(tmp_path: Path, redirection: str) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(batches=[1])
        line = f"exec {sys.executable} -m orchestrator run {plan} -o {at.runs} {redirection}"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert at.verdicts() == {"c00064-b001": ("completed", None)}


def test_output_that_is_lost_is_told(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        at.run(at.plan(batches=[1]))
        line = f"exec {sys.executable} -m orchestrator status {at.runs / 'night'} --json >/dev/full"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == "wallfinder: the output could not be written\n"


def test_a_name_that_is_too_long_is_told(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        told = at.call("status", "x" * 300)
        assert told.returncode == 2
        assert "cannot be read" in told.stderr
        assert "Traceback" not in told.stderr

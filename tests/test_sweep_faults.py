"""Every fault that a worker can have ends in its verdict, and the sweep goes on. Real processes, the test engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sweeps import desk

if TYPE_CHECKING:
    from pathlib import Path

# Thresholds of seconds, so that the whole table takes a minute.
WATCHDOG = {
    "sample_every": "50ms",
    "step_inflation": {"soft": 2.5, "hard": 6, "sustained": "500ms"},
    "stall": {"soft": "1s", "hard": "2s"},
}

# fault -> verdict, cause, a word that the sentence for people has to hold
FAULTS: dict[str, tuple[str, str | None, str]] = {
    "hang@decode:deaf": ("timed_out", "stalled", ""),
    "hang@prefill:polite": ("timed_out", "stalled", ""),
    "hang_gil@decode:deaf": ("timed_out", "stalled", ""),
    "spin@decode": ("timed_out", "stalled", ""),
    "slow@decode:400": ("hit_the_wall", "step_inflation", ""),
    "segfault@decode": ("crashed", "sigsegv", "SIGSEGV"),
    "segfault@load": ("crashed", "sigsegv", "load"),
    "abort@decode:oom": ("hit_the_wall", "metal_oom", ""),
    "abort@decode:timeout": ("crashed", "gpu_timeout", ""),
    "abort@decode:resource": ("crashed", "metal_resource_limit", ""),
    "error@decode": ("hit_the_wall", "metal_oom", ""),
    "memory_error@decode": ("hit_the_wall", None, ""),
    "exit@decode:7": ("crashed", None, "7"),
    "exit@decode:0": ("crashed", "no_result", ""),
    "flood@decode:40": ("completed", None, ""),
    "garbage@decode": ("completed", None, ""),
    "torn@decode": ("crashed", "torn_result", ""),
    "early_death": ("crashed", "died_at_start", ""),
    "sigkill@decode": ("crashed", "killed", "SIGKILL"),
    "grandchild@decode": ("completed", None, ""),
    "exit_hang": ("completed", None, ""),
    "stderr_after_done": ("completed", None, ""),
    "nonsense": ("failed", "bad_fault", "nonsense"),
}


@pytest.mark.slow
def test_each_fault_ends_in_its_verdict_and_the_sweep_goes_on(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        faults = {f"c00064-b{n:03d}": fault for n, fault in enumerate(FAULTS, start=1)}
        batches = [*range(1, len(FAULTS) + 1), 500]
        plan = at.plan(batches=batches, faults=faults, watchdog=WATCHDOG, gen_tokens=12)
        done = at.run(plan)
        cells = {cell["cell_id"]: cell for cell in at.status()["cells"]}
        wrong = []
        for cell_id, fault in faults.items():
            verdict, cause, word = FAULTS[fault]
            cell = cells[cell_id]
            if cell["verdict"] != verdict or (cause and cell["cause"] != cause) or word not in cell["detail"]:
                wrong.append(f"{fault}: {cell['verdict']}: {cell['cause']}: {cell['detail']}")
        assert not wrong, "\n".join(wrong)
        assert cells["c00064-b500"]["verdict"] == "completed", "the sweep went on to its last cell"
        assert done.returncode == 1, done.stderr
        logs = at.runs.glob("night/cells/*/attempt-1/worker.log")
        assert max(path.stat().st_size for path in logs) < 3_000_000


def test_what_was_measured_before_a_fault_is_kept(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        at.run(at.plan(batches=[2], faults={"c00064-b002": "segfault@decode"}, reps=3, gen_tokens=6))
        cell = at.status()["cells"][0]
        assert (cell["verdict"], cell["phase"]) == ("crashed", "decode")
        assert (at.runs / "night/cells/c00064-b002/attempt-1/result.json").is_file()


def test_a_crash_is_retried_as_the_plan_says_and_a_failure_is_not(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(
            batches=[1, 2],
            retries={"crashed": 2, "failed": 0},
            faults={"c00064-b001": "segfault", "c00064-b002": "nonsense"},
        )
        at.run(plan)
        attempts = {cell["cell_id"]: cell["attempts"] for cell in at.status()["cells"]}
        assert attempts == {"c00064-b001": 3, "c00064-b002": 1}


def test_a_crash_that_does_not_come_again_is_forgiven(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        done = at.run(at.plan(batches=[1], retries={"crashed": 1}, faults={"c00064-b001#1": "segfault"}))
        assert at.verdicts() == {"c00064-b001": ("completed", None)}
        assert done.returncode == 0


def test_a_memory_wall_skips_what_it_dominates_and_the_sweep_exits_0(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(
            batches=[1, 2, 4],
            contexts=[64, 128],
            after_wall="skip_dominated",
            order="safest_first",
            faults={"c00064-b002": "abort:oom"},
        )
        done = at.run(plan)
        cells = {cell["cell_id"]: cell for cell in at.status()["cells"]}
        assert {k: v["verdict"] for k, v in cells.items()} == {
            "c00064-b001": "completed",
            "c00064-b002": "hit_the_wall",
            "c00064-b004": "skipped",
            "c00128-b001": "completed",
            "c00128-b002": "skipped",
            "c00128-b004": "skipped",
        }
        assert cells["c00128-b004"]["dominated_by"] == "c00064-b002"
        assert done.returncode == 0, done.stderr
        assert at.call("resume", at.runs / "night", "--fail-on", "wall").returncode == 1


def test_a_model_that_does_not_load_stops_its_variant_only(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        model = tmp_path / "model"
        model.mkdir()
        (model / "config.json").write_text('{"model_type": "llama"}')
        other = {"name": "other", "model": str(model), "engine": "batched"}
        done = at.run(at.plan(batches=[1, 2], variants=[other, {"name": "fine"}]))
        cells = {cell["cell_id"]: cell for cell in at.status()["cells"]}
        assert [cells[f"other/c00064-b00{n}"]["verdict"] for n in (1, 2)] == ["failed", "failed"]
        assert [cells[f"other/c00064-b00{n}"]["attempts"] for n in (1, 2)] == [1, 0]
        assert "No safetensors found" in cells["other/c00064-b001"]["detail"]
        assert [cells[f"fine/c00064-b00{n}"]["verdict"] for n in (1, 2)] == ["completed", "completed"]
        assert done.returncode == 1


def test_a_grandchild_that_holds_the_pipe_is_ended_with_its_group(tmp_path: Path) -> None:
    with desk(tmp_path) as at:  # the desk fails the test where a process is left
        at.run(at.plan(batches=[1], faults={"c00064-b001": "grandchild@decode"}))
        assert at.verdicts() == {"c00064-b001": ("completed", None)}


def test_a_cell_that_timed_out_fails_the_run_where_that_is_asked_for(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(batches=[1], faults={"*": "hang:polite"}, cell_time_limit="2s")
        assert at.run(plan).returncode == 0
        assert at.verdicts() == {"c00064-b001": ("timed_out", "time_limit")}
        assert at.resume("night", "--fail-on", "timed_out").returncode == 1

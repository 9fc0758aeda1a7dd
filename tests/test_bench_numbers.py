"""The benchmarks of what Wallfinder's numbers are worth and cost: real runs in their smallest form, sums by tables."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from test_bench import bench

from bench import fidelity, sweep_cost
from bench.fidelity import BARE, CELL, MLX_LM, Rep
from worker.protocol import RepResult

REPOSITORY = Path(__file__).parent.parent
linux = pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks are measured on Linux")


# -- fidelity


@linux
@pytest.mark.slow
def test_three_ways_make_the_same_tokens(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    sizes = ("--batches", "2", "--sessions", "1", "--rounds", "3", "--hidden-size", "64")
    done = bench("fidelity", *sizes, "--json", found)

    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(found.read_text(encoding="utf-8"))
    (measured,) = document["batches"]
    assert 0 < document["added_per_step_s"] < min(min(rep["step_s"]) for rep in measured["rounds"][0].values())
    assert measured["batch"] == 2
    assert [set(each) for each in measured["rounds"]] == [{CELL, BARE, MLX_LM}] * 3
    reps = [rep for each in measured["rounds"] for rep in each.values()]
    assert {(rep["tokens"], len(rep["step_s"])) for rep in reps} == {(2 * fidelity.TOKENS, fidelity.TOKENS - 1)}
    assert len({rep["digest"] for rep in reps}) == 1
    one = fidelity.Batch(2, [{name: Rep(**rep) for name, rep in each.items()} for each in measured["rounds"]])
    for name, ratios in fidelity.ratios(one).items():
        assert all(0 < ratio < math.inf for ratio in ratios), name
    for rep in reps:  # what mlx-lm divides by holds the window, and more
        assert rep["generation_s"] is None or rep["generation_s"] >= sum(rep["step_s"])


def rep(step_s: float, generation_s: float | None = None) -> Rep:
    return Rep([step_s] * 4, generation_s, tokens=10, digest="d")


def test_ratios_are_of_neighbours() -> None:
    rounds = [
        {CELL: rep(0.1, 1.0), BARE: rep(0.1), MLX_LM: rep(0.2, 0.5)},
        {CELL: rep(0.4, 2.0), BARE: rep(0.2), MLX_LM: rep(0.4, 2.0)},
    ]

    found = fidelity.ratios(fidelity.Batch(2, rounds))

    assert found["cell / bare loop"] == pytest.approx([1.0, 0.5])
    assert found["cell / bare loop, quick quarter of steps"] == pytest.approx([1.0, 0.5])
    assert found["cell / batch_generate"] == pytest.approx([2.0, 1.0])
    assert found["cell / batch_generate, by mlx-lm's formula"] == pytest.approx([0.5, 1.0])
    assert found["bare loop / itself"] == pytest.approx([0.5])


def test_a_slow_step_is_in_the_rate_and_not_in_the_quick_quarter() -> None:
    slowed = Rep([0.1, 0.1, 0.1, 0.7], 1.0, tokens=10, digest="d")
    rounds = [{CELL: slowed, BARE: rep(0.1), MLX_LM: rep(0.1, 1.0)}] * 2

    found = fidelity.ratios(fidelity.Batch(2, rounds))

    assert found["cell / bare loop"] == pytest.approx([0.4, 0.4])
    assert found["cell / bare loop, quick quarter of steps"] == pytest.approx([1.0, 1.0])


def test_both_formulas() -> None:
    one = rep(0.5, 2.5)  # two rows of five tokens each: four steps after the first

    assert fidelity.tps(2, one) == 8 / 2.0
    assert fidelity.mlx_lm_tps(one) == 10 / 2.5
    assert math.isnan(fidelity.mlx_lm_tps(rep(0.5)))


def test_what_mlx_lm_divides_by_is_prefill_without_its_chunks_and_the_window() -> None:
    made = fidelity.rep_of(result(prefill_s=1.0, chunk_s=[0.5, 0.2, 0.1], step_s=[0.25, 0.25]))

    assert made.step_s == [0.25, 0.25]
    assert made.generation_s == pytest.approx(0.3 + 0.5)


def test_sessions_are_merged_by_batch() -> None:
    first, second, third = ({CELL: rep(s)} for s in (0.1, 0.2, 0.3))
    sessions = [fidelity.Batch(1, [first]), fidelity.Batch(4, [second]), fidelity.Batch(1, [third])]

    assert fidelity.merged(sessions) == [fidelity.Batch(1, [first, third]), fidelity.Batch(4, [second])]


def result(**values: Any) -> RepResult:
    rest = ("rep", "prompt_tokens", "prefill_peak_bytes", "decode_peak_bytes", "active_bytes", "cache_bytes")
    zeros = dict.fromkeys((*rest, "kv_cache_bytes", "started_s", "ended_s"), 0)
    made = {"rows_per_step": [], "generated_tokens": 0, "finite_logits": True, "constant_logits": False}
    return RepResult(**{**zeros, **made, **values})


# -- sweep_cost


def test_the_grid_is_twelve_cells() -> None:
    grid = sweep_cost.Grid(sweep_cost.BATCHES, sweep_cost.CONTEXTS, reps=3)

    assert len(set(grid.cells())) == 12


@linux
@pytest.mark.slow
def test_both_ways_do_every_cell(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    done = bench("sweep_cost", "--rounds", "1", "--contexts", "1", "--reps", "2", "--json", found)

    assert done.returncode == 0, done.stdout + done.stderr
    (one,) = json.loads(found.read_text(encoding="utf-8"))
    rows = sum(sweep_cost.BATCHES)
    assert one["swept"]["tokens"] == rows * sweep_cost.TOKENS * 2
    assert len(one["looped"]["trials_s"]) == 3 * 2
    assert 0 < sum(one["looped"]["trials_s"]) < one["looped"]["wall_s"]
    shares = one["swept"]["shares_s"]
    assert tuple(shares) == sweep_cost.SHARES
    assert sum(shares.values()) == pytest.approx(one["swept"]["wall_s"])
    assert all(seconds > -0.01 for seconds in shares.values()), shares  # the journal's stamps are rounded
    assert "wallfinder, 3 cells" in done.stdout


def test_a_sweeps_time_is_shared_out() -> None:
    journal = [
        {"event": "sweep.started", "at": "1970-01-01T00:01:40.500Z"},
        {"event": "cell.started", "at": "1970-01-01T00:01:41.000Z", "cell_id": "a"},
        {"event": "cell.ended", "at": "1970-01-01T00:01:44.000Z", "record": {"cell_id": "a"}},
        {"event": "host.settled", "at": "1970-01-01T00:01:44.300Z", "waited_s": 0.25},
        {"event": "cell.started", "at": "1970-01-01T00:01:44.500Z", "cell_id": "b"},
        {"event": "cell.ended", "at": "1970-01-01T00:01:46.500Z", "record": {"cell_id": "b"}},
    ]
    worker = {sweep_cost.IMPORTS: 1.0, sweep_cost.READY: 0.25, sweep_cost.MEASURED: 0.5}

    found = sweep_cost.shares(journal, {"a": worker, "b": worker}, began_at=100.0, wall_s=7.0)

    assert found == pytest.approx(
        {
            sweep_cost.BEFORE: 1.0,
            sweep_cost.IMPORTS: 2.0,
            sweep_cost.READY: 0.5,
            sweep_cost.MEASURED: 1.0,
            sweep_cost.RECORD: 5.0 - 3.5,
            sweep_cost.PAUSE: 0.25,
            sweep_cost.BETWEEN: 0.25,
            sweep_cost.AFTER: 0.5,
        }
    )
    assert sum(found.values()) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("seen", "imports_s"),
    [
        ([(10.1, "starting"), (10.2, "starting"), (10.4, "warmup")], 0.3),
        ([(10.1, "starting"), (10.2, "starting")], 0.5),  # the next thing known is the first repetition, at 10.8
        ([], 0.4),
    ],
)
def test_where_a_workers_time_went(seen: list[tuple[float, str]], imports_s: float) -> None:
    lines = [{"event": "watch", "at_s": 10.0}, *({"monotonic_s": s, "progress": {"phase": p}} for s, p in seen)]
    reps = [{"started_s": 10.8, "ended_s": 10.9}, {"started_s": 10.9, "ended_s": 11.3}]

    found = sweep_cost.worker_s(lines, {"reps": reps})

    expected = {
        sweep_cost.IMPORTS: imports_s,
        sweep_cost.READY: 0.8 - imports_s,
        sweep_cost.MEASURED: 0.5,
    }
    assert found == pytest.approx(expected)

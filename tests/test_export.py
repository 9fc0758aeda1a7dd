"""A run in llama-batched-bench's columns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from report_rows import row
from sweeps import desk

from orchestrator.records import Verdict
from orchestrator.report.llama_bench import bench_cells, bench_json_line, bench_table

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [
    row(512, 1, tps=50.0, ttft_s=0.5),
    row(512, 8, tps=140.0, ttft_s=4.0, variant=None),
    row(512, 16, tps=100.0, ttft_s=9.0, invalid_reasons=("noisy",)),
    row(4096, 32, Verdict.HIT_THE_WALL),
    row(4096, 8, None),
]


def test_the_columns_are_llama_batched_benchs() -> None:
    cells, left_out = bench_cells(ROWS, lambda _: 63, with_invalid=False)
    assert left_out == 1
    head, rule, first, second = bench_table(cells)
    names = [name.strip() for name in head.strip("|").split("|")]
    assert names == ["PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s"]
    assert set(rule) <= {"|", "-"}
    assert [part.strip() for part in first.strip("|").split("|")] == [
        *("512", "63", "1", "575", "0.500", "1024.00", "1.260", "50.00", "1.760"),
        f"{575 / 1.76:.2f}",
    ]
    assert [part.strip() for part in second.strip("|").split("|")][:4] == ["512", "63", "8", str(8 * 575)]
    assert len({len(line) for line in (head, rule, first, second)}) == 1


def test_json_lines_have_its_keys() -> None:
    cells, left_out = bench_cells(ROWS, lambda _: 63, with_invalid=True)
    assert (len(cells), left_out) == (3, 0)
    body = json.loads(bench_json_line(cells[1]))
    assert {"pp": 512, "tg": 63, "pl": 8, "n_kv": 4600, "is_pp_shared": 0, "t_pp": 4.0}.items() <= body.items()
    assert body["speed_pp"] == pytest.approx(1024.0)
    assert body["speed_tg"] == pytest.approx(140.0)
    assert body["speed"] == pytest.approx(4600 / body["t"])
    assert [json.loads(bench_json_line(cell))["valid"] for cell in cells] == [True, True, False]


def test_a_run_without_a_completed_cell_says_so(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        at.run(at.plan(faults={"*": "segfault"}), "--plain")
        done = at.call("export", at.runs / "night")
        assert done.returncode == 0
        assert "no cell has completed yet" in done.stderr


def test_a_run_is_exported(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        at.run(at.plan(variants=[{"name": "a"}, {"name": "b", "context_fill": "random"}]), "--plain")
        table = at.call("export", at.runs / "night", "--with-invalid")
        assert table.returncode == 0, table.stderr
        assert table.stdout.count("|    64 |") == 6
        assert "variant b" in table.stdout
        lines = at.call("export", at.runs / "night", "--json", "--with-invalid").stdout.splitlines()
        bodies = [json.loads(line) for line in lines]
        status = {cell["cell_id"]: cell for cell in at.status()["cells"]}
        for body in bodies:
            cell = status[body["cell_id"]]
            assert body["tg"] == 7
            assert body["speed_tg"] == pytest.approx(cell["generation_tps"])
            assert body["t_pp"] == cell["ttft_s"]
        assert [body["t_pp"] is None for body in bodies] == [False] * 3 + [True] * 3

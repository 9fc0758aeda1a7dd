"""The document of `status --json`: its keys are a promise."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from report_rows import origin_rows, row, skipped, trouble_rows

from orchestrator.records import Metrics, Verdict
from orchestrator.report.status_json import status_document

if TYPE_CHECKING:
    from orchestrator.report.rows import CellRow

PROMISED = {
    "cell_id", "variant", "context", "batch", "verdict", "cause", "valid", "invalid_reasons", "attempts",
    "generation_tps", "generation_tps_per_stream", "prompt_tps", "ttft_s", "tpot_ms", "peak_memory_bytes",
    "peak_phase", "swap_growth_bytes", "robust_cv", "evidence",
}  # fmt: skip


def cells(rows: list[CellRow]) -> dict[str, dict[str, object]]:
    document = status_document("runs/night", "running", rows)
    return {cell["cell_id"]: cell for cell in json.loads(json.dumps(document, allow_nan=False))["cells"]}


def test_the_document() -> None:
    document = status_document("runs/night", "cut_off", origin_rows(), elapsed_s=5.5, eta_s=math.inf)
    assert (document["schema"], document["run"], document["state"]) == (1, "runs/night", "cut_off")
    assert document["counts"] == {"completed": 16, "hit_the_wall": 2, "skipped": 4, "open": 2}
    assert (document["elapsed_s"], document["eta_s"]) == (5.5, None)
    assert len(document["cells"]) == 24


def test_every_cell_has_the_same_keys_and_all_that_are_promised() -> None:
    for rows in (origin_rows(), trouble_rows()):
        keys = {frozenset(cell) for cell in cells(rows).values()}
        assert len(keys) == 1
        assert set(next(iter(keys))) >= PROMISED


def test_a_completed_cell() -> None:
    cell = cells(origin_rows())["c04096-b016"]
    assert cell["verdict"] == "completed"
    assert (cell["valid"], cell["invalid_reasons"]) == (False, ["noisy", "swapped"])
    assert (cell["generation_tps"], cell["peak_memory_bytes"], cell["peak_phase"]) == (
        97.2,
        27_300_000_000,
        "prefill",
    )
    assert (cell["context"], cell["batch"], cell["variant"], cell["attempts"]) == (4096, 16, None, 1)


def test_a_wall_and_what_it_dominates() -> None:
    found = cells(origin_rows())
    wall = found["c16384-b016"]
    assert (wall["verdict"], wall["cause"], wall["valid"]) == ("hit_the_wall", "swap_growth", None)
    assert wall["evidence"]["step_inflation"] == 11.2  # type: ignore[index]  # JSON
    assert wall["phase"] == "prefill"
    assert found["c32768-b032"]["dominated_by"] == "c16384-b016"


def test_open_cells_are_null() -> None:
    found = cells([row(512, 1, None), row(512, 2, None, running=True), row(512, 4, Verdict.CRASHED, running=True)])
    assert [cell["verdict"] for cell in found.values()] == [None, None, None]
    assert [cell["running"] for cell in found.values()] == [False, True, True]
    assert [cell["cause"] for cell in found.values()] == [None, None, None]


def test_numbers_that_are_none_and_numbers_that_are_not_numbers() -> None:
    odd = row(512, 1, metrics=Metrics(generation_tps=math.nan, robust_cv=math.inf), evidence={"x": math.nan})
    cell = cells([odd, skipped(512, 2, "c00512-b001")])["c00512-b001"]
    assert (cell["generation_tps"], cell["robust_cv"], cell["evidence"]) == (None, None, {"x": None})

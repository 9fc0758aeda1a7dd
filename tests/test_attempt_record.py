"""From an outcome to a record: what is said of a completed cell whose numbers are in doubt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from test_metrics import CALM, FACTS, MEMORY, rep
from worker_driver import make_spec

from orchestrator.attempt import Order, Outcome
from orchestrator.attempt_record import record_of, result_document
from orchestrator.cells import Cell
from orchestrator.plan import Place, parse_plan, resolve_limits
from orchestrator.records import CellRecord, Verdict
from worker.protocol import Done, Hello

PLAN = parse_plan("{model: a/b, batches: [4], contexts: [512]}", "p.yaml", Place(Path("/nowhere")))
MAC = Hello(1, 1, "gpu", device_info={"device_name": "Apple M2 Max"})
HOSTED = dataclasses.replace(MAC, device_info={"device_name": "Apple Paravirtual device"})
METAL = "[METAL] Command buffer execution failed: Insufficient Memory (00000008:x)."


def record(*, contaminated: bool = False, **changes: Any) -> CellRecord:
    plain = Outcome(exit_status=0, hello=MAC, model=FACTS, reps=[rep(0), rep(1)], final=Done(2), released=CALM)
    cell = Cell(None, 512, 4)
    limits = resolve_limits(PLAN.settings(None), MEMORY, None)
    spec = make_spec(cell_id=cell.cell_id, batch=4, context=512, gen_tokens=4, reps=2)
    order = Order(spec=spec, limits=limits, env={}, folder=Path("unused"))
    outcome = dataclasses.replace(plain, **changes)
    made, _ = record_of(cell, order, outcome, started_at="", ended_at="", boot_id="boot-1", contaminated=contaminated)
    assert result_document(made, order, outcome)["hello"]["device_info"]
    return made


@pytest.mark.parametrize(
    ("reasons", "changes"),
    [
        ((), {}),
        ((), {"log_tail": "UserWarning: resource_tracker: leaked semaphore\n401 Client Error"}),
        (("virtual_gpu",), {"hello": HOSTED}),
        (("gpu_error",), {"log_tail": f"Exception ignored in: <function>\nRuntimeError: {METAL}\n"}),
        (("gpu_error",), {"log_tail": "[malloc] Unable to allocate 9663676416 bytes.\n", "exit_status": -6}),
        (("host_contaminated",), {"contaminated": True}),
        (("watchdog_late", "virtual_gpu"), {"hello": HOSTED, "released": dataclasses.replace(CALM, late_max_s=2.0)}),
    ],
)
def test_a_completed_cell_says_why_its_numbers_are_in_doubt(reasons: tuple[str, ...], changes: dict[str, Any]) -> None:
    made = record(**changes)
    assert made.verdict is Verdict.COMPLETED
    assert (made.valid, made.invalid_reasons) == (not reasons, reasons)


def test_a_cell_that_did_not_complete_is_neither_valid_nor_invalid() -> None:
    made = record(hello=HOSTED, final=None, reps=[rep(0)], exit_status=-11)
    assert (made.verdict, made.valid, made.invalid_reasons) == (Verdict.CRASHED, None, ())


def test_the_page_for_people_tells_of_every_doubt() -> None:
    page = (Path(__file__).parents[1] / "docs" / "failures.md").read_text(encoding="utf-8")
    doubts = ["rows_short", "bad_logits", "noisy", "swapped", "pressure", "watchdog_late", "suspended", "unwatched"]
    for reason in [*doubts, "gpu_error", "virtual_gpu", "host_contaminated"]:
        assert f"invalid: `{reason}`" in page

"""From an outcome to a record: what is said of a completed cell whose numbers are in doubt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_metrics import CALM, FACTS, MEMORY, rep
from worker_driver import make_spec

from orchestrator.attempt import Order, Outcome
from orchestrator.attempt_record import Around, one_of_several, record_of, result_document
from orchestrator.cells import Cell
from orchestrator.plan import Place, parse_plan, resolve_limits
from orchestrator.records import CellRecord, Verdict
from worker.protocol import Done, Hello, RepResult
from worker.repeats import Repeats

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAN = parse_plan("{model: a/b, batches: [4], contexts: [512]}", "p.yaml", Place(Path("/nowhere")))
MAC = Hello(1, 1, "gpu", device_info={"device_name": "Apple M2 Max"})
HOSTED = dataclasses.replace(MAC, device_info={"device_name": "Apple Paravirtual device"})
METAL = "[METAL] Command buffer execution failed: Insufficient Memory (00000008:x)."


def record(
    *, contaminated: bool = False, drifted: bool = False, earlier: Sequence[RepResult] = (), **changes: Any
) -> CellRecord:
    plain = Outcome(exit_status=0, hello=MAC, model=FACTS, reps=[rep(0), rep(1)], final=Done(2), released=CALM)
    cell = Cell(None, 512, 4)
    limits = resolve_limits(PLAN.settings(None), MEMORY, None)
    spec = make_spec(cell_id=cell.cell_id, batch=4, context=512, gen_tokens=4, reps=2)
    order = Order(spec=spec, limits=limits, env={}, folder=Path("unused"))
    outcome = dataclasses.replace(plain, **changes)
    around = Around(started_at="", ended_at="", boot_id="boot-1", contaminated=contaminated, drifted=drifted)
    made, _ = record_of(cell, order, outcome, around, earlier)
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
        (("drifted",), {"drifted": True}),
        (("rows_short",), {"earlier": [rep(2, rows_per_step=[4, 4, 3])]}),
        (("watchdog_late", "virtual_gpu"), {"hello": HOSTED, "released": dataclasses.replace(CALM, late_max_s=2.0)}),
    ],
)
def test_a_completed_cell_says_why_its_numbers_are_in_doubt(reasons: tuple[str, ...], changes: dict[str, Any]) -> None:
    made = record(**changes)
    assert made.verdict is Verdict.COMPLETED
    assert (made.valid, made.invalid_reasons) == (not reasons, reasons)


def test_repetitions_of_earlier_attempts_count_with_the_new_ones() -> None:
    made = record(earlier=[rep(0, 0.2)], reps=[rep(0, 0.1)], final=Done(1))
    assert made.metrics.reps == 2
    assert made.metrics.rep_tps == pytest.approx((20.0, 40.0))
    assert made.metrics.generation_tps == pytest.approx(30.0)


def test_repetitions_in_turn_are_partial_until_they_are_enough() -> None:
    first = record(reps=[rep(0)], final=Done(1))
    assert one_of_several(first, [], [rep(0)], Repeats(2, 2)).partial
    second = record(earlier=[rep(0)], reps=[rep(0)], final=Done(1))
    assert not one_of_several(second, [first], [rep(0), rep(0)], Repeats(2, 2)).partial
    assert one_of_several(second, [first], [rep(0), rep(0)], Repeats(3, 9, 0.03, 300.0)).partial
    assert not one_of_several(second, [first], [rep(0), rep(0)], Repeats(2, 9, 0.03, 4.0)).partial  # 4.6 s of measuring
    broken = record(final=None, reps=[], exit_status=-11)
    assert not one_of_several(broken, [first], [rep(0)], Repeats(3, 3)).partial


def test_a_doubt_of_one_part_is_one_of_the_whole_but_noise_is_judged_over_all() -> None:
    doubtful = record(reps=[rep(0)], final=Done(1)).doubted("swapped").doubted("noisy")
    whole = one_of_several(record(earlier=[rep(0)], reps=[rep(0)], final=Done(1)), [doubtful], [], Repeats(2, 2))
    assert (whole.valid, whole.invalid_reasons) == (False, ("swapped",))


def test_a_cell_that_did_not_complete_is_neither_valid_nor_invalid() -> None:
    made = record(hello=HOSTED, final=None, reps=[rep(0)], exit_status=-11)
    assert (made.verdict, made.valid, made.invalid_reasons) == (Verdict.CRASHED, None, ())


def test_the_page_for_people_tells_of_every_doubt() -> None:
    page = (Path(__file__).parents[1] / "docs" / "failures.md").read_text(encoding="utf-8")
    doubts = ["rows_short", "bad_logits", "noisy", "swapped", "pressure", "watchdog_late", "suspended", "unwatched"]
    doubts += ["gpu_error", "virtual_gpu", "host_contaminated", "drifting", "drifted"]
    doubts += ["throttled", "on_battery", "low_power_mode", "other_gpu_process"]
    for reason in doubts:
        assert f"invalid: `{reason}`" in page

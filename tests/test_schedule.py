"""What to run next, by tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cells import Cell
from orchestrator.history import History
from orchestrator.host import read_host
from orchestrator.records import CellRecord, Metrics, Verdict
from orchestrator.schedule import (
    Retries,
    dominating_wall,
    expected_chunk_s,
    expected_step_s,
    fault_for,
    is_done,
    left_to_do,
    ordered,
    stopping_failure,
)
from orchestrator.unrun import unrun_record


def ended(
    batch: int,
    context: int,
    verdict: Verdict = Verdict.COMPLETED,
    *,
    attempt: int = 1,
    variant: str | None = None,
    memory_wall: bool = False,
    step_s: float | None = None,
    prompt_tps: float | None = None,
    stops_variant: bool = False,
) -> CellRecord:
    cell = Cell(variant, context, batch)
    return CellRecord(
        cell_id=cell.cell_id,
        variant=variant,
        context=context,
        batch=batch,
        attempt=attempt,
        verdict=verdict,
        memory_wall=memory_wall,
        stops_variant=stops_variant,
        metrics=Metrics(step_s=step_s, prompt_tps=prompt_tps),
    )


def test_cell_ids_are_sortable_and_name_the_variant() -> None:
    assert Cell(None, 4096, 16).cell_id == "c04096-b016"
    assert Cell("kv8", 131072, 1024).cell_id == "kv8/c131072-b1024"


GRID = [Cell(None, context, batch) for context in (512, 4096) for batch in (1, 8, 32)]


def test_safest_first_goes_by_tokens_held() -> None:
    assert [c.batch * c.context for c in ordered(GRID, "safest_first")] == [
        512,
        4096,
        4096,
        16384,
        32768,
        131072,
    ]
    assert ordered(GRID, "as_written") == tuple(GRID)


@given(st.permutations(GRID))
def test_the_order_does_not_depend_on_how_the_plan_was_written(cells: list[Cell]) -> None:
    assert ordered(cells, "safest_first") == ordered(GRID, "safest_first")


V = Verdict


@pytest.mark.parametrize(
    ("verdicts", "done"),
    [
        ([], False),
        ([V.COMPLETED], True),
        ([V.HIT_THE_WALL], True),
        ([V.HOST_DIED], True),
        ([V.TIMED_OUT], True),
        ([V.SKIPPED], True),
        ([V.INTERRUPTED], False),
        ([V.CRASHED], False),
        ([V.CRASHED, V.CRASHED], True),
        ([V.CRASHED, V.INTERRUPTED], False),
        ([V.CRASHED, V.INTERRUPTED, V.CRASHED], True),
        ([V.CRASHED, V.COMPLETED], True),
        ([V.FAILED], True),
    ],
)
def test_a_cell_is_done_when_its_last_verdict_is_final_or_its_retries_are_used_up(
    verdicts: list[Verdict], done: bool
) -> None:
    records = [ended(1, 64, verdict, attempt=n) for n, verdict in enumerate(verdicts, start=1)]
    assert is_done(records, Retries(crashed=1, failed=0)) is done
    history = History(records={Cell(None, 64, 1).cell_id: records})
    assert bool(left_to_do([Cell(None, 64, 1)], history, Retries())) is not done


@pytest.mark.parametrize(
    ("cell", "dominated"),
    [
        (Cell(None, 4096, 16), False),  # the wall itself
        (Cell(None, 4096, 32), True),
        (Cell(None, 8192, 16), True),
        (Cell(None, 8192, 8), False),  # fewer rows: may fit
        (Cell(None, 512, 64), False),  # shorter context: may fit
        (Cell("kv8", 8192, 32), False),  # another variant
    ],
)
def test_a_memory_wall_speaks_for_larger_cells_of_its_variant(cell: Cell, dominated: bool) -> None:
    wall = ended(16, 4096, V.HIT_THE_WALL, memory_wall=True)
    assert (dominating_wall(cell, [wall]) is wall) is dominated


def test_a_crash_or_a_timeout_dominates_nothing() -> None:
    records = [ended(1, 64, V.CRASHED), ended(1, 64, V.TIMED_OUT)]
    assert dominating_wall(Cell(None, 4096, 16), records) is None


def test_the_smallest_dominating_wall_is_named() -> None:
    small, large = (ended(b, 4096, V.HIT_THE_WALL, memory_wall=True) for b in (8, 16))
    assert dominating_wall(Cell(None, 4096, 32), [large, small]) is small


def test_a_model_that_does_not_load_stops_its_variant_only() -> None:
    failure = ended(1, 64, V.FAILED, variant="a", stops_variant=True)
    assert stopping_failure(Cell("a", 64, 2), [failure]) is failure
    assert stopping_failure(Cell("b", 64, 2), [failure]) is None


def test_a_crash_that_would_come_again_is_not_retried() -> None:
    defect = replace(ended(1, 64, V.CRASHED), retryable=False)
    assert is_done([defect], Retries(crashed=5))


@pytest.mark.parametrize(("retryable", "done"), [(True, False), (False, True)])
def test_a_failure_is_retried_only_where_another_attempt_may_end_otherwise(retryable: bool, done: bool) -> None:
    failed = replace(ended(1, 64, V.FAILED), retryable=retryable)
    assert is_done([failed], Retries(failed=1)) is done


def test_a_cell_that_was_answered_without_an_attempt_is_not_tried_again() -> None:
    record = unrun_record(Cell(None, 64, 1), V.FAILED, read_host(), "2026-01-01T00:00:00Z")
    assert is_done([record], Retries(failed=5))


@pytest.mark.parametrize(
    ("cell_id", "attempt", "fault"),
    [
        ("c00064-b001", 1, "first only"),
        ("c00064-b001", 2, "by pattern"),
        ("c00064-b002", 1, "by pattern"),
        ("c00128-b001", 1, None),
    ],
)
def test_a_fault_is_played_by_cell_and_attempt(cell_id: str, attempt: int, fault: str | None) -> None:
    assert fault_for({"c00064-b001#1": "first only", "c00064-*": "by pattern"}, cell_id, attempt) == fault


def test_the_expected_step_is_the_least_that_smaller_cells_predict() -> None:
    records = [ended(1, 1024, step_s=0.02), ended(4, 1024, step_s=0.03), ended(8, 2048, step_s=9.0)]
    records.append(ended(2, 1024, V.HIT_THE_WALL, step_s=0.001))
    assert expected_step_s(Cell(None, 2048, 8), records[:2]) == pytest.approx(0.03 * 2 * 2)
    assert expected_step_s(Cell(None, 1024, 4), records) == pytest.approx(0.03)
    assert expected_step_s(Cell(None, 512, 1), records) is None


def test_a_chunk_costs_in_proportion_to_rows_and_depth_at_most() -> None:
    """1,000 tokens a second over a prefill of 64 tokens: the last chunk of 64 may take twice the mean."""
    small = ended(1, 64, prompt_tps=1000.0)

    assert expected_chunk_s(Cell(None, 64, 1), [small], 2048) == pytest.approx(2 * 64 / 1000)
    assert expected_chunk_s(Cell(None, 64, 4), [small], 2048) == pytest.approx(4 * 2 * 64 / 1000)
    assert expected_chunk_s(Cell(None, 640, 1), [small], 128) == pytest.approx(10 * 2 * 128 / 1000)
    assert expected_chunk_s(Cell(None, 32, 1), [small], 2048) is None  # nothing smaller has completed
    assert expected_chunk_s(Cell(None, 64, 1), [ended(1, 64)], 2048) is None
    assert expected_chunk_s(Cell(None, 64, 1), [replace(small, verdict=Verdict.HIT_THE_WALL)], 2048) is None

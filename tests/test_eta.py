"""The guess how long a sweep still takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cells import Cell
from orchestrator.eta import remaining_s


def cell(batch: int, context: int = 1000) -> Cell:
    return Cell(None, context, batch)


def took(fixed: float, per_row: float, *batches: int) -> list[tuple[Cell, float]]:
    return [(cell(batch), fixed + per_row * batch) for batch in batches]


@given(
    fixed=st.floats(0, 100),
    per_row=st.floats(0, 50),
    batches=st.lists(st.integers(1, 64), min_size=2, max_size=12),
)
def test_fixed_time_and_slope_are_found_again(fixed: float, per_row: float, batches: list[int]) -> None:
    guess = remaining_s(took(fixed, per_row, *batches), [cell(16), cell(32)])
    if len(set(batches)) == 1:
        assert guess is None
    else:
        assert guess == pytest.approx(2 * fixed + 48 * per_row, rel=1e-6, abs=1e-3)


def test_one_odd_cell_does_not_bend_it() -> None:
    known = [*took(5.0, 2.0, 1, 2, 4, 8), (cell(3), 900.0)]
    assert remaining_s(known, [cell(16)]) == pytest.approx(37.0, rel=0.2)


def test_what_it_says_while_nothing_is_known() -> None:
    assert remaining_s([], [cell(1)]) is None
    assert remaining_s(took(1, 1, 4), [cell(8)]) is None
    assert remaining_s([], []) == 0.0


def test_the_running_cell_counts_for_what_is_left_of_it_and_never_less_than_nothing() -> None:
    known = took(5.0, 2.0, 1, 2, 4)
    assert remaining_s(known, [cell(8), cell(8)], running_for_s=11.0) == pytest.approx(31.0)
    assert remaining_s(known, [cell(8), cell(8)], running_for_s=99.0) == pytest.approx(21.0)


def test_no_cell_takes_longer_than_its_limit() -> None:
    assert remaining_s(took(5.0, 2.0, 1, 2), [cell(1000), cell(1)], limit_s=60.0) == pytest.approx(67.0)


def test_times_that_fall_with_size_give_no_negative_guess() -> None:
    guess = remaining_s([(cell(1), 50.0), (cell(8), 5.0)], [cell(64)])
    assert guess is not None
    assert guess >= 0

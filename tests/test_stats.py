"""The statistics against numpy's, and at their edges."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import stats

finite = st.floats(-1e12, 1e12)
some = st.lists(finite, min_size=1, max_size=40)


@given(values=some, share=st.floats(0, 1))
def test_quantiles_are_numpy_s(values: list[float], share: float) -> None:
    assert stats.quantile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9, abs=1e-3)


@given(values=some)
def test_median_and_iqr(values: list[float]) -> None:
    assert stats.median(values) == pytest.approx(statistics.median(values), rel=1e-9, abs=1e-3)
    quartiles = np.quantile(values, [0.25, 0.75])
    assert stats.iqr(values) == pytest.approx(float(quartiles[1] - quartiles[0]), rel=1e-9, abs=1e-3)
    assert stats.iqr(values) >= 0


@given(values=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20), factor=st.floats(0.01, 100))
def test_the_spread_has_no_unit_and_no_order(values: list[float], factor: float) -> None:
    cv = stats.robust_cv(values)
    assert cv is not None
    assert stats.robust_cv([v * factor for v in reversed(values)]) == pytest.approx(cv, rel=1e-6, abs=1e-9)


def test_known_values() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert stats.quantile(values, 0.25) == 1.75
    assert stats.median(values) == 2.5
    assert stats.iqr(values) == 1.5
    assert stats.robust_cv(values) == 0.6
    assert stats.iqr([7.0]) == 0.0


def test_where_a_ratio_says_nothing() -> None:
    assert stats.robust_cv([-1.0, 0.0, 1.0]) is None
    assert stats.robust_cv([math.nan, 1.0, 2.0]) is None
    assert stats.robust_cv([math.inf, math.inf]) is None
    assert stats.robust_cv([-2.0, -2.0]) == 0.0


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], -0.1), ([1.0], 1.1), ([1.0], math.nan)])
def test_nonsense_is_refused(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match=r"at least one value|between 0 and 1"):
        stats.quantile(values, share)


@pytest.mark.parametrize(
    ("cv", "count", "noisy"),
    [(0.1, 5, False), (0.1001, 5, True), (0.5, 2, False), (0.5, 3, True), (None, 9, False)],
)
def test_noisy(cv: float | None, count: int, noisy: bool) -> None:
    assert stats.is_noisy(cv, count) == noisy

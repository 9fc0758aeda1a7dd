"""The statistics against numpy's and scipy's on random data, and at their edges."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orchestrator import stats

finite = st.floats(-1e12, 1e12)
some = st.lists(finite, min_size=1, max_size=40)
rates = st.lists(st.floats(1.0, 1000.0), min_size=3, max_size=25)


@given(values=some, share=st.floats(0, 1))
def test_quantiles_are_numpy_s(values: list[float], share: float) -> None:
    assert stats.quantile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9, abs=1e-3)


@given(values=some)
def test_median_and_iqr_are_scipy_s(values: list[float]) -> None:
    assert stats.median(values) == pytest.approx(statistics.median(values), rel=1e-9, abs=1e-3)
    assert stats.iqr(values) == pytest.approx(float(scipy.stats.iqr(values)), rel=1e-9, abs=1e-3)
    assert stats.iqr(values) >= 0


@given(values=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20), factor=st.floats(0.01, 100))
def test_the_spread_has_no_unit_and_no_order(values: list[float], factor: float) -> None:
    cv = stats.robust_cv(values)
    assert cv is not None
    assert cv == pytest.approx(float(scipy.stats.iqr(values)) / statistics.median(values), rel=1e-6, abs=1e-9)
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


def test_noise_is_judged_from_three_values_on() -> None:
    assert not stats.is_noisy(0.5, 2)
    assert stats.is_noisy(0.11, 3)
    assert not stats.is_noisy(0.10, 3)
    assert not stats.is_noisy(None, 9)


@pytest.mark.parametrize(
    ("share", "enough"), [(0.5, 10), (0.95, 100), (0.99, 500), (0.05, 100)], ids=["p50", "p95", "p99", "p5"]
)
def test_a_percentile_is_withheld_where_too_few_values_lie_beyond_it(share: float, enough: int) -> None:
    values = [float(value) for value in range(enough)]
    assert stats.percentile(values[:-1], share) is None
    assert stats.percentile(values, share) == pytest.approx(float(np.quantile(values, share)))
    assert stats.percentile([], share) is None


@settings(deadline=None, max_examples=25)
@given(values=rates, seed=st.integers(0, 1000))
def test_the_interval_of_the_median_is_the_bootstrap_s(values: list[float], seed: int) -> None:
    ours = stats.median_interval(values)
    assert ours is not None
    theirs = scipy.stats.bootstrap(
        (values,), np.median, method="percentile", n_resamples=4000, random_state=np.random.default_rng(seed)
    ).confidence_interval
    # The resampled medians are order statistics or means of two: an end may fall on either side of a step between them.
    ordered = sorted(values)
    step = max((b - a for a, b in pairwise(ordered)), default=0.0)
    assert ours.low == pytest.approx(theirs.low, abs=step + 1e-9)
    assert ours.high == pytest.approx(theirs.high, abs=step + 1e-9)
    assert min(values) <= ours.low <= stats.median(values) <= ours.high <= max(values)
    assert stats.median_interval(values[::-1]) == ours


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    draw = random.Random(7)
    samples = [[draw.gauss(100, 5) for _ in range(25)] for _ in range(200)]
    intervals = [stats.median_interval(sample) for sample in samples]
    hits = sum(found is not None and found.low <= 100 <= found.high for found in intervals)
    assert 176 <= hits <= 200  # 190 by its word; the bounds are over four standard deviations away


def test_the_interval_of_many_values_is_that_of_their_ranks() -> None:
    draw = random.Random(3)
    many = [draw.gauss(0, 1) for _ in range(401)]
    found = stats.median_interval(many)
    theirs = scipy.stats.bootstrap(
        (many,), np.median, method="percentile", n_resamples=4000, random_state=np.random.default_rng(0)
    ).confidence_interval
    assert found is not None
    assert found.low == pytest.approx(theirs.low, abs=0.03)
    assert found.high == pytest.approx(theirs.high, abs=0.03)


def test_there_is_no_interval_of_too_little() -> None:
    assert stats.median_interval([1.0, 2.0]) is None
    assert stats.median_interval([1.0, 2.0, math.nan]) is None


@settings(deadline=None)
@given(values=st.lists(st.floats(1.0, 1000.0), min_size=4, max_size=30, unique=True))
def test_the_trend_is_theil_and_sen_s_and_its_test_kendall_s(values: list[float]) -> None:
    found = stats.trend(values)
    assert found is not None
    at = list(range(len(values)))
    slope = float(scipy.stats.theilslopes(values, at)[0])
    assert found.change_frac == pytest.approx(slope * (len(values) - 1) / statistics.median(values), rel=1e-6, abs=1e-9)
    assert found.p_value == pytest.approx(float(scipy.stats.kendalltau(at, values, method="exact").pvalue), abs=1e-9)


@settings(deadline=None)
@given(values=st.lists(st.integers(1, 5), min_size=8, max_size=60))
def test_the_trend_of_values_with_ties(values: list[int]) -> None:
    assume(len(set(values)) > 1)
    assume(max(values.count(value) for value in values) > 1)
    found = stats.trend([float(value) for value in values])
    assert found is not None
    theirs = scipy.stats.kendalltau(range(len(values)), values, method="asymptotic").pvalue
    assert found.p_value == pytest.approx(float(theirs), abs=1e-6)


def test_a_trend_that_is_plain() -> None:
    falling = stats.trend([100.0, 98.0, 95.0, 91.0, 90.0, 86.0])
    assert falling is not None
    assert falling.change_frac == pytest.approx(-14 / 93, rel=0.15)
    assert falling.p_value == pytest.approx(2 / math.factorial(6))
    assert stats.trend([1.0, 2.0, 3.0]) is None
    assert stats.trend([5.0, 5.0, 5.0, 5.0]) == stats.Trend(0.0, 1.0)
    assert stats.trend([-1.0, 0.0, 0.0, 1.0]) is None

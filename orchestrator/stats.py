"""Owns robust statistics: median, quantiles, spread, intervals, trend, and when a cell counts as noisy.

Does not know what the numbers measure (metrics.py). Pure, standard library only: scipy would take 60 MB of a process
that is held to 80, and is what the tests compare with.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

# The worker decides by these when a cell has been repeated enough, so they are where both sides can have them.
from worker.repeats import FEWEST, quantile, robust_cv

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "FEWEST",
    "NOISY_CV",
    "Interval",
    "Trend",
    "iqr",
    "is_noisy",
    "median",
    "median_interval",
    "percentile",
    "quantile",
    "robust_cv",
    "trend",
]

NOISY_CV = 0.10
_TAIL_VALUES = 5  # a percentile is told where at least so many values lie beyond it
_BOOTSTRAP_ROUNDS = 2000
_MANY = 200  # values: from here on an interval by order statistics says the same, and costs nothing


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a statistic lies with 95 % confidence, in its own unit."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Trend:
    """How values change from the first to the last along their robust line.

    `change_frac` is that change over the median (negative: they fall). `p_value` is the chance of an order as uneven
    among values that do not change.
    """

    change_frac: float
    p_value: float


def percentile(values: Sequence[float], share: float) -> float | None:
    """The quantile, or None where fewer than five of the values lie beyond it, on its outer side.

    The 95th percentile needs 100 values, the 99th 500; the median 10.

    Raises:
        ValueError: a share outside 0 to 1.
    """
    beyond = len(values) * min(share, 1.0 - share)
    if values and beyond + 1e-9 < _TAIL_VALUES:
        return None
    return quantile(values, share) if values else None


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the middle two.

    Raises:
        ValueError: no values.
    """
    return quantile(values, 0.5)


def iqr(values: Sequence[float]) -> float:
    """The distance between the quartiles; 0 for a single value.

    Raises:
        ValueError: no values.
    """
    return quantile(values, 0.75) - quantile(values, 0.25)


def median_interval(values: Sequence[float]) -> Interval | None:
    """The 95 % interval of the median by bootstrap (percentile method); None of fewer than three values.

    Resampled 2,000 times with a fixed seed, so that the same values have the same interval. Over 200 values it is taken
    from the order statistics (binomial, normal approximation), to which the bootstrap's then comes close.
    """
    if len(values) < FEWEST or not all(map(math.isfinite, values)):
        return None
    ordered = sorted(values)
    count = len(ordered)
    if count > _MANY:
        half = 1.96 * math.sqrt(count) / 2
        low, high = math.floor(count / 2 - half), math.ceil(count / 2 + half)
        return Interval(float(ordered[max(low, 0)]), float(ordered[min(high, count - 1)]))
    draw = random.Random(0)
    medians = [median(draw.choices(ordered, k=count)) for _ in range(_BOOTSTRAP_ROUNDS)]
    return Interval(quantile(medians, 0.025), quantile(medians, 0.975))


def trend(values: Sequence[float]) -> Trend | None:
    """The trend of values in their order: Theil and Sen's slope, Kendall's test. None of fewer than four values.

    The p-value is exact (two-sided, over all orders) up to 30 values without ties, by the normal approximation with
    the correction for ties otherwise. None also where the median is 0 or a value is not finite.
    """
    count = len(values)
    if count < 4 or not all(map(math.isfinite, values)):
        return None
    middle = median(values)
    if middle == 0:
        return None
    slopes = [(values[j] - values[i]) / (j - i) for i in range(count) for j in range(i + 1, count)]
    score = sum((slope > 0) - (slope < 0) for slope in slopes)
    return Trend(median(slopes) * (count - 1) / abs(middle), _kendall_p(values, score))


def _kendall_p(values: Sequence[float], score: int) -> float:
    count = len(values)
    ties = [values.count(value) for value in set(values)]
    if max(ties) == 1 and count <= 30:
        pairs = count * (count - 1) // 2
        fewer = (pairs - abs(score)) // 2  # discordant pairs of an order at least as uneven
        tail = sum(_inversions(count)[: fewer + 1]) / math.factorial(count)
        return min(1.0, 2 * tail)
    variance = (count * (count - 1) * (2 * count + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    if variance <= 0:
        return 1.0
    return math.erfc(abs(score) / math.sqrt(variance) / math.sqrt(2))


@cache
def _inversions(count: int) -> tuple[int, ...]:
    """How many orders of so many things have 0, 1, 2, ... pairs the wrong way round."""
    counts = [1]
    for size in range(2, count + 1):
        longer = [0] * (len(counts) + size - 1)
        for at, number in enumerate(counts):
            for more in range(size):
                longer[at + more] += number
        counts = longer
    return tuple(counts)


def is_noisy(cv: float | None, count: int) -> bool:
    """Whether `count` values with this robust CV are too far apart; fewer than 3 values are not judged."""
    return cv is not None and count >= FEWEST and cv > NOISY_CV

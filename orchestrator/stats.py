"""Owns robust statistics: median, quantiles, spread, and when a cell counts as noisy.

Does not know what the numbers measure (metrics.py). Pure, standard library only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NOISY_CV = 0.10
NOISY_MIN_VALUES = 3


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie, linear between neighbours.

    Definition 7 of Hyndman and Fan (1996): position share * (n - 1) in the sorted values, counted from 0;
    that is the default of numpy and R. A NaN among the values makes the result NaN.

    Raises:
        ValueError: no values, or a share outside 0 to 1.
    """
    if not values:
        raise ValueError("a quantile needs at least one value")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a share is between 0 and 1, not {share}")
    if any(math.isnan(value) for value in values):
        return math.nan
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    if below == position:
        return float(ordered[below])
    low, high = ordered[below], ordered[below + 1]
    return float(low + (high - low) * (position - below))


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


def robust_cv(values: Sequence[float]) -> float | None:
    """IQR over median, as a share; None where the median is 0 or not finite, so that a ratio says nothing.

    Raises:
        ValueError: no values.
    """
    middle = median(values)
    if middle == 0 or not math.isfinite(middle):
        return None
    return iqr(values) / abs(middle)


def is_noisy(cv: float | None, count: int) -> bool:
    """Whether `count` values with this robust CV are too far apart; fewer than 3 values are not judged."""
    return cv is not None and count >= NOISY_MIN_VALUES and cv > NOISY_CV

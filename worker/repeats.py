"""Owns when a cell has been repeated often enough, and the spread by which that is decided.

Does not measure. Pure, standard library only. Worker and orchestrator share it: the first decides inside a process,
the second between processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FEWEST = 3  # values: less have no spread to speak of


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often a cell is measured: at least `least`, at most `most` times.

    In between it ends once the robust CV of its rates is at most `until_cv`, or `max_time_s` seconds of measuring are
    over; None: that does not end it. `least` equal to `most` is a fixed number.
    """

    least: int
    most: int
    until_cv: float | None = None
    max_time_s: float | None = None

    def enough(self, rates: Sequence[float], measured_s: float) -> bool:
        """Whether repetitions with these rates, which took so many seconds, are enough."""
        if len(rates) < self.least:
            return False
        if len(rates) >= self.most:
            return True
        if self.max_time_s is not None and measured_s >= self.max_time_s:
            return True
        if self.until_cv is None or len(rates) < FEWEST:
            return False
        cv = robust_cv(rates)
        return cv is not None and cv <= self.until_cv


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


def robust_cv(values: Sequence[float]) -> float | None:
    """IQR over median, as a share; None where the median is 0 or not finite, so that a ratio says nothing.

    Raises:
        ValueError: no values.
    """
    middle = quantile(values, 0.5)
    if middle == 0 or not math.isfinite(middle):
        return None
    return (quantile(values, 0.75) - quantile(values, 0.25)) / abs(middle)

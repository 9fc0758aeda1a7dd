"""Owns how results are shown: quantiles, bootstrap intervals, Markdown tables. Measures nothing."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING

from orchestrator import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values are, by linear interpolation; NaN of none."""
    return stats.quantile(values, share) if values else float("nan")


def bootstrap(
    values: Sequence[float], of: Callable[[Sequence[float]], float] = statistics.median, rounds: int = 4000
) -> tuple[float, float]:
    """The 95 % interval of a statistic by resampling; the seed is fixed, so a table can be made again."""
    draw = random.Random(0)
    found = [of(draw.choices(values, k=len(values))) for _ in range(rounds)]
    return quantile(found, 0.025), quantile(found, 0.975)


def markdown(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
    return "\n".join([*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])


def seconds(values: Sequence[float]) -> str:
    """`p50 / p95 / max` in seconds."""
    if not values:
        return "-"
    return f"{quantile(values, 0.5):.2f} / {quantile(values, 0.95):.2f} / {max(values):.2f}"

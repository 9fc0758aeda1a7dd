"""Owns the guess how long a sweep still takes. Pure.

It assumes that a cell takes a fixed time (load, compilation) and a time in proportion to batch times context,
and fits both to the cells that completed; walls and failures, which end early, teach nothing, and cells that
will be skipped or will hit the wall make the guess too long. It says nothing until cells of two different
sizes completed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.stats import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cells import Cell

LOOKS_BACK = 40  # the latest cells are the most like those to come, and the slopes are one per pair


def remaining_s(
    completed: Sequence[tuple[Cell, float]],
    left: Sequence[Cell],
    *,
    running_for_s: float = 0.0,
    limit_s: float | None = None,
) -> float | None:
    """Seconds until the cells in `left` are done; None while nothing can be said.

    `completed` holds cells with the seconds they took; the first cell of `left` has been running for
    `running_for_s`; no cell takes longer than `limit_s`. The slope is the median over all pairs (Theil and
    Sen), so that one odd cell does not bend it.
    """
    if not left:
        return 0.0
    known = [(cell.batch * cell.context, took_s) for cell, took_s in completed[-LOOKS_BACK:]]
    slopes = [
        (took - other_took) / (size - other)
        for i, (size, took) in enumerate(known)
        for other, other_took in known[:i]
        if size != other
    ]
    if not slopes:
        return None
    slope = max(median(slopes), 0.0)
    fixed = max(median([took - slope * size for size, took in known]), 0.0)
    guesses = [fixed + slope * cell.batch * cell.context for cell in left]
    if limit_s is not None:
        guesses = [min(guess, limit_s) for guess in guesses]
    return max(guesses[0] - running_for_s, 0.0) + sum(guesses[1:])

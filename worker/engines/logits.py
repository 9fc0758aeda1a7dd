"""Owns the check of logits: a buffer that failed silently shows as NaN, infinity, or one value everywhere.

Does not decide what such a result is worth (the orchestrator marks it invalid).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Sequence


def judge(rows: Sequence[mx.array]) -> tuple[bool, bool]:
    """Whether all rows' values are finite, and whether some row holds one value only.

    Takes logits or log-probabilities, one array (vocabulary,) per row. Minus infinity alone is no fault: some
    models mask parts of their vocabulary so. Call it outside any timed window.
    """
    finite, constant = mx.array(True), mx.array(False)
    for row in rows:
        masked = row == -mx.inf
        finite = finite & mx.all(mx.isfinite(row) | masked) & ~mx.all(masked)
        constant = constant | (mx.max(row) == mx.min(row))
    mx.eval(finite, constant)
    return bool(finite.item()), bool(constant.item())

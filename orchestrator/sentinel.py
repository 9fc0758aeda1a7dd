"""Owns the judgement whether a host still is as fast as it was: a reference cell, measured again, against its first
time.

Does not measure and does not decide when to. Pure. A host was seen to become 15 to 65 % slower with every public
counter healthy, so the cell itself is the only witness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.records import Verdict

if TYPE_CHECKING:
    from orchestrator.records import CellRecord, Metrics

_CHANGE_FRAC = 0.05  # as much as a comparison of two runs calls a change


@dataclass(frozen=True, slots=True)
class Drift:
    """The rate now over the rate then (None: it could not be measured), and whether that is a change of the host."""

    ratio: float | None
    drifted: bool
    why: str = ""


def drift(reference: CellRecord, again: CellRecord) -> Drift:
    """Holds a second measurement of a cell against its first.

    A change is over 5 % of the rate, and over the noise: the 95 % intervals of the two medians do not meet (of fewer
    than three repetitions there are none, and the rates alone decide). A cell that completed once and does not now is
    a change.
    """
    before, now = reference.metrics, again.metrics
    if again.verdict is not Verdict.COMPLETED or not before.generation_tps or not now.generation_tps:
        return Drift(None, drifted=True, why=f"{again.verdict.value}: {again.cause or again.detail}")
    ratio = now.generation_tps / before.generation_tps
    drifted = abs(ratio - 1) > _CHANGE_FRAC and not _meet(before, now)
    return Drift(ratio, drifted=drifted, why=f"{ratio:.3f} of its first rate" if drifted else "")


def _meet(before: Metrics, now: Metrics) -> bool:
    if before.generation_tps_low is None or before.generation_tps_high is None:
        return False
    if now.generation_tps_low is None or now.generation_tps_high is None:
        return False
    return now.generation_tps_low <= before.generation_tps_high and before.generation_tps_low <= now.generation_tps_high

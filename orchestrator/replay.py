"""Owns what a watchdog with other thresholds would have done on a recording, held against what was done.

Pure: takes a recording's lines (recordings.py) and limits; reads no clock and no file.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.watchdog.policy import CAUSES, State, Stop, decide
from orchestrator.watchdog.recording import SampleReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.watchdog.limits import Limits

NEAR_S = 0.5  # closer than this is the same moment: ticks, and thinned stretches, are not finer
_POLICY = (*CAUSES, "time_limit", "blind")


@dataclass(frozen=True, slots=True)
class Moment:
    """When a watchdog acts, in seconds from the attempt's first sample, and why."""

    cause: str
    after_s: float
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Played:
    """A recording, judged anew. `acted` is what the watchdog did then, or would have done (`observed`).

    `replayed` is what it does with the limits that were asked for; both None where it does nothing. `lasted_s`: from
    the first sample to the last; `samples` how many there are, and `thinned` whether some stand for several ticks.
    """

    acted: Moment | None
    observed: bool
    replayed: Moment | None
    lasted_s: float
    samples: int
    thinned: bool


class Effect(enum.StrEnum):
    """What other thresholds would have changed for a cell."""

    SAME = "same"
    EARLIER = "earlier"
    LATER = "later"
    KEPT = "kept"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Difference:
    """An attempt under other thresholds.

    `saved_s` is how much sooner it would have been over (negative: later; `at_least` as much later), None where
    nothing is known of it. EARLIER and LATER: another moment for the same end. KEPT: not ended as far as it was
    recorded. LOST: a cell that completed would have been ended.
    """

    effect: Effect
    saved_s: float | None = None
    at_least: bool = False


def play(lines: Iterable[dict[str, Any]], limits: Limits) -> Played:
    """Judges a recording with `limits`.

    Samples after the first stop are not judged: the worker would not have lived to give them. Those after the recorded
    stop are, although the worker was on its way out by then; they can only say "later".

    Raises:
        KeyError, TypeError, ValueError: a line is not what a recording holds.
    """
    reader, state = SampleReader(), State()
    first_s = last_s = None
    acted: tuple[float, dict[str, Any]] | None = None
    replayed: Moment | None = None
    count, thinned = 0, False
    for line in lines:
        if "event" in line:
            acted = acted or _policy_act(line)
            continue
        sample = reader.decode(line)
        every = int(line.get("every", 1))
        count, thinned = count + 1, thinned or every > 1
        last_s = sample.monotonic_s
        first_s = last_s if first_s is None else first_s
        if replayed is None:
            # A sample that stands for several ticks comes late by as much, and that is no pause of the watchdog.
            judged = limits if every == 1 else dataclasses.replace(limits, sample_every_s=every * limits.sample_every_s)
            state, action = decide(judged, state, sample)
            if isinstance(action, Stop):
                replayed = Moment(action.cause, round(last_s - first_s, 3), action.evidence)
    if first_s is None or last_s is None:
        return Played(None, False, None, 0.0, 0, False)
    return Played(
        acted=None if acted is None else _moment(acted, first_s),
        observed=acted is not None and acted[1]["event"] == "would_act",
        replayed=replayed,
        lasted_s=round(last_s - first_s, 3),
        samples=count,
        thinned=thinned,
    )


def compare(played: Played, *, completed: bool) -> Difference:
    """What the replayed limits change; `completed` says whether the cell was measured in full."""
    now, then = played.replayed, played.acted
    if now is None:
        if then is None or played.observed:
            return Difference(Effect.SAME if then is None else Effect.KEPT)
        return Difference(Effect.KEPT, round(then.after_s - played.lasted_s, 3), at_least=True)
    if then is None or played.observed:
        # It ran to its own end then, so that is what an act is held against.
        if played.observed and then is not None and abs(now.after_s - then.after_s) <= NEAR_S:
            return Difference(Effect.SAME)
        return Difference(Effect.LOST if completed else Effect.EARLIER, round(played.lasted_s - now.after_s, 3))
    saved_s = round(then.after_s - now.after_s, 3)
    if abs(saved_s) <= NEAR_S:
        return Difference(Effect.SAME)
    return Difference(Effect.EARLIER if saved_s > 0 else Effect.LATER, saved_s)


def _policy_act(line: dict[str, Any]) -> tuple[float, dict[str, Any]] | None:
    """The event in which the policy acted, or would have; what a person asked for is none."""
    if line["event"] in ("acted", "would_act") and line.get("cause") in _POLICY:
        return float(line["at_s"]), line
    return None


def _moment(acted: tuple[float, dict[str, Any]], first_s: float) -> Moment:
    at_s, line = acted
    return Moment(str(line["cause"]), round(at_s - first_s, 3), dict(line.get("evidence", {})))

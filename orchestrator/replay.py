"""Owns what a watchdog with other thresholds would have done on a recording, held against what was done.

Pure: takes a recording's lines (recordings.py) and limits; reads no clock and no file.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.records import Verdict
from orchestrator.watchdog.policy import CAUSES, State, Stop, decide
from orchestrator.watchdog.recording import SampleReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.watchdog.limits import Limits
    from orchestrator.watchdog.sample import Sample

NEAR_S = 0.5  # closer than this is the same moment
NEAR_TICKS = 2  # and so is what lies within two ticks, in a thinned stretch two of its samples
_POLICY = (*CAUSES, "time_limit", "blind")
_GONE = ("Z", "X", "x")  # states of a worker that the watchdog does not judge any more


@dataclass(frozen=True, slots=True)
class Moment:
    """When a watchdog acts, in seconds from the attempt's first sample, and why.

    `near_s` is how far from it another moment may lie and still be the same.
    """

    cause: str
    after_s: float
    evidence: dict[str, Any] = field(default_factory=dict)
    near_s: float = NEAR_S


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
    OTHER_CAUSE = "other_cause"
    EARLIER = "earlier"
    LATER = "later"
    KEPT = "kept"
    LOST = "lost"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Difference:
    """An attempt under other thresholds.

    `saved_s` is how much sooner it would have been over (negative: later; `at_least` as much later), None where
    nothing is known of it. EARLIER and LATER: another moment for the same end; OTHER_CAUSE: the same moment, and
    another name for it. KEPT: not ended as far as it was recorded. LOST: a cell that completed would have been ended;
    `saved_s` is then what it took to measure it, as a loss. UNDECIDED: it would have been ended, and nobody knows what
    would have become of it: it runs still, or was interrupted.
    """

    effect: Effect
    saved_s: float | None = None
    at_least: bool = False


def play(lines: Iterable[dict[str, Any]], limits: Limits) -> Played:
    """Judges a recording with `limits`.

    Samples after the first stop are not judged: the worker would not have lived to give them. Those after the recorded
    stop are, although the worker was on its way out by then; they can only say "later". Those after a stop that was not
    the policy's (Ctrl-C, a worker that does not exit) say nothing.
    """
    reader, judge, told = SampleReader(), _Judge(limits), _Told()
    first_s = last_s = 0.0
    thinned = False
    for line in lines:
        if "event" in line:
            told.take(line)
            continue
        sample, every = reader.decode(line), line.get("every", 1)
        thinned = thinned or every > 1
        last_s = sample.monotonic_s
        first_s = first_s if judge.samples else last_s
        judge.take(sample, every, asks_twice=not told.observes)
    acted, replayed = told.acted, judge.verdict
    if replayed is not None and told.ended_s is not None and replayed.after_s >= told.ended_s:
        replayed = None
    return Played(
        acted=None if acted is None else _since(acted, first_s),
        observed=acted is not None and told.would_only,
        replayed=None if replayed is None else _since(replayed, first_s),
        lasted_s=round(last_s - first_s, 3),
        samples=judge.samples,
        thinned=thinned,
    )


def compare(played: Played, verdict: str | None) -> Difference:
    """What the replayed limits change; `verdict` is what became of the attempt, None where it has no end yet."""
    now, then = played.replayed, played.acted
    completed = verdict == Verdict.COMPLETED
    if now is None:
        if then is None or played.observed or completed:
            return Difference(Effect.SAME if then is None else Effect.KEPT)
        return Difference(Effect.KEPT, round(then.after_s - played.lasted_s, 3), at_least=True)
    if then is not None and abs(now.after_s - then.after_s) <= now.near_s:
        return Difference(Effect.SAME if now.cause == then.cause else Effect.OTHER_CAUSE)
    if completed:
        return Difference(Effect.LOST, -played.lasted_s)
    if then is not None and not played.observed:
        saved_s = round(then.after_s - now.after_s, 3)
        return Difference(Effect.EARLIER if saved_s > 0 else Effect.LATER, saved_s)
    if verdict is None or verdict == Verdict.INTERRUPTED:
        return Difference(Effect.UNDECIDED)
    # It ran to its own end then, so that is what an act is held against.
    return Difference(Effect.EARLIER, round(played.lasted_s - now.after_s, 3))


class _Told:
    """What a recording's events say: what the policy did, or would have done, and when another end began.

    Times on the monotonic clock. A batch of samples may come after an event that is younger, so they are compared by
    time and not by place.
    """

    def __init__(self) -> None:
        self.observes = False
        self.acted: Moment | None = None
        self.would_only = False
        self.ended_s: float | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Takes in one event; those that say nothing here are passed over."""
        name = event["event"]
        self.observes = self.observes or event.get("observe") is True
        if name not in ("acted", "would_act") or self.ended_s is not None:
            return
        if event.get("cause") not in _POLICY:
            self.ended_s = event["at_s"]
        elif self.acted is None:
            self.acted = Moment(event["cause"], event["at_s"], dict(event.get("evidence", {})))
            self.would_only = name == "would_act"


class _Judge:
    """Takes samples until the policy has ended the worker, as the watchdog does it.

    A watchdog that acts is sure only when the next sample, taken at once, says the same; one that only observes does
    not ask again. A dead worker is not judged.
    """

    def __init__(self, limits: Limits) -> None:
        self.samples = 0
        self._limits = limits
        self._state = State()
        self._doubtful: Moment | None = None
        self._sure: Moment | None = None

    @property
    def verdict(self) -> Moment | None:
        """When it acts on the monotonic clock; a stop in the very last sample has nothing against it."""
        return self._sure or self._doubtful

    def take(self, sample: Sample, every: int, *, asks_twice: bool) -> None:
        """Judges a sample that stands for `every` ticks, unless the worker has been ended before."""
        self.samples += 1
        if self._sure is not None:
            return
        if sample.worker is not None and sample.worker.state in _GONE:
            self._doubtful = None
            return
        # A sample that stands for several ticks comes late by as much, and that is no pause of the watchdog.
        tick_s = every * self._limits.sample_every_s
        self._state, action = decide(
            dataclasses.replace(self._limits, sample_every_s=tick_s) if every > 1 else self._limits, self._state, sample
        )
        if not isinstance(action, Stop):
            self._doubtful = None
            return
        near_s = max(NEAR_S, NEAR_TICKS * tick_s)
        found = Moment(action.cause, sample.monotonic_s, action.evidence, near_s)
        if not asks_twice:
            self._sure = found
        elif self._doubtful is not None:  # thinned, the next sample is far from what would have been taken at once
            self._sure = found if every == 1 else self._doubtful
        else:
            self._doubtful = found


def _since(moment: Moment, first_s: float) -> Moment:
    return dataclasses.replace(moment, after_s=round(moment.after_s - first_s, 3))

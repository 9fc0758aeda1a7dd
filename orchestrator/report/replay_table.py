"""Owns how a replay is told: a line per attempt and a sum for people, a document for programs. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.table import Table

from orchestrator.evidence import figures
from orchestrator.quantities import count_of, duration, printable
from orchestrator.replay import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.replay import Moment
    from orchestrator.replaying import ReplayedAttempt

SCHEMA = 1
_WORDS = {
    Effect.SAME: "the same",
    Effect.OTHER_CAUSE: "the same moment, another cause",
    Effect.EARLIER: "earlier",
    Effect.LATER: "later",
    Effect.KEPT: "not ended",
    Effect.LOST: "COMPLETED CELL LOST",
    Effect.UNDECIDED: "ended, where its own end is unknown",
}


def replay_table(attempts: Sequence[ReplayedAttempt]) -> Table:
    """The attempts as a table of rich."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("cell", "attempt", "verdict", "recorded", "replayed", "difference", "why"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("cell", "attempt", "verdict"))
    for one in attempts:
        if one.played is None:
            cells = ("-", "-", f"not replayed: {one.why_not}", "")
        else:
            why = one.played.replayed.evidence if one.played.replayed else {}
            cause = one.played.replayed.cause if one.played.replayed else None
            words = (*(printable(str(why[name])) for name in ("rule", "signals") if name in why), figures(why, cause))
            told = ", ".join(word for word in words if word)
            recorded = _moment(one.played.acted, "would have: " if one.played.observed else "")
            cells = (recorded, _moment(one.played.replayed), _difference(one), told)
        table.add_row(printable(one.cell_id), str(one.attempt), one.verdict or "unfinished", *cells)
    return table


def replay_sum(attempts: Sequence[ReplayedAttempt], thresholds: str) -> str:
    """One line: what these thresholds would have changed."""
    effects, saved_s, lost_s = _totals(attempts)
    told = [f"{effects[effect]} {_WORDS[effect].lower()}" for effect in Effect if effects[effect]]
    open_ended = any(one.difference.at_least for one in attempts if one.difference)
    bound = "" if not open_ended else "at most " if saved_s >= 0 else "at least "
    time = f"{bound}{duration(abs(saved_s))} {'saved' if saved_s >= 0 else 'lost'}"
    if lost_s:
        time += f", and {duration(lost_s)} of completed cells lost"
    left_out = sum(one.played is None for one in attempts)
    rest = f"; {left_out} not replayed" if left_out else ""
    return f"{thresholds}: {count_of(len(attempts), 'attempt')}: {', '.join(told) or 'nothing recorded'}; {time}{rest}"


def replay_document(run: str, attempts: Sequence[ReplayedAttempt], thresholds: str) -> dict[str, Any]:
    """The same for programs; schema 1: keys are added, never renamed or removed.

    `saved_s` of the summary leaves out completed cells that would have been lost: what it took to measure those is in
    `lost_s`.
    """
    effects, saved_s, lost_s = _totals(attempts)
    return {
        "schema": SCHEMA,
        "run": run,
        "thresholds": thresholds,
        "summary": {
            "effects": {effect.value: effects[effect] for effect in Effect if effects[effect]},
            "not_replayed": sum(one.played is None for one in attempts),
            "saved_s": round(saved_s, 3),
            "lost_s": round(lost_s, 3),
        },
        "attempts": [_body(one) for one in attempts],
    }


def _totals(attempts: Sequence[ReplayedAttempt]) -> tuple[Counter[Effect], float, float]:
    """How often which effect, the seconds saved (negative: spent), and those of completed cells that would be lost."""
    differences = [one.difference for one in attempts if one.difference]
    saved_s = sum(one.saved_s or 0.0 for one in differences if one.effect is not Effect.LOST)
    lost_s = sum(-(one.saved_s or 0.0) for one in differences if one.effect is Effect.LOST)
    return Counter(one.effect for one in differences), saved_s, lost_s


def _body(one: ReplayedAttempt) -> dict[str, Any]:
    body: dict[str, Any] = {
        "cell_id": one.cell_id,
        "attempt": one.attempt,
        "verdict": one.verdict,
        "why_not_replayed": one.why_not,
    }
    for name in ("acted", "observed", "replayed", "lasted_s", "samples", "thinned"):
        value = getattr(one.played, name) if one.played else None
        body[name] = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type] # no class
    body["effect"] = one.difference.effect.value if one.difference else None
    body["saved_s"] = one.difference.saved_s if one.difference else None
    body["at_least"] = one.difference.at_least if one.difference else None
    return body


def _moment(moment: Moment | None, before: str = "") -> str:
    return "-" if moment is None else f"{before}{printable(moment.cause)} at {duration(moment.after_s)}"


def _difference(one: ReplayedAttempt) -> str:
    difference = one.difference
    if difference is None:
        return ""
    words = _WORDS[difference.effect]
    if difference.effect is Effect.LOST and difference.saved_s:
        return f"{words}: {duration(-difference.saved_s)} of measuring"
    if not difference.saved_s:
        return words
    least = "at least " if difference.at_least else ""
    return f"{words}: {least}{duration(abs(difference.saved_s))} {'saved' if difference.saved_s > 0 else 'lost'}"

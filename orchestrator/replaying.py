"""Owns `wallfinder replay`: finds a run's recordings and the limits they were made with, and has each judged anew.

Does not judge (replay.py) and does not lay anything out (report/replay_table.py). Reads files only.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LedgerError
from orchestrator.plan import held_against
from orchestrator.recordings import recorded_limits, recorded_lines
from orchestrator.replay import Difference, Played, compare, play
from orchestrator.run_directory import RECORDING, RESULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from orchestrator.cells import Cell
    from orchestrator.history import History
    from orchestrator.plan import Watchdog
    from orchestrator.run_directory import RunDirectory
    from orchestrator.watchdog.limits import Limits


@dataclass(frozen=True, slots=True)
class ReplayedAttempt:
    """One attempt. `verdict` is None while it has no end; `why_not` says in words why there is nothing to replay, and
    then the rest is None."""

    cell_id: str
    attempt: int
    verdict: str | None
    played: Played | None = None
    difference: Difference | None = None
    why_not: str | None = None


def cells_like(cells: Sequence[Cell], glob: str | None) -> list[Cell]:
    """The cells whose id matches; all of them without a glob.

    Raises:
        LedgerError: none does.
    """
    chosen = [cell for cell in cells if glob is None or fnmatch.fnmatchcase(cell.cell_id, glob)]
    if glob is not None and not chosen:
        example = cells[0].cell_id if cells else "c04096-b016"
        raise LedgerError(f"--cell: {glob} matches no cell of this run; write a cell id such as {example}, or a glob")
    return chosen


def replay_run(
    run: RunDirectory, cells: Iterable[Cell], history: History, dog: Watchdog | None
) -> Iterator[ReplayedAttempt]:
    """Every attempt of the cells, in their order. With `dog` its thresholds count, else those of the recording.

    Raises:
        LedgerError: a recording or a result cannot be read; the message names the file.
    """
    for cell in cells:
        verdicts = {record.attempt: record.verdict.value for record in history.records.get(cell.cell_id, ())}
        for attempt in range(1, history.attempts.get(cell.cell_id, 0) + 1):
            folder = run.path / "cells" / cell.cell_id / f"attempt-{attempt}"
            bare = ReplayedAttempt(cell.cell_id, attempt, verdicts.get(attempt))
            yield _replay_attempt(bare, folder, dog)


def _replay_attempt(bare: ReplayedAttempt, folder: Path, dog: Watchdog | None) -> ReplayedAttempt:
    path = folder / RECORDING
    lines = recorded_lines(path) if path.exists() else iter(())
    first = next(lines, None)
    if first is None:
        return dataclasses.replace(bare, why_not="no recording")
    lines = itertools.chain([first], lines)
    source, recorded = f"{path}:1", first.get("limits")
    if recorded is None:  # as recordings were before they had events
        source, result = str(folder / RESULT), _result(folder / RESULT)
        recorded = result.get("limits")
        lines = itertools.chain(_acts(result), lines)
    if recorded is None:
        return dataclasses.replace(bare, why_not="its limits are not on file")
    try:
        limits = recorded_limits(recorded)
    except ValueError as error:
        raise LedgerError(f"{source}: holds no limits ({_in_a_line(error)}); put it back, or move it away") from error
    played = play(lines, limits if dog is None else with_thresholds(dog, limits))
    if not played.samples:
        return dataclasses.replace(bare, why_not="no recording")
    return dataclasses.replace(bare, played=played, difference=compare(played, bare.verdict))


def with_thresholds(dog: Watchdog, limits: Limits) -> Limits:
    """The attempt's limits with other thresholds; its samples came as often as they came."""
    return dataclasses.replace(held_against(dog, limits), sample_every_s=limits.sample_every_s)


def _acts(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What the watchdog did, out of what it said when it was done, in the form of an event."""
    released = result.get("watchdog")
    if isinstance(released, dict) and released.get("cause") and released.get("rungs"):
        yield {
            "event": "acted",
            "at_s": float(released["rungs"][0][1]),
            "cause": released["cause"],
            "evidence": released.get("evidence", {}),
        }


def _result(path: Path) -> dict[str, Any]:
    """An attempt's result.json; empty where it did not come so far."""
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path}: cannot be read: {error}; put it back, or move it away") from error
    return body if isinstance(body, dict) else {}


def _in_a_line(error: ValueError) -> str:
    return " ".join(str(error).split())[:200]

"""Owns `wallfinder replay`: finds a run's recordings and the limits they were made with, and has each judged anew.

Does not judge (replay.py) and does not lay anything out (report/replay_table.py). Reads files only.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LedgerError
from orchestrator.plan import held_against
from orchestrator.recordings import recorded_lines
from orchestrator.replay import Difference, Played, compare, play
from orchestrator.run_directory import RECORDING, RESULT
from orchestrator.watchdog.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from orchestrator.cells import Cell
    from orchestrator.plan import Watchdog
    from orchestrator.run_directory import RunDirectory

_LIMITS = {field.name for field in dataclasses.fields(Limits)}


@dataclass(frozen=True, slots=True)
class ReplayedAttempt:
    """One attempt. `why_not` says in words why there is nothing to replay; then the rest is None."""

    cell_id: str
    attempt: int
    verdict: str | None
    played: Played | None = None
    difference: Difference | None = None
    why_not: str | None = None


def replay_run(run: RunDirectory, cells: Iterable[Cell], dog: Watchdog | None) -> Iterator[ReplayedAttempt]:
    """Every attempt of the cells, in their order. With `dog` its thresholds count, else those of the recording.

    Raises:
        LedgerError: a recording or a result cannot be read; the message names the file.
    """
    for cell in cells:
        folder = run.path / "cells" / cell.cell_id
        attempts = sorted(folder.glob("attempt-*"), key=lambda path: int(path.name.partition("-")[2]))
        for path in attempts:
            yield _replay_attempt(cell.cell_id, path, dog)


def _replay_attempt(cell_id: str, folder: Path, dog: Watchdog | None) -> ReplayedAttempt:
    number, result = int(folder.name.partition("-")[2]), _result(folder / RESULT)
    verdict = result.get("record", {}).get("verdict")
    path = folder / RECORDING
    lines = recorded_lines(path) if path.exists() else iter(())
    first = next(lines, None)
    if first is None:
        return ReplayedAttempt(cell_id, number, verdict, why_not="no samples")
    recorded = first.get("limits") or result.get("limits")
    if recorded is None:
        return ReplayedAttempt(cell_id, number, verdict, why_not="its limits are not on file")
    try:
        limits = Limits(**{name: value for name, value in recorded.items() if name in _LIMITS})
        played = play(itertools.chain([first], lines), limits if dog is None else held_against(dog, limits))
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"{path}: holds what no recording holds: {error!r}; put it back, or move it away") from error
    if not played.samples:
        return ReplayedAttempt(cell_id, number, verdict, why_not="no samples")
    return ReplayedAttempt(cell_id, number, verdict, played, compare(played, completed=verdict == "completed"))


def _result(path: Path) -> dict[str, Any]:
    """An attempt's result.json; empty where it did not come so far."""
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path}: cannot be read: {error}; put it back, or move it away") from error
    return body if isinstance(body, dict) else {}

"""Owns the row that every report is made of: a cell of the plan and what became of it so far.

Does not read the ledger (commands.py hands out the rows) and does not lay anything out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.records import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cells import Cell
    from orchestrator.records import CellRecord


# The memory's limit: the cell hit the wall, or took the machine down.
WALLS = frozenset({Verdict.HIT_THE_WALL, Verdict.HOST_DIED})


@dataclass(frozen=True, slots=True)
class CellRow:
    """One cell of the plan. `record` is that of its last ended attempt, None where there is none yet.

    `attempts` counts those that were started; `running` says that one runs now.
    """

    cell: Cell
    record: CellRecord | None = None
    attempts: int = 0
    running: bool = False

    @property
    def closed(self) -> CellRecord | None:
        """The record that counts; None while the cell is open: never run, or running again."""
        return None if self.running else self.record

    @property
    def verdict(self) -> Verdict | None:
        """What became of the cell; None while it is open."""
        return self.closed.verdict if self.closed else None


def count_by_verdict(rows: Sequence[CellRow]) -> dict[str, int]:
    """How many cells have each verdict; `open` for those that have none. Only what occurs, in the order of
    Verdict."""
    counted = Counter(row.verdict for row in rows)
    named = {verdict.value: counted[verdict] for verdict in Verdict if counted[verdict]}
    return named | ({"open": counted[None]} if counted[None] else {})

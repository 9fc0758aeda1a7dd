"""Owns how the cells of a running sweep stand, kept up record by record: which are open, which records count.

Does not decide what is done (schedule.py). To look through all cells at each of them would be a hundred million
looks in a sweep of ten thousand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cells import Cell
    from orchestrator.history import History
    from orchestrator.records import CellRecord


class Standing:
    """The cells of a sweep as the history has them, as long as `take` is told of every record that goes into it."""

    def __init__(self, cells: Sequence[Cell], history: History, retries: schedule.Retries) -> None:
        self._history, self._retries = history, retries
        left = schedule.in_turn(schedule.left_to_do(cells, history, retries), history)
        self._open = {cell.cell_id: cell for cell in left}
        self._counting: dict[str | None, list[CellRecord]] = {}
        self._unheard: list[CellRecord] = []
        for cell in cells:
            for record in history.counting(cell.cell_id):
                self._keep(record)

    def left(self) -> tuple[Cell, ...]:
        """The cells that still need an attempt, in the order given; where repetitions are taken in turn, in their
        turn."""
        return tuple(self._open.values())

    def counting(self, variant: str | None) -> Sequence[CellRecord]:
        """The ended attempts of a variant's cells that count."""
        return self._counting.get(variant, ())

    def take(self, record: CellRecord) -> None:
        """Takes in a record that the history has just got."""
        self._keep(record)
        if schedule.is_done(self._history.counting(record.cell_id), self._retries):
            self._open.pop(record.cell_id, None)
        elif record.partial:
            self._open[record.cell_id] = self._open.pop(record.cell_id)  # behind those that have had less

    def news(self) -> list[CellRecord]:
        """The records that speak for other cells too, each told once.

        A failure that is to be tried again speaks for nobody yet: it is told when its cell is done.
        """
        told = [record for record in self._unheard if record.memory_wall or record.cell_id not in self._open]
        self._unheard = [record for record in self._unheard if not record.memory_wall and record.cell_id in self._open]
        return told

    def _keep(self, record: CellRecord) -> None:
        self._counting.setdefault(record.variant, []).append(record)
        if record.memory_wall or record.stops_variant:
            self._unheard.append(record)

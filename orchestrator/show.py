"""Owns what a running sweep tells its screen: glimpses and records in, progress out.

Does not draw (progress.py) and does not decide anything.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from orchestrator import schedule
from orchestrator.cells import Cell
from orchestrator.eta import remaining_s
from orchestrator.progress import CellProgress, PlainScreen, Screen, open_screen
from orchestrator.records import CellRecord, Verdict
from orchestrator.stats import median

if TYPE_CHECKING:
    from types import TracebackType

    from orchestrator.attempt import Glimpse
    from orchestrator.history import History
    from orchestrator.host import HostFacts
    from orchestrator.plan import Plan, Settings
    from worker.telemetry import Telemetry

_RECENT_STEPS = 8


class LiveShow:
    """The screen of one sweep, on stderr; leaves the terminal as it was when it is left."""

    def __init__(self, plan: Plan, history: History, host: HostFacts, *, plain: bool) -> None:
        self._plan, self._history = plan, history
        self._memory_bytes = host.usable_memory_bytes
        self._cells = schedule.ordered(plan.cells(), plan.order)
        self._retries = schedule.Retries(plan.retries.crashed, plan.retries.failed)
        self._screen: Screen = PlainScreen(sys.stderr, time.monotonic) if plain else open_screen(sys.stderr)
        self._started_s = time.monotonic()
        self._left: tuple[Cell, ...] | None = None
        self._done = len(self._cells) - len(schedule.left_to_do(self._cells, history, self._retries))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.close()

    def running(self, cell: Cell, settings: Settings, attempt: int, glimpse: Glimpse) -> None:
        """Shows where the running attempt is."""
        telemetry = glimpse.telemetry
        self._screen.update(
            CellProgress(
                index=min(self._done + 1, len(self._cells)),
                total=len(self._cells),
                cell_id=cell.cell_id,
                attempt=attempt,
                phase=telemetry.phase.label if telemetry else "starting",
                rep=telemetry.rep if telemetry else None,
                reps=settings.repeats.most,
                step=telemetry.step if telemetry else None,
                steps=settings.gen_tokens - 1,
                step_s=_recent_step_s(telemetry),
                expected_step_s=schedule.expected_step_s(cell, self._counting()),
                footprint_bytes=glimpse.footprint_bytes,
                memory_bytes=min(self._memory_bytes, settings.worker_memory or self._memory_bytes),
                swap_growth_bytes=glimpse.swap_growth_bytes,
                cell_elapsed_s=glimpse.elapsed_s,
                sweep_elapsed_s=time.monotonic() - self._started_s,
                eta_s=self._eta_s(settings, glimpse),
            )
        )

    def ended(self, record: CellRecord) -> None:
        """Shows what became of a cell."""
        self._left = None
        self._screen.ended(record, min(self._done + 1, len(self._cells)), len(self._cells))
        if schedule.is_done(self._history.counting(record.cell_id), self._retries):
            self._done += 1

    def _open(self) -> tuple[Cell, ...]:
        """The cells without an answer; looked up once per cell, since the screen asks four times a second.

        One whose repetitions are taken in turn is there as often as they are left, at least.
        """
        if self._left is None:
            left = schedule.left_to_do(self._cells, self._history, self._retries)
            if self._plan.interleave:
                left = tuple(
                    cell for cell in schedule.in_turn(left, self._history) for _ in range(self._turns_left(cell))
                )
            self._left = left
        return self._left

    def _turns_left(self, cell: Cell) -> int:
        done = sum(record.partial for record in self._history.counting(cell.cell_id))
        return max(1, self._plan.settings(cell.variant).repeats.least - done)

    def _eta_s(self, settings: Settings, glimpse: Glimpse) -> float | None:
        took = [
            (Cell(record.variant, record.context, record.batch), record.duration_s)
            for record in self._counting()
            if record.verdict is Verdict.COMPLETED
        ]
        return remaining_s(took, self._open(), running_for_s=glimpse.elapsed_s, limit_s=settings.cell_time_limit)

    def _counting(self) -> list[CellRecord]:
        return [record for cell in self._cells for record in self._history.counting(cell.cell_id)]


def _recent_step_s(telemetry: Telemetry | None) -> float | None:
    steps = telemetry.recent_step_s[-_RECENT_STEPS:] if telemetry else ()
    return median(steps) if steps else None

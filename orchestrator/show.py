"""Owns what a running sweep tells its screen: glimpses and records in, progress out.

Does not draw (progress.py) and does not decide anything.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from orchestrator import schedule
from orchestrator.cells import Cell
from orchestrator.eta import LOOKS_BACK, remaining_s
from orchestrator.progress import CellProgress, PlainScreen, Screen, open_screen
from orchestrator.records import CellRecord, Verdict
from orchestrator.standing import Standing
from orchestrator.stats import median

if TYPE_CHECKING:
    from collections.abc import Sequence
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
        self._standing = Standing(self._cells, history, self._retries)
        counting = (record for cell in self._cells for record in history.counting(cell.cell_id))
        done = (_took(record) for record in counting if record.verdict is Verdict.COMPLETED)
        self._took = deque(done, maxlen=LOOKS_BACK)
        self._done = len(self._cells) - len(self._standing.left())
        self._outlook: _Outlook | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.close()

    def running(self, cell: Cell, settings: Settings, attempt: int, glimpse: Glimpse) -> None:
        """Shows where the running attempt is."""
        telemetry = glimpse.telemetry
        outlook = self._outlook_for(cell, settings)
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
                expected_step_s=outlook.step_s,
                footprint_bytes=glimpse.footprint_bytes,
                memory_bytes=min(self._memory_bytes, settings.worker_memory or self._memory_bytes),
                swap_growth_bytes=glimpse.swap_growth_bytes,
                cell_elapsed_s=glimpse.elapsed_s,
                sweep_elapsed_s=time.monotonic() - self._started_s,
                eta_s=outlook.remaining_s(glimpse.elapsed_s),
            )
        )

    def ended(self, record: CellRecord) -> None:
        """Shows what became of a cell."""
        self._standing.take(record)
        if record.verdict is Verdict.COMPLETED:
            self._took.append(_took(record))
        self._outlook = None
        self._screen.ended(record, min(self._done + 1, len(self._cells)), len(self._cells))
        if schedule.is_done(self._history.counting(record.cell_id), self._retries):
            self._done += 1

    def _outlook_for(self, cell: Cell, settings: Settings) -> _Outlook:
        """What is expected of the running cell; looked up once per cell, since the screen asks four times a second."""
        if self._outlook is None or self._outlook.cell != cell:
            left = self._turns(self._standing.left())
            self._outlook = _Outlook(
                cell=cell,
                step_s=schedule.expected_step_s(cell, self._standing.counting(cell.variant)),
                first_s=remaining_s(list(self._took), left[:1], limit_s=settings.cell_time_limit),
                rest_s=remaining_s(list(self._took), left[1:], limit_s=settings.cell_time_limit),
            )
        return self._outlook

    def _turns(self, left: Sequence[Cell]) -> list[Cell]:
        """The cells that are open; one whose repetitions are taken in turn as often as they are left, at least."""
        if not self._plan.interleave:
            return list(left)
        turns = []
        for cell in left:
            done = sum(record.partial for record in self._history.counting(cell.cell_id))
            turns += [cell] * max(1, self._plan.settings(cell.variant).repeats.least - done)
        return turns


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What is expected while a cell runs, in seconds: its step, the whole of it, and all that comes behind it."""

    cell: Cell
    step_s: float | None
    first_s: float | None
    rest_s: float | None

    def remaining_s(self, running_for_s: float) -> float | None:
        """Until the sweep is done; None while nothing can be said."""
        if self.first_s is None or self.rest_s is None:
            return None
        return max(self.first_s - running_for_s, 0.0) + self.rest_s


def _took(record: CellRecord) -> tuple[Cell, float]:
    return Cell(record.variant, record.context, record.batch), record.duration_s


def _recent_step_s(telemetry: Telemetry | None) -> float | None:
    steps = telemetry.recent_step_s[-_RECENT_STEPS:] if telemetry else ()
    return median(steps) if steps else None

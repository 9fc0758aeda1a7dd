"""Owns one measurement within a sweep: the order, the living watchdog, the attempt, its record, its result on the disk.

Does not decide what is measured next, and writes nothing into the ledger but who watches.
"""

from __future__ import annotations

import contextlib
import gc
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from orchestrator.attempt import Attempt, Glimpse, Order, Outcome
from orchestrator.attempt_record import Around, record_of, result_document
from orchestrator.attempt_spec import attempt_limits, attempt_spec
from orchestrator.cgroup import WorkerCgroup
from orchestrator.conditions import CellConditions
from orchestrator.conditions_probe import read_conditions
from orchestrator.errors import LedgerUnwritable
from orchestrator.ledger import utc_now
from orchestrator.watching import WatchdogLink
from worker.telemetry import TelemetryPage, create_page_fd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from orchestrator.cells import Cell
    from orchestrator.host import HostFacts
    from orchestrator.interrupts import Interrupts
    from orchestrator.ledger import Ledger
    from orchestrator.plan import Settings
    from orchestrator.records import CellRecord
    from orchestrator.run_directory import RunDirectory
    from orchestrator.verdict import Judgement
    from worker.protocol import ModelSource, RepResult
    from worker.repeats import Repeats

log = structlog.get_logger()


class SweepScreen(Protocol):
    """What a sweep tells whoever shows it."""

    def running(self, cell: Cell, settings: Settings, attempt: int, glimpse: Glimpse) -> None:
        """Called about four times a second."""

    def ended(self, record: CellRecord) -> None:
        """Called once for every record that goes into the ledger."""


@dataclass(frozen=True, slots=True)
class Task:
    """A cell to measure: which attempt of it, how often, and where its files go."""

    cell: Cell
    settings: Settings
    attempt: int
    repeats: Repeats
    folder: Path


@dataclass(frozen=True, slots=True)
class State:
    """The host before a measurement: whether it stood idle (`cold`), and why numbers from it are in doubt."""

    cold: bool
    contaminated: bool
    drifted: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """An attempt that is over, and what it amounts to."""

    record: CellRecord
    judgement: Judgement
    outcome: Outcome


class Measuring:
    """Measures cells, one at a time, with one watchdog for all of them."""

    def __init__(
        self, run: RunDirectory, ledger: Ledger, host: HostFacts, interrupts: Interrupts, screen: SweepScreen
    ) -> None:
        self._run, self._ledger, self._host = run, ledger, host
        self._interrupts, self._screen = interrupts, screen
        self._page_fd = create_page_fd()
        self._page = TelemetryPage(self._page_fd)
        self._watchdog: WatchdogLink | None = None
        self._serial = 0
        self.refused: frozenset[str] = frozenset()  # readings of this host that nobody should believe

    def living_watchdog(self) -> WatchdogLink:
        """The watchdog, started where none lives. Raises HostUnfit."""
        if self._watchdog is None:
            self._watchdog = WatchdogLink(self._page_fd, self.refused)
            ready, refused = self._watchdog.ready, sorted(self.refused)
            self._ledger.append(
                "watchdog.started", pid=ready.pid, probe=ready.probe, backstops=ready.backstops, refused=refused
            )
            if refused:
                log.warning("readings.refused", names=refused)
        return self._watchdog

    def close(self) -> None:
        """Ends the watchdog and gives the page back."""
        if self._watchdog is not None:
            self._watchdog.close()
        os.close(self._page_fd)

    @contextlib.contextmanager
    def order(self, task: Task, model: ModelSource, records: Sequence[CellRecord], state: State) -> Iterator[Order]:
        """What an attempt is to do, by the records so far. Its memory bound, where it has one, is there in the block.

        Raises:
            HostUnfit: no such bound can be made here.
        """
        settings = task.settings
        bound = None
        if settings.worker_memory is not None:
            bound = WorkerCgroup.create(settings.worker_memory, f"{os.getpid()}-{self._serial + 1}")
        try:
            self._serial += 1
            limits = attempt_limits(task.cell, settings, self._host.usable_memory_bytes, records)
            yield Order(
                spec=attempt_spec(task, self._serial, model, limits, cold=state.cold),
                limits=limits,
                env=settings.env,
                folder=task.folder,
                bound=bound,
                observe=settings.watchdog.mode == "observe",
            )
        finally:
            if bound is not None:
                bound.remove()

    def measure(self, task: Task, order: Order, state: State, earlier: Sequence[RepResult] = ()) -> Measured:
        """One attempt, its record, and its result on the disk.

        `earlier`: repetitions of the cell from attempts before, where repetitions are taken in turn.

        Raises:
            HostUnfit: no process, descriptor or file could be had.
        """
        watchdog = self.living_watchdog()
        attempt = Attempt(order, self._page, self._page_fd, watchdog, self._interrupts)
        started_at, before = utc_now(), read_conditions()
        outcome = attempt.run(lambda glimpse: self._screen.running(task.cell, task.settings, task.attempt, glimpse))
        around = Around(
            started_at=started_at,
            ended_at=utc_now(),
            boot_id=self._host.boot_id,
            contaminated=state.contaminated,
            drifted=state.drifted,
            conditions=CellConditions(before, read_conditions()),
        )
        record, judgement = record_of(task.cell, order, outcome, around, earlier)
        try:
            self._run.write_result(order.folder, result_document(record, order, outcome))
        except LedgerUnwritable as error:  # the journal line matters more, and has a reserve
            log.warning("result.not_written", error=str(error))
        if outcome.watchdog_died:
            watchdog.kill()
            self._watchdog = None
        # An attempt leaves 2.5 KB in cycles; by itself the collector waits until they are a quarter of all there is.
        gc.collect()
        return Measured(record, judgement, outcome)

"""Owns the loop of a sweep: next cell, attempt, verdict, ledger, a pause; and why it ended.

Does not decide what a cell became (verdict.py), what is next (schedule.py) or how it looks (progress.py).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from typing import TYPE_CHECKING, Protocol

import structlog

from orchestrator import schedule
from orchestrator.attempt import Attempt, Glimpse, Order
from orchestrator.attempt_record import record_of, result_document
from orchestrator.attempt_spec import attempt_limits, attempt_spec
from orchestrator.cgroup import WorkerCgroup, remove_stale
from orchestrator.cooldown import CoolDown
from orchestrator.crosscheck import readings_refused
from orchestrator.deadline import Deadline
from orchestrator.errors import Exit, HostUnfit, LedgerUnwritable, ModelUnavailable, ModelUnreachable
from orchestrator.ledger import Ledger, utc_now
from orchestrator.model_store import ModelStore
from orchestrator.records import CellRecord, Verdict
from orchestrator.standing import Standing
from orchestrator.strays import end_abandoned
from orchestrator.sweep_bounds import SweepEnd, begin, completed_end, conclude
from orchestrator.unrun import cut_off_record, not_started_record, unrun_record
from orchestrator.watching import WatchdogLink
from worker.telemetry import TelemetryPage, create_page_fd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.cells import Cell
    from orchestrator.host import HostFacts
    from orchestrator.interrupts import Interrupts
    from orchestrator.plan import Plan, Settings
    from orchestrator.run_directory import RunDirectory

log = structlog.get_logger()

_FREE_DISK_FLOOR_BYTES = 64 * 1024 * 1024
_RETRY = "mend it, then `wallfinder resume RUN --retry failed`"
_COLD_S = 1.0  # of a pause: an idle GPU lets its weights go and slows its clock
_REPEATS = 3  # of an attempt that nobody can be blamed for: a lost watchdog, a machine that slept


class StopSweep(Exception):
    """Ends the loop from inside, in order."""

    def __init__(self, end: SweepEnd) -> None:
        super().__init__(end.reason)
        self.end = end


class SweepScreen(Protocol):
    """What a sweep tells whoever shows it."""

    def running(self, cell: Cell, settings: Settings, attempt: int, glimpse: Glimpse) -> None:
        """Called about four times a second."""

    def ended(self, record: CellRecord) -> None:
        """Called once for every record that goes into the ledger."""


class Sweep:
    """One sweep over a run directory whose lock the caller holds."""

    def __init__(
        self,
        run: RunDirectory,
        plan: Plan,
        ledger: Ledger,
        host: HostFacts,
        interrupts: Interrupts,
        screen: SweepScreen,
    ) -> None:
        self._run, self._plan, self._ledger, self._host = run, plan, ledger, host
        self._interrupts, self._screen = interrupts, screen
        self._history = ledger.history
        self._cells = schedule.ordered(plan.cells(), plan.order)
        retries = schedule.Retries(plan.retries.crashed, plan.retries.failed)
        self._standing = Standing(self._cells, self._history, retries)
        self._models = ModelStore(ledger, self._is_stop_wanted)
        self._page_fd = create_page_fd()
        self._page = TelemetryPage(self._page_fd)
        self._watchdog: WatchdogLink | None = None
        self._serial = 0
        self._blameless = 0
        self._contaminated = False
        self._cold = False  # whether the machine stood idle before the next cell
        self._deadline = Deadline(plan.deadline)
        self._refused = readings_refused()
        self._cooldown = CoolDown(plan.cooldown, host.usable_memory_bytes, self._refused)

    def run(self) -> SweepEnd:
        """Does what is left of the plan and says why it ended.

        Raises:
            LedgerError: the journal takes no more lines.
        """
        remove_stale()
        abandoned = end_abandoned()
        if abandoned:
            log.warning("strays.ended", processes=abandoned, of="sweeps that were killed")
        begin(self._ledger, self._plan, self._host)
        log.info("sweep.started", run=str(self._run.path), cells=len(self._cells))
        try:
            self._settle_what_was_cut_off()
            end = self._loop()
        except StopSweep as stop:
            end = stop.end
        except (HostUnfit, LedgerUnwritable, ModelUnavailable, ModelUnreachable) as error:
            end = SweepEnd(Exit.HOST, "stopped", str(error))
        finally:
            if self._watchdog is not None:
                self._watchdog.close()
            os.close(self._page_fd)
        conclude(self._ledger, end)
        log.info("sweep.ended", state=end.state, reason=end.reason)
        return end

    # -- the loop

    def _loop(self) -> SweepEnd:
        self._bring_models()
        left = self._left()
        if left:
            self._living_watchdog()
            self._cooldown.take_baseline()
        while left:
            self._stop_if_asked()
            if not self._answer_what_is_known(left):
                self._run_cell(left[0])
                if self._left():
                    self._pause(left[0])
            left = self._left()
        return completed_end(self._cells, self._history)

    def _bring_models(self) -> None:
        """Downloads what is missing before the first cell, so that no download runs beside a measurement.

        A model that there is not fails every cell of its variant. One that was not reached this time stops the sweep,
        and leaves the cells open for the next.
        """
        for variant in dict.fromkeys(cell.variant for cell in self._left()):
            self._stop_if_asked()
            try:
                self._models.source(self._plan.settings(variant))
            except ModelUnreachable as error:
                self._stop_if_asked()  # a stop that was asked for is why the download ended
                raise StopSweep(SweepEnd(Exit.HOST, "stopped", f"{error}; then resume")) from error
            except ModelUnavailable as error:
                for cell in self._left():
                    self._stop_if_asked()
                    if cell.variant == variant:
                        self._record_unrun(
                            cell, Verdict.FAILED, cause="model_unavailable", detail=str(error), remedy=_RETRY
                        )

    def _left(self) -> tuple[Cell, ...]:
        return self._standing.left()

    def _is_stop_wanted(self) -> bool:
        return self._interrupts.wanted or self._deadline.has_passed()

    def _stop_if_asked(self) -> None:
        if self._interrupts.wanted:
            raise StopSweep(interrupted_end(self._interrupts))
        if self._deadline.has_passed():
            raise StopSweep(
                SweepEnd(Exit.DEADLINE, "stopped", "the plan's deadline has passed; `wallfinder resume` goes on")
            )
        free = self._free_disk_bytes()
        if self._ledger.disk_full or free < _FREE_DISK_FLOOR_BYTES:
            reason = f"{free / 1e6:.0f} MB free on the disk of {self._run.path}; make room, then resume"
            raise StopSweep(SweepEnd(Exit.HOST, "stopped", reason))

    def _free_disk_bytes(self) -> int:
        try:
            self._run.plan_path.stat()
            return shutil.disk_usage(self._run.path).free
        except OSError as error:
            raise HostUnfit(f"{error.filename or self._run.path}: is not there any more: {error.strerror}") from error

    def _answer_what_is_known(self, left: Sequence[Cell]) -> bool:
        """Records every cell that a wall or a failure of another speaks for; whether there was one."""
        news = self._standing.news()
        walls = [record for record in news if record.memory_wall] if self._plan.after_wall == "skip_dominated" else []
        failures = [record for record in news if record.stops_variant]
        answered = False
        for cell in left if walls or failures else ():
            self._stop_if_asked()
            wall = schedule.dominating_wall(cell, walls)
            failure = schedule.stopping_failure(cell, failures)
            if wall is not None:
                detail = f"{wall.cell_id} hit the memory wall, and this cell needs no less"
                self._record_unrun(cell, Verdict.SKIPPED, detail=detail, dominated_by=wall.cell_id)
            elif failure is not None and failure.cell_id != cell.cell_id:
                detail = f"not tried: {failure.cell_id} showed that no cell of this variant can run: {failure.detail}"
                self._record_unrun(cell, Verdict.FAILED, cause=failure.cause, detail=detail, remedy=failure.remedy)
            else:
                continue
            answered = True
        return answered

    # -- one cell

    def _run_cell(self, cell: Cell) -> None:
        settings = self._plan.settings(cell.variant)
        model = self._models.source(settings)
        attempt = self._history.attempts.get(cell.cell_id, 0) + 1
        watchdog = self._living_watchdog()
        folder = self._run.attempt_folder(cell.cell_id, attempt)
        bound = self._bound(settings)
        try:
            started_at = utc_now()
            self._ledger.append("cell.started", cell_id=cell.cell_id, attempt=attempt, boot_id=self._host.boot_id)
            self._serial += 1
            records = self._standing.counting(cell.variant)
            limits = attempt_limits(cell, settings, self._host.usable_memory_bytes, records)
            order = Order(
                spec=attempt_spec(cell, settings, attempt, self._serial, model, limits, cold=self._cold),
                limits=limits,
                env=settings.env,
                folder=folder,
                bound=bound,
                observe=settings.watchdog.mode == "observe",
            )
            self._attempt(cell, settings, order, watchdog, started_at)
        except HostUnfit as error:  # an attempt without an end would be the next boot's `host_died`
            self._record(not_started_record(cell, attempt, started_at, self._host.boot_id, utc_now(), str(error)))
            raise
        finally:
            if bound is not None:
                bound.remove()

    def _attempt(self, cell: Cell, settings: Settings, order: Order, watchdog: WatchdogLink, started_at: str) -> None:
        attempt = Attempt(order, self._page, self._page_fd, watchdog, self._interrupts)
        outcome = attempt.run(self._show(cell, settings, order.spec.attempt))
        record, judgement = record_of(
            cell,
            order,
            outcome,
            started_at=started_at,
            ended_at=utc_now(),
            boot_id=self._host.boot_id,
            contaminated=self._contaminated,
        )
        try:
            self._run.write_result(cell.cell_id, order.spec.attempt, result_document(record, order, outcome))
        except LedgerUnwritable as error:  # the journal line matters more, and has a reserve
            log.warning("result.not_written", error=str(error))
        self._record(record)
        if judgement.stops_sweep:
            raise StopSweep(SweepEnd(Exit.HOST, "stopped", f"{record.detail} {record.remedy}"))
        if outcome.watchdog_died:
            watchdog.kill()
            self._watchdog = None
        if outcome.exit_status is None:
            pid = outcome.telemetry.pid if outcome.telemetry else 0
            reason = f"the worker of {cell.cell_id} (pid {pid}) survived SIGKILL; reboot, then resume"
            raise StopSweep(SweepEnd(Exit.HOST, "stopped", reason))
        self._count_blameless(record)

    def _count_blameless(self, record: CellRecord) -> None:
        """An attempt that is to be repeated, without anybody having stopped it, is repeated a few times only."""
        if record.verdict is not Verdict.INTERRUPTED or self._interrupts.wanted:
            self._blameless = 0
            return
        self._blameless += 1
        if self._blameless >= _REPEATS:
            reason = f"{record.cell_id} was cut off {_REPEATS} times in a row ({record.cause}): {record.detail}"
            raise StopSweep(SweepEnd(Exit.HOST, "stopped", reason))

    def _living_watchdog(self) -> WatchdogLink:
        if self._watchdog is None:
            self._watchdog = WatchdogLink(self._page_fd, self._refused)
            ready, refused = self._watchdog.ready, sorted(self._refused)
            self._ledger.append(
                "watchdog.started", pid=ready.pid, probe=ready.probe, backstops=ready.backstops, refused=refused
            )
            if refused:
                log.warning("readings.refused", names=refused)
        return self._watchdog

    def _show(self, cell: Cell, settings: Settings, attempt: int) -> Callable[[Glimpse], None]:
        return lambda glimpse: self._screen.running(cell, settings, attempt, glimpse)

    def _bound(self, settings: Settings) -> WorkerCgroup | None:
        if settings.worker_memory is None:
            return None
        return WorkerCgroup.create(settings.worker_memory, f"{os.getpid()}-{self._serial + 1}")

    # -- what goes into the ledger

    def _record(self, record: CellRecord) -> None:
        self._ledger.append("cell.ended", record=record.to_json())
        self._standing.take(record)
        log.info("cell.ended", cell_id=record.cell_id, verdict=record.verdict.value, cause=record.cause)
        self._screen.ended(record)

    def _record_unrun(
        self,
        cell: Cell,
        verdict: Verdict,
        *,
        cause: str | None = None,
        detail: str,
        remedy: str = "",
        dominated_by: str | None = None,
    ) -> None:
        self._record(
            dataclasses.replace(
                unrun_record(cell, verdict, self._host, utc_now()),
                cause=cause,
                detail=detail,
                remedy=remedy,
                dominated_by=dominated_by,
            )
        )

    def _settle_what_was_cut_off(self) -> None:
        for started in list(self._history.open.values()):
            cell = next((cell for cell in self._cells if cell.cell_id == started.cell_id), None)
            if cell is not None:
                self._record(cut_off_record(cell, started, self._host.boot_id, utc_now()))

    # -- between cells

    def _pause(self, cell: Cell) -> None:
        waited = self._cooldown.wait(self._interrupts)
        self._contaminated = waited.unsettled is not None
        self._cold = waited.seconds >= _COLD_S
        told = {"after": cell.cell_id, "waited_s": round(waited.seconds, 3), **waited.came_back.to_json()}
        if waited.unsettled is None:
            self._ledger.append("host.settled", **told)
            return
        self._ledger.append("host.contaminated", **told, because=waited.unsettled)
        log.warning("host.contaminated", after=cell.cell_id, because=waited.unsettled)
        if self._plan.cooldown.on_timeout == "stop":
            reason = (
                f"{waited.unsettled} {waited.seconds:.0f} s after {cell.cell_id}; what would be measured now would "
                "not stand. Free the memory or reboot, then resume (or set cooldown.on_timeout: mark)"
            )
            raise StopSweep(SweepEnd(Exit.HOST, "stopped", reason))


def interrupted_end(interrupts: Interrupts) -> SweepEnd:
    """How a sweep ends that a person or the system stopped."""
    by_keyboard = interrupts.signum == signal.SIGINT
    name = signal.Signals(interrupts.signum or signal.SIGTERM).name
    code = Exit.INTERRUPTED if by_keyboard else Exit.TERMINATED
    return SweepEnd(code, "stopped", f"stopped by {name}; `wallfinder resume` goes on")

"""Owns the loop of a sweep: next cell, attempt, verdict, ledger, a pause; and why it ended.

Does not decide what a cell became (verdict.py), what is next (schedule.py) or how it looks (progress.py).
"""

from __future__ import annotations

import dataclasses
import shutil
import signal
from typing import TYPE_CHECKING

import structlog

from orchestrator import schedule
from orchestrator.attempt_record import one_of_several
from orchestrator.cells import Cell
from orchestrator.cgroup import remove_stale
from orchestrator.cooldown import CoolDown
from orchestrator.crosscheck import readings_refused
from orchestrator.deadline import Deadline
from orchestrator.errors import Exit, HostUnfit, LedgerUnwritable, ModelUnavailable, ModelUnreachable
from orchestrator.ledger import Ledger, utc_now
from orchestrator.measuring import Measured, Measuring, State, SweepScreen, Task
from orchestrator.model_store import ModelStore
from orchestrator.records import CellRecord, Verdict
from orchestrator.sentinel import drift
from orchestrator.standing import Standing
from orchestrator.strays import end_abandoned
from orchestrator.sweep_bounds import SweepEnd, begin, completed_end, conclude
from orchestrator.unrun import cut_off_record, not_started_record, unrun_record
from worker.repeats import Repeats

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        self._models = ModelStore(ledger, self._is_stop_wanted, self._is_measured)
        self._measuring = Measuring(run, ledger, host, interrupts, screen)
        self._blameless = 0
        self._contaminated = False
        self._cold = False  # whether the machine stood idle before the next cell
        self._deadline = Deadline(plan.deadline)
        self._cooldown = CoolDown(plan.cooldown, host.usable_memory_bytes)

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
            self._measuring.refused = readings_refused()
            end = self._loop()
        except StopSweep as stop:
            end = stop.end
        except (HostUnfit, LedgerUnwritable, ModelUnavailable, ModelUnreachable) as error:
            end = SweepEnd(Exit.HOST, "stopped", str(error))
        finally:
            self._measuring.close()
        conclude(self._ledger, end)
        log.info("sweep.ended", state=end.state, reason=end.reason)
        return end

    # -- the loop

    def _loop(self) -> SweepEnd:
        self._bring_models()
        left = self._left()
        if left:
            self._measuring.living_watchdog()
            self._cooldown.take_baseline(self._measuring.refused)
            self._check_sentinel(due=True)  # the host may have changed since the last sweep
        while left:
            self._stop_if_asked()
            if not self._answer_what_is_known(left):
                cell = left[0]
                self._run_cell(cell)
                left = self._left()
                due = self._is_sentinel_due(last=not left)
                if left or due:
                    self._pause(cell)
                self._check_sentinel(due=due)
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

        if self._models.facts:
            self._run.add_models(self._models.facts)

    def _left(self) -> tuple[Cell, ...]:
        return self._standing.left()

    def _is_measured(self, settings: Settings) -> bool:
        """Whether some cell was measured with the model of these settings."""
        of_model = [cell for cell in self._cells if self._plan.settings(cell.variant).model == settings.model]
        return any(record.metrics.reps for cell in of_model for record in self._history.counting(cell.cell_id))

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
        in_turn = self._plan.interleave
        repeats = Repeats(1, 1) if in_turn else settings.repeats
        task = Task(cell, settings, attempt, repeats, self._run.attempt_folder(cell.cell_id, attempt))
        partial = [record for record in self._history.counting(cell.cell_id) if record.partial]
        earlier = tuple(rep for record in partial for rep in self._run.read_reps(cell.cell_id, record.attempt))
        self._measuring.living_watchdog()
        started_at = utc_now()
        boot_id = self._host.boot_id
        with self._measuring.order(task, model, self._standing.counting(cell.variant), self._state()) as order:
            self._ledger.append("cell.started", cell_id=cell.cell_id, attempt=attempt, boot_id=boot_id)
            try:
                measured = self._measuring.measure(task, order, self._state(), earlier)
            except HostUnfit as error:  # an attempt without an end would be the next boot's `host_died`
                self._record(not_started_record(cell, attempt, started_at, boot_id, utc_now(), str(error)))
                raise
        if in_turn:
            reps = (*earlier, *measured.outcome.reps)
            measured = dataclasses.replace(
                measured, record=one_of_several(measured.record, partial, reps, settings.repeats)
            )
        self._record(measured.record)
        self._heed(measured)

    def _state(self) -> State:
        drifted = self._history.drifted and self._plan.sentinel is not None
        return State(cold=self._cold, contaminated=self._contaminated, drifted=drifted)

    def _heed(self, measured: Measured) -> None:
        """What an attempt means for those to come."""
        record, judgement, outcome = measured.record, measured.judgement, measured.outcome
        if judgement.stops_sweep:
            raise StopSweep(SweepEnd(Exit.HOST, "stopped", f"{record.detail} {record.remedy}"))
        if outcome.exit_status is None:
            pid = outcome.telemetry.pid if outcome.telemetry else 0
            reason = f"the worker of {record.cell_id} (pid {pid}) survived SIGKILL; reboot, then resume"
            raise StopSweep(SweepEnd(Exit.HOST, "stopped", reason))
        self._count_blameless(record)

    # -- the sentinel

    def _is_sentinel_due(self, *, last: bool) -> bool:
        every, unguarded = self._plan.sentinel, len(self._history.unguarded)
        return every is not None and (unguarded >= every or (last and unguarded > 0))

    def _check_sentinel(self, *, due: bool) -> None:
        """Measures the reference cell again, and marks what was measured since where the host has changed."""
        reference = self._history.reference
        if not due or self._plan.sentinel is None or reference is None or self._is_stop_wanted():
            return
        cell = Cell(reference.variant, reference.context, reference.batch)
        settings = self._plan.settings(cell.variant)
        number = self._history.sentinel_attempts + 1  # one that was cut off keeps its folder
        task = Task(cell, settings, number, settings.repeats, self._run.sentinel_folder(number))
        model = self._models.source(settings)
        with self._measuring.order(task, model, self._standing.counting(cell.variant), self._state()) as order:
            self._ledger.append("sentinel.started", number=number, cell_id=cell.cell_id, boot_id=self._host.boot_id)
            measured = self._measuring.measure(task, order, self._state())
        if measured.record.verdict is not Verdict.INTERRUPTED:
            self._judge_sentinel(number, reference, measured.record)
        self._heed(measured)
        if self._left():
            self._pause(cell)

    def _judge_sentinel(self, number: int, reference: CellRecord, again: CellRecord) -> None:
        found = drift(reference, again)
        doubtful = list(dict.fromkeys(self._history.unguarded)) if found.drifted else []
        self._ledger.append(
            "sentinel.ended",
            number=number,
            cell_id=reference.cell_id,
            ratio=found.ratio,
            drifted=found.drifted,
            why=found.why,
            doubtful=doubtful,
            record=again.to_journal(),
        )
        if found.drifted:
            log.warning("host.drifted", cell_id=reference.cell_id, why=found.why, doubtful=len(doubtful))

    def _count_blameless(self, record: CellRecord) -> None:
        """An attempt that is to be repeated, without anybody having stopped it, is repeated a few times only."""
        if record.verdict is not Verdict.INTERRUPTED or self._interrupts.wanted:
            self._blameless = 0
            return
        self._blameless += 1
        if self._blameless >= _REPEATS:
            reason = f"{record.cell_id} was cut off {_REPEATS} times in a row ({record.cause}): {record.detail}"
            raise StopSweep(SweepEnd(Exit.HOST, "stopped", reason))

    # -- what goes into the ledger

    def _record(self, record: CellRecord) -> None:
        self._ledger.append("cell.ended", record=record.to_journal())
        log.info("cell.ended", cell_id=record.cell_id, verdict=record.verdict.value, cause=record.cause)
        kept = self._history.records[record.cell_id][-1]  # one copy of each record is enough to hold
        self._standing.take(kept)
        self._screen.ended(kept)

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

"""Owns the overview of a run: a row per cell, the state, and the printing of both, as a table or as a document.

Does not lay out anything (report/) and changes nothing: `status` reads files only, at any time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from orchestrator import run_directory, schedule
from orchestrator.ledger import elapsed, replay, utc_now
from orchestrator.plan import load_plan
from orchestrator.quantities import count_of, printable
from orchestrator.records import CellRecord, Verdict
from orchestrator.report.rows import CellRow
from orchestrator.report.status_json import status_parts
from orchestrator.run_lock import is_held

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.cells import Cell
    from orchestrator.history import History
    from orchestrator.plan import Plan
    from orchestrator.run_directory import RunDirectory

_NAMED = 3


def show_status(text: str, output_dir: Path, *, as_json: bool) -> None:
    """Prints the table or the document of a run.

    Raises:
        LedgerError: there is no such run, or its journal cannot be read.
        PlanError: its frozen plan cannot be read.
    """
    run = run_directory.find(text, output_dir)
    plan = load_plan(run.plan_path, frozen=True)
    history = replay(run.path / run_directory.JOURNAL)
    running = is_held(run.path)
    rows = cell_rows(plan, history, running=running)
    state = _state(plan, history, running=running)
    if as_json:
        elapsed_s = elapsed(history.started_at, utc_now() if running else history.last_at)
        sys.stdout.writelines(
            status_parts(str(run.path), state, rows, elapsed_s=elapsed_s, sentinels=history.sentinels)
        )
        print()
    else:
        print_table(run, state, rows, history)


def cell_rows(plan: Plan, history: History, *, running: bool) -> list[CellRow]:
    """A row per cell of the plan, in its order; `running` says that a sweep holds the run."""
    return [_row(cell, history, running=running) for cell in plan.cells()]


def _row(cell: Cell, history: History, *, running: bool) -> CellRow:
    cell_id = cell.cell_id
    counting = history.counting(cell_id)
    record: CellRecord | None = counting[-1] if counting else None
    if record is not None and (record.verdict is Verdict.INTERRUPTED or record.partial):
        record = None  # it runs again: still open
    return CellRow(
        cell=cell,
        record=record,
        attempts=history.attempts.get(cell_id, 0),
        running=running and cell_id in history.open,
    )


def print_table(run: RunDirectory, state: str, rows: list[CellRow], history: History) -> None:
    """Prints the table of a run to stdout, and what the journal says of the host."""
    from orchestrator.report.terminal import result_console, result_table  # rich, of no use to a document

    console = result_console(sys.stdout)
    console.print(f"{printable(str(run.path))}: {state}\n", soft_wrap=True)
    table = result_table(rows, remarks=_remarks(history))
    console.print(table, crop=False)  # its lines fit, and looking at each of them once more takes time


def _remarks(history: History) -> list[str]:
    """What of the host bears on the numbers: changes that were accepted, and what the sentinel showed."""
    remarks = [f"the host changed during the run: {change}" for change in history.host_changes]
    if history.sentinels:
        drifted = [mark for mark in history.sentinels if mark.drifted]
        found = "each time as fast as at first"
        if drifted:
            found = f"{len(drifted)} times another: " + ", ".join(mark.why for mark in drifted[-_NAMED:])
        times = count_of(len(history.sentinels), "time")
        remarks.append(f"sentinel {history.sentinels[-1].cell_id}, measured again {times}: {found}")
    return [printable(remark) for remark in remarks]


def _state(plan: Plan, history: History, *, running: bool) -> str:
    if running:
        return "running"
    retries = schedule.Retries(plan.retries.crashed, plan.retries.failed)
    if not schedule.left_to_do(plan.cells(), history, retries):
        return "complete"
    return "stopped" if history.ended_state is not None else "cut_off"

"""Owns what each command does: open the run, hold its lock, run the sweep, show the table.

Does not parse arguments (cli.py) and does not decide anything about cells.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING

import click

from orchestrator import run_directory, schedule
from orchestrator.backstops import verify_backstops
from orchestrator.errors import Exit, LedgerError, PlanChanged, PlanError
from orchestrator.host import read_host
from orchestrator.interrupts import Interrupts
from orchestrator.json_text import json_text
from orchestrator.ledger import Ledger, elapsed, replay, utc_now
from orchestrator.logs import log_to
from orchestrator.plan import (
    Plan,
    load_plan,
    load_watchdog,
    only_adds_cells,
    plan_difference,
    plan_digest,
    plan_from_options,
    plan_to_yaml,
    rename_plan,
)
from orchestrator.plan.file import file_label
from orchestrator.plan.view import plan_json, plan_text
from orchestrator.quantities import printable
from orchestrator.records import CellRecord, Verdict
from orchestrator.replaying import cells_like, replay_run
from orchestrator.report.replay_table import replay_document, replay_sum, replay_table
from orchestrator.report.rows import CellRow
from orchestrator.report.status_json import status_parts
from orchestrator.report.terminal import result_console, result_table
from orchestrator.run_lock import RunLock, is_held
from orchestrator.show import LiveShow
from orchestrator.streams import give_out
from orchestrator.sweep import Sweep, SweepEnd

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.cells import Cell
    from orchestrator.history import History
    from orchestrator.host import HostFacts
    from orchestrator.run_directory import RunDirectory


def plan_from_command_line(
    plan_file: Path | None,
    name: str | None,
    model: str | None,
    batches: tuple[int, ...] | None,
    contexts: tuple[int, ...] | None,
    gen_tokens: int | None,
    reps: int | None,
) -> Plan:
    """The plan of a file, or of options alone.

    Raises:
        PlanError: neither is given, both are, or the plan is wrong.
    """
    options = {
        "-m/--model": model,
        "-b/--batches": batches,
        "-c/--contexts": contexts,
        "-g/--gen-tokens": gen_tokens,
        "-n/--reps": reps,
    }
    given = [flag for flag, value in options.items() if value is not None]
    if plan_file is not None:
        if given:
            raise PlanError([f"{', '.join(given)}: the plan file says that already; give PLAN or these, not both"])
        plan = load_plan(plan_file)
    else:
        missing = [flag for flag in ("-m/--model", "-b/--batches", "-c/--contexts") if options[flag] is None]
        if missing or model is None or batches is None or contexts is None:
            raise PlanError([f"{', '.join(missing)}: missing; give a PLAN file, or -m, -b and -c"])
        plan = plan_from_options(model, batches, contexts, gen_tokens, reps, name)
    return rename_plan(plan, name) if name is not None else plan


def run_plan(plan: Plan, output_dir: Path, *, extend: bool, fail_on: frozenset[str], plain: bool) -> int:
    """Starts a run, or goes on with the one that has this name and plan. Returns the exit code."""
    host = read_host(verify_backstops())
    try:
        run = run_directory.create(output_dir, plan.name, plan_to_yaml(plan), host.to_json())
    except FileExistsError:
        run = run_directory.find(str(output_dir / plan.name), output_dir)
        with RunLock(run.path, utc_now()):
            changed = _accepted(run, plan, extend=extend)
            return _sweep(run, host, frozenset(), fail_on, plain=plain, changed=changed)
    with RunLock(run.path, utc_now()):
        return _sweep(run, host, frozenset(), fail_on, plain=plain)


def resume_run(text: str, output_dir: Path, *, retry: frozenset[str], fail_on: frozenset[str], plain: bool) -> int:
    """Does what is left of a run. Returns the exit code."""
    run = run_directory.find(text, output_dir)
    with RunLock(run.path, utc_now()):
        return _sweep(run, read_host(verify_backstops()), retry, fail_on, plain=plain)


def dry_run(plan_file: Path, *, as_json: bool) -> str:
    """What a plan would run, as text or JSON."""
    plan = load_plan(plan_file)
    cells = schedule.ordered(plan.cells(), plan.order)
    return json_text(plan_json(plan, cells), 2) if as_json else plan_text(plan, cells)


def show_status(text: str, output_dir: Path, *, as_json: bool) -> None:
    """Prints the table or the document of a run; reads files only."""
    run = run_directory.find(text, output_dir)
    plan = load_plan(run.plan_path, frozen=True)
    history = replay(run.path / run_directory.JOURNAL)
    running = is_held(run.path)
    rows = _rows(plan, history, running=running)
    state = _state(plan, history, running=running)
    if as_json:
        elapsed_s = elapsed(history.started_at, utc_now() if running else history.last_at)
        sys.stdout.writelines(status_parts(str(run.path), state, rows, elapsed_s=elapsed_s))
        print()
    else:
        _print_table(run, state, rows)


def show_replay(
    text: str, output_dir: Path, watchdog_file: Path | None, cell_glob: str | None, *, as_json: bool
) -> None:
    """Prints what other thresholds, or this version's policy, would have done; reads files only."""
    run = run_directory.find(text, output_dir)
    cells = cells_like(load_plan(run.plan_path, frozen=True).cells(), cell_glob)
    dog = None if watchdog_file is None else load_watchdog(watchdog_file)
    thresholds = "as recorded" if watchdog_file is None else file_label(watchdog_file)
    attempts = list(replay_run(run, cells, replay(run.path / run_directory.JOURNAL), dog))
    if as_json:
        print(json.dumps(replay_document(str(run.path), attempts, thresholds), indent=1))
        return
    console = result_console(sys.stdout)
    console.print(replay_table(attempts))
    console.print(f"\n{replay_sum(attempts, thresholds)}", soft_wrap=True)


def _accepted(run: RunDirectory, plan: Plan, *, extend: bool) -> Plan | None:
    """Holds a plan against the frozen one; the plan that is to take its place, None where it is the same.

    Raises:
        PlanChanged: it differs, and not by added cells that were asked for.
    """
    frozen = load_plan(run.plan_path, frozen=True)
    difference = plan_difference(frozen, plan)
    if not difference:
        return None
    comparable = only_adds_cells(frozen, plan)
    adds_cells = set(plan.cells()) != set(frozen.cells())
    if comparable and (extend or not adds_cells):  # what does not touch a measurement may change at any time
        return plan
    shown = "\n  ".join(difference)
    remedy = (
        "`--extend` adds the new cells to it"
        if comparable
        else "what was measured would not be comparable; give the new plan another --name"
    )
    raise PlanChanged(f"{run.path}: was started with another plan:\n  {shown}\n{remedy}")


def _sweep(
    run: RunDirectory,
    host: HostFacts,
    retry: frozenset[str],
    fail_on: frozenset[str],
    *,
    plain: bool,
    changed: Plan | None = None,
) -> int:
    ledger = Ledger(run.path)
    if changed is not None:  # first the word that it may change: a crash in between leaves either plan in order
        ledger.append("plan.changed", plan_digest=plan_digest(changed))
        run.freeze_plan(plan_to_yaml(changed))
    plan = load_plan(run.plan_path, frozen=True)
    if ledger.history.plan_digests and plan_digest(plan) not in ledger.history.plan_digests:
        ledger.close()
        raise LedgerError(
            f"{run.plan_path}: was edited since the sweep began, so its cells would not be comparable; put it back "
            "(or run the edited plan under another --name)"
        )
    try:
        with Interrupts() as interrupts, log_to(run.path / "sweep.log"):
            _reopen(ledger, plan, retry)
            with LiveShow(plan, ledger.history, host, plain=plain) as show:
                end = Sweep(run, plan, ledger, host, interrupts, show).run()
        rows = _rows(plan, ledger.history, running=False)
    finally:
        ledger.close()
    give_out(lambda: _print_table(run, end.state, rows))  # the exit code is the sweep's; the ledger has it all
    with contextlib.suppress(OSError):  # nobody listens any more; the exit code still tells
        click.echo(f"wallfinder: {end.reason}", err=True)
    return int(_exit_code(end, rows, fail_on))


def _reopen(ledger: Ledger, plan: Plan, retry: frozenset[str]) -> None:
    """Marks the cells that a person wants to run again."""
    for cell in plan.cells():
        counting = ledger.history.counting(cell.cell_id)
        if counting and (counting[-1].verdict.value in retry or ("invalid" in retry and counting[-1].valid is False)):
            ledger.append("cell.reopened", cell_id=cell.cell_id, verdict=counting[-1].verdict.value)


def _exit_code(end: SweepEnd, rows: list[CellRow], fail_on: frozenset[str]) -> Exit:
    records = [row.record for row in rows if row.record is not None]
    walls = {Verdict.HIT_THE_WALL, Verdict.HOST_DIED}
    refused = (
        ("timed_out" in fail_on and any(record.verdict is Verdict.TIMED_OUT for record in records))
        or ("wall" in fail_on and any(record.verdict in walls for record in records))
        or ("invalid" in fail_on and any(record.valid is False for record in records))
    )
    return Exit.CELLS_FAILED if end.exit_code is Exit.COMPLETE and refused else end.exit_code


def _rows(plan: Plan, history: History, *, running: bool) -> list[CellRow]:
    return [_row(cell, history, running=running) for cell in plan.cells()]


def _row(cell: Cell, history: History, *, running: bool) -> CellRow:
    counting = history.counting(cell.cell_id)
    record: CellRecord | None = counting[-1] if counting else None
    if record is not None and record.verdict is Verdict.INTERRUPTED:
        record = None  # it runs again: still open
    return CellRow(
        cell=cell,
        record=record,
        attempts=history.attempts.get(cell.cell_id, 0),
        running=running and cell.cell_id in history.open,
    )


def _print_table(run: RunDirectory, state: str, rows: list[CellRow]) -> None:
    console = result_console(sys.stdout)
    console.print(f"{printable(str(run.path))}: {state}\n", soft_wrap=True)
    console.print(result_table(rows), crop=False)  # its lines fit, and looking at each of them once more takes time


def _state(plan: Plan, history: History, *, running: bool) -> str:
    if running:
        return "running"
    retries = schedule.Retries(plan.retries.crashed, plan.retries.failed)
    if not schedule.left_to_do(plan.cells(), history, retries):
        return "complete"
    return "stopped" if history.ended_state is not None else "cut_off"

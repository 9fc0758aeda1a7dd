"""Owns what `run` and `resume` do: open the run, hold its lock, run what is left, show the table.

Does not parse arguments (cli.py) and does not decide anything about cells.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import click

from orchestrator import run_directory, schedule
from orchestrator.collector import collector_paused, settle
from orchestrator.comparable import host_changes
from orchestrator.errors import Exit, HostChanged, LedgerError, PlanChanged, PlanError
from orchestrator.host import read_host
from orchestrator.interrupts import Interrupts
from orchestrator.ledger import Ledger, utc_now
from orchestrator.overview import cell_rows, print_table
from orchestrator.plan import (
    Plan,
    load_plan,
    only_adds_cells,
    plan_difference,
    plan_digest,
    plan_from_options,
    plan_to_yaml,
    rename_plan,
)
from orchestrator.records import Verdict
from orchestrator.run_lock import RunLock
from orchestrator.streams import give_out
from orchestrator.sweep_bounds import SweepEnd, answered_sweep

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.host import HostFacts
    from orchestrator.report.rows import CellRow
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


def run_plan(
    plan: Plan, output_dir: Path, *, extend: bool, fail_on: frozenset[str], plain: bool, other_host: bool = False
) -> int:
    """Starts a run, or goes on with the one that has this name and plan. Returns the exit code."""
    host = _tried(read_host())
    try:
        run = run_directory.create(output_dir, plan.name, plan_to_yaml(plan), host.to_json())
    except FileExistsError:
        run = run_directory.find(str(output_dir / plan.name), output_dir)
        with RunLock(run.path, utc_now()):
            changed = _accepted(run, plan, extend=extend)
            return _sweep(run, host, frozenset(), fail_on, plain=plain, changed=changed, other_host=other_host)
    with RunLock(run.path, utc_now()):
        return _sweep(run, host, frozenset(), fail_on, plain=plain)


def resume_run(
    text: str,
    output_dir: Path,
    *,
    retry: frozenset[str],
    fail_on: frozenset[str],
    plain: bool,
    other_host: bool = False,
) -> int:
    """Does what is left of a run. Returns the exit code."""
    run = run_directory.find(text, output_dir)
    with RunLock(run.path, utc_now()):
        return _sweep(run, None, retry, fail_on, plain=plain, other_host=other_host)


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
    host: HostFacts | None,
    retry: frozenset[str],
    fail_on: frozenset[str],
    *,
    plain: bool,
    changed: Plan | None = None,
    other_host: bool = False,
) -> int:
    with collector_paused():
        ledger = Ledger(run.path)
        settle()
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
        with Interrupts() as interrupts:
            host = host or read_host()
            answered = _is_answered(plan, ledger)
            if retry or not answered:
                _demand_same_host(run, ledger, host, other_host=other_host)
            if retry:
                _reopen(ledger, plan, retry)
                answered = _is_answered(plan, ledger)
            if answered:
                end = answered_sweep(ledger, plan, host)
            else:
                end = _run_what_is_left(run, plan, ledger, _tried(host), interrupts, plain=plain)
        rows = cell_rows(plan, ledger.history, running=False)
    finally:
        ledger.close()
    with collector_paused():
        # The exit code is the sweep's whatever becomes of the output; the ledger has it all.
        give_out(lambda: print_table(run, end.state, rows, ledger.history))
        settle()
    with contextlib.suppress(OSError):  # nobody listens any more; the exit code still tells
        click.echo(f"wallfinder: {end.reason}", err=True)
    return int(_exit_code(end, rows, fail_on))


def _tried(host: HostFacts) -> HostFacts:
    """The host with what became of the kernel's backstops, tried where nobody has yet."""
    from orchestrator.backstops import verify_backstops  # tries processes; of no use where none will be run

    return host if host.backstops else dataclasses.replace(host, backstops=verify_backstops())


def _is_answered(plan: Plan, ledger: Ledger) -> bool:
    """Whether nothing is left to do, and nothing of an earlier sweep to settle."""
    retries = schedule.Retries(plan.retries.crashed, plan.retries.failed)
    return not ledger.history.open and not schedule.left_to_do(plan.cells(), ledger.history, retries)


def _run_what_is_left(
    run: RunDirectory, plan: Plan, ledger: Ledger, host: HostFacts, interrupts: Interrupts, *, plain: bool
) -> SweepEnd:
    from orchestrator.logs import log_to  # these three are heavy, and of no use where nothing is left
    from orchestrator.show import LiveShow
    from orchestrator.sweep import Sweep

    with log_to(run.path / "sweep.log"), LiveShow(plan, ledger.history, host, plain=plain) as show:
        return Sweep(run, plan, ledger, host, interrupts, show).run()


def _demand_same_host(run: RunDirectory, ledger: Ledger, host: HostFacts, *, other_host: bool) -> None:
    """Holds the machine and its versions against those of the run's start; a change that is accepted is written down.

    Raises:
        HostChanged: they differ, and nobody accepted that.
    """
    changes = host_changes(ledger.history.host, host.to_json())
    if not changes:
        return
    if not other_host:
        shown = "\n  ".join(changes)
        raise HostChanged(
            f"{run.path}: was started on another machine or with other versions:\n  {shown}\n"
            "what is measured now would not be comparable: put that back, start a run under another --name, or go on "
            "all the same with --other-host"
        )
    ledger.append("host.changed", changes=changes, host=host.to_json())


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

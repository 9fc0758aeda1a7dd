"""Owns `wallfinder export`: a run in the form that another program reads. Reads files only; layouts are in report/."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from orchestrator import run_directory
from orchestrator.ledger import replay
from orchestrator.overview import cell_rows
from orchestrator.plan import load_plan
from orchestrator.quantities import count_of
from orchestrator.report.llama_bench import bench_cells, bench_json_line, bench_table

if TYPE_CHECKING:
    from pathlib import Path


def show_export(text: str, output_dir: Path, *, as_json: bool, with_invalid: bool) -> None:
    """Prints the completed cells in llama-batched-bench's columns; what is left out is told on stderr.

    Raises:
        LedgerError: there is no such run, or its journal cannot be read.
        PlanError: its frozen plan cannot be read.
    """
    run = run_directory.find(text, output_dir)
    plan = load_plan(run.plan_path, frozen=True)
    rows = cell_rows(plan, replay(run.path / run_directory.JOURNAL), running=False)
    steps = {name: plan.settings(name).gen_tokens - 1 for name in dict.fromkeys(row.cell.variant for row in rows)}
    cells, left_out = bench_cells(rows, steps.__getitem__, with_invalid=with_invalid)
    for line in map(bench_json_line, cells) if as_json else bench_table(cells):
        print(line)
    if not cells and not left_out:
        print(f"wallfinder: {text}: no cell has completed yet", file=sys.stderr)
    if left_out:
        told = f"{count_of(left_out, 'cell')} left out: not valid; `wallfinder status {text}` says why"
        print(f"wallfinder: {told}, --with-invalid exports them too", file=sys.stderr)

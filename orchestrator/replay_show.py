"""Owns what `wallfinder replay` prints: a run's attempts under other thresholds, as a table or as JSON.

Does not replay (replaying.py) and does not lay anything out (report/replay_table.py).
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from orchestrator import run_directory
from orchestrator.ledger import replay
from orchestrator.plan import load_plan, load_watchdog
from orchestrator.plan.file import file_label
from orchestrator.replaying import cells_like, replay_run
from orchestrator.report.replay_table import replay_document, replay_sum, replay_table
from orchestrator.report.terminal import result_console

if TYPE_CHECKING:
    from pathlib import Path


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

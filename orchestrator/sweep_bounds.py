"""Owns the two ends of a sweep: what it says in the journal when it begins and when it is over, and why it ended.

Does not own the loop between them (sweep.py). A sweep that finds nothing left to do is these ends alone.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.cgroup import remove_stale
from orchestrator.errors import Exit, LedgerUnwritable
from orchestrator.history import SCHEMA
from orchestrator.plan import plan_digest
from orchestrator.quantities import count_of
from orchestrator.records import Verdict
from orchestrator.strays import end_abandoned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cells import Cell
    from orchestrator.history import History
    from orchestrator.host import HostFacts
    from orchestrator.ledger import Ledger
    from orchestrator.plan import Plan


@dataclass(frozen=True, slots=True)
class SweepEnd:
    """Why a sweep is over. `state` is complete, stopped or cut_off, as `status` shows it."""

    exit_code: Exit
    state: str
    reason: str


def begin(ledger: Ledger, plan: Plan, host: HostFacts) -> None:
    """Writes that a sweep begins. Raises LedgerUnwritable."""
    ledger.append(
        "sweep.started",
        schema=SCHEMA,
        plan_digest=plan_digest(plan),
        boot_id=host.boot_id,
        pid=os.getpid(),
        host=host.to_json(),
    )


def conclude(ledger: Ledger, end: SweepEnd) -> None:
    """Writes how it ended; where that cannot be written the journal ends as after a crash, which resume knows."""
    with contextlib.suppress(LedgerUnwritable):
        ledger.append("sweep.ended", state=end.state, exit_code=int(end.exit_code), reason=end.reason)


def completed_end(cells: Sequence[Cell], history: History) -> SweepEnd:
    """The end of a sweep whose cells are all answered."""
    last = [history.counting(cell.cell_id)[-1] for cell in cells]
    broken = sum(record.verdict in (Verdict.CRASHED, Verdict.FAILED) for record in last)
    if broken:
        return SweepEnd(Exit.CELLS_FAILED, "complete", f"{broken} of {len(last)} cells crashed or failed")
    return SweepEnd(Exit.COMPLETE, "complete", f"{count_of(len(last), 'cell')} answered")


def answered_sweep(ledger: Ledger, plan: Plan, host: HostFacts) -> SweepEnd:
    """A sweep that finds nothing left to do. As any other, it ends what a killed one left running.

    Raises:
        LedgerUnwritable: the journal does not take that it began.
    """
    remove_stale()
    end_abandoned()
    begin(ledger, plan, host)
    end = completed_end(plan.cells(), ledger.history)
    conclude(ledger, end)
    return end

"""Owns the records of cells without an outcome: never run, or left open by an earlier sweep. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.records import CellRecord, Verdict
from orchestrator.verdict import judge_unfinished

if TYPE_CHECKING:
    from orchestrator.cells import Cell
    from orchestrator.history import StartedAttempt
    from orchestrator.host import HostFacts


def unrun_record(cell: Cell, verdict: Verdict, host: HostFacts, now: str) -> CellRecord:
    """The record of a cell that was answered without an attempt; what is to be said of it is added by the caller.

    Nothing was tried, so there is nothing to try again: what the answer rests on would be the same.
    """
    return CellRecord(
        cell_id=cell.cell_id,
        variant=cell.variant,
        context=cell.context,
        batch=cell.batch,
        attempt=0,
        verdict=verdict,
        retryable=False,
        memory_bytes=host.usable_memory_bytes,
        started_at=now,
        ended_at=now,
        boot_id=host.boot_id,
    )


def cut_off_record(cell: Cell, started: StartedAttempt, boot_id: str, now: str) -> CellRecord:
    """What became of a cell that an earlier sweep started and never ended."""
    judgement = judge_unfinished(started.boot_id, boot_id)
    return CellRecord(
        cell_id=cell.cell_id,
        variant=cell.variant,
        context=cell.context,
        batch=cell.batch,
        attempt=started.attempt,
        verdict=judgement.verdict,
        cause=judgement.cause,
        detail=judgement.detail,
        remedy=judgement.remedy,
        evidence=judgement.evidence,
        memory_wall=judgement.memory_wall,
        retryable=judgement.retryable,
        started_at=started.at,
        ended_at=now,
        boot_id=started.boot_id,
    )


def not_started_record(cell: Cell, attempt: int, started_at: str, boot_id: str, now: str, why: str) -> CellRecord:
    """What became of a cell whose worker the host did not let start: nothing, so it is not judged."""
    return CellRecord(
        cell_id=cell.cell_id,
        variant=cell.variant,
        context=cell.context,
        batch=cell.batch,
        attempt=attempt,
        verdict=Verdict.INTERRUPTED,
        cause="not_started",
        detail=why,
        remedy="mend that, then resume runs it again",
        retryable=True,
        started_at=started_at,
        ended_at=now,
        boot_id=boot_id,
    )

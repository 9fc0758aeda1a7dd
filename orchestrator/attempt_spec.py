"""Owns what an attempt is told: the worker's spec and the watchdog's limits. Pure: plan and records come as values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import schedule
from orchestrator.plan import resolve_limits
from worker.protocol import WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cells import Cell
    from orchestrator.measuring import Task
    from orchestrator.plan import Settings
    from orchestrator.records import CellRecord
    from orchestrator.watchdog.limits import Limits
    from worker.protocol import ModelSource


def attempt_limits(cell: Cell, settings: Settings, memory_bytes: int, records: Sequence[CellRecord]) -> Limits:
    """The watchdog's limits for a cell on a machine with so much memory, in the light of the records that count."""
    chunk_s = None
    if settings.context_fill == "prefill":
        chunk_s = schedule.expected_chunk_s(cell, records, settings.prefill_step_size)
    return resolve_limits(settings, memory_bytes, schedule.expected_step_s(cell, records), chunk_s)


def attempt_spec(task: Task, serial: int, model: ModelSource, limits: Limits, *, cold: bool) -> WorkerSpec:
    """What the worker is to do. `cold`: the machine stood idle before, so it warms up at least once."""
    cell, settings, repeats = task.cell, task.settings, task.repeats
    return WorkerSpec(
        cell_id=cell.cell_id,
        attempt=task.attempt,
        serial=serial,
        model=model,
        batch=cell.batch,
        context=cell.context,
        gen_tokens=settings.gen_tokens,
        reps=repeats.most,
        least_reps=repeats.least,
        until_cv=repeats.until_cv,
        max_reps_s=repeats.max_time_s,
        warmup=max(settings.warmup, int(cold)),
        seed=settings.seed,
        engine=settings.engine,
        context_fill=settings.context_fill,
        prefill_step_size=settings.prefill_step_size,
        prefill_logits=settings.prefill_logits,
        kv_bits=settings.kv_bits,
        kv_group_size=settings.kv_group_size,
        wired_limit=settings.wired_limit,
        backstop_s=backstop_s(settings, limits),
        fault=schedule.fault_for(settings.faults, cell.cell_id, task.attempt),
    )


def backstop_s(settings: Settings, limits: Limits) -> float:
    """How long the worker's own timer runs without progress, in seconds.

    Behind the watchdog, which allows five times as long, never before it: the timer is for a worker whose watchers are
    gone or paged out. Where the watchdog only observes, it leaves the cell its whole time.
    """
    expected_s = 12 * max(limits.expected_step_s or 0.0, limits.expected_chunk_s or 0.0)
    least_s = limits.time_limit_s if settings.watchdog.mode == "observe" else 60.0
    return max(least_s, 6 * settings.watchdog.stall.hard_s, expected_s)

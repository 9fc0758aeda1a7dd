"""Owns the document that `wallfinder status --json` prints: schema 1; keys are added, never renamed or
removed.

Does not print it. Every value is plain JSON: a number that is not finite becomes null.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.json_listing import finite, json_listing
from orchestrator.records import Metrics
from orchestrator.report.rows import count_by_verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.history import SentinelMark
    from orchestrator.records import CellRecord, PhaseMemory
    from orchestrator.report.rows import CellRow

SCHEMA = 1


def status_document(
    run: str,
    state: str,
    rows: Sequence[CellRow],
    *,
    elapsed_s: float | None = None,
    eta_s: float | None = None,
    sentinels: Sequence[SentinelMark] = (),
) -> dict[str, Any]:
    """The whole document. `state` is `running`, `complete`, `cut_off` or `stopped`; durations in seconds."""
    document = {
        "schema": SCHEMA,
        "run": run,
        "state": state,
        "counts": count_by_verdict(rows),
        "elapsed_s": elapsed_s,
        "eta_s": eta_s,
        "sentinels": [asdict(mark) for mark in sentinels],
        "cells": [_cell(row) for row in rows],
    }
    plain: dict[str, Any] = finite(document)
    return plain


def status_parts(
    run: str,
    state: str,
    rows: Sequence[CellRow],
    *,
    elapsed_s: float | None = None,
    sentinels: Sequence[SentinelMark] = (),
) -> Iterator[str]:
    """The text of the document in parts, a cell a line."""
    head = {
        **status_document(run, state, [], elapsed_s=elapsed_s, sentinels=sentinels),
        "counts": count_by_verdict(rows),
    }
    del head["cells"]
    return json_listing(head, "cells", map(_cell, rows))


def _cell(row: CellRow) -> dict[str, Any]:
    return {
        "cell_id": row.cell.cell_id,
        "variant": row.cell.variant,
        "context": row.cell.context,
        "batch": row.cell.batch,
        "attempts": row.attempts,
        "running": row.running,
        **_outcome(row.closed),
        **_measured(row.closed.metrics if row.closed else Metrics()),
    }


def _outcome(record: CellRecord | None) -> dict[str, Any]:
    """What became of the cell; the same keys, all null, while it is open."""
    return {
        "verdict": record.verdict.value if record else None,
        "cause": record.cause if record else None,
        "valid": record.valid if record else None,
        "invalid_reasons": list(record.invalid_reasons) if record else [],
        "detail": record.detail if record else None,
        "remedy": record.remedy if record else None,
        "evidence": dict(record.evidence) if record else {},
        "dominated_by": record.dominated_by if record else None,
        "phase": record.phase if record else None,
        "rep": record.rep if record else None,
        "step": record.step if record else None,
        "exit_status": record.exit_status if record else None,
        "signal": record.signal if record else None,
        "rungs": [list(rung) for rung in record.rungs] if record else [],
        "swap_growth_bytes": record.swap_growth_bytes if record else None,
        "peak_footprint_bytes": record.peak_footprint_bytes if record else None,
        "memory_bytes": record.memory_bytes if record else None,
        "watchdog_late_max_s": record.watchdog_late_max_s if record else None,
        "conditions": dict(record.conditions) if record else {},
        "would_have": asdict(record.would_have) if record and record.would_have else None,
        "started_at": record.started_at if record else None,
        "ended_at": record.ended_at if record else None,
        "duration_s": record.duration_s if record else None,
    }


def _measured(metrics: Metrics) -> dict[str, Any]:
    return {
        "reps": metrics.reps,
        "generation_tps": metrics.generation_tps,
        "generation_tps_per_stream": metrics.generation_tps_per_stream,
        "prompt_tps": metrics.prompt_tps,
        "ttft_s": metrics.ttft_s,
        "tpot_ms": metrics.tpot_ms,
        "step_s": metrics.step_s,
        "robust_cv": metrics.robust_cv,
        "generation_tps_low": metrics.generation_tps_low,
        "generation_tps_high": metrics.generation_tps_high,
        "generation_tps_iqr": metrics.iqr_tps,
        "generation_tps_mlxlm": metrics.generation_tps_mlxlm,
        "rep_tps": list(metrics.rep_tps),
        "drift_frac": metrics.drift_frac,
        "drift_p": metrics.drift_p,
        "warmup_frac": metrics.warmup_frac,
        "step_p95_s": metrics.step_p95_s,
        "step_p99_s": metrics.step_p99_s,
        "peak_memory_bytes": metrics.peak_memory_bytes,
        "peak_phase": metrics.peak_phase,
        "load_peak_bytes": metrics.load_peak_bytes,
        "prefill_peak_bytes": metrics.prefill_peak_bytes,
        "decode_peak_bytes": metrics.decode_peak_bytes,
        "peak_term": metrics.peak_term,
        "peak_terms": dict(metrics.peak_terms),
        "phases": {name: _memory(memory) for name, memory in metrics.phases.items()},
        "weight_bytes": metrics.weight_bytes,
        "kv_cache_bytes": metrics.kv_cache_bytes,
        "cache_bytes_per_token": metrics.cache_bytes_per_token,
        "cache_classes": list(metrics.cache_classes),
        "load_s": metrics.load_s,
    }


def _memory(memory: PhaseMemory) -> dict[str, int | None]:
    # By hand: dataclasses.asdict takes a second for the phases of ten thousand cells.
    return {
        "peak_bytes": memory.peak_bytes,
        "active_bytes": memory.active_bytes,
        "cache_bytes": memory.cache_bytes,
        "footprint_bytes": memory.footprint_bytes,
    }

"""Owns how an attempt's outcome becomes the ledger's record. Pure: verdict and metrics decide, this puts together."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from orchestrator import metrics, verdict
from orchestrator.failure_texts import recognise
from orchestrator.records import CellRecord, Metrics, Verdict, WouldHave
from worker.telemetry import Phase, Telemetry

if TYPE_CHECKING:
    from orchestrator.attempt import Order, Outcome
    from orchestrator.cells import Cell
    from orchestrator.watchdog.wire import Released


def record_of(
    cell: Cell,
    order: Order,
    outcome: Outcome,
    *,
    started_at: str,
    ended_at: str,
    boot_id: str,
    contaminated: bool,
) -> tuple[CellRecord, verdict.Judgement]:
    """The record of an ended attempt, and the judgement that it holds.

    `contaminated` says that the host had not come back to its baseline when the attempt began.
    """
    judgement = verdict.judge(_facts(order, outcome))
    spec, released, telemetry = order.spec, outcome.released, outcome.telemetry
    numbers = metrics.summarise(outcome.reps, outcome.model, spec.batch, spec.gen_tokens, spec.engine)
    if telemetry is not None:
        numbers = with_broken_phase(numbers, telemetry)
    numbers = metrics.with_terms(numbers, outcome.model, spec)
    if released is not None:
        numbers = metrics.with_footprints(numbers, released.phase_footprint_bytes)
    valid: bool | None = None
    reasons: tuple[str, ...] = ()
    if judgement.verdict is Verdict.COMPLETED:
        _, reasons = metrics.validity(numbers, outcome.reps, released, order.limits.memory_bytes)
        reasons = (*reasons, *_doubts(outcome, contaminated=contaminated))
        valid = not reasons
    record = CellRecord(
        cell_id=cell.cell_id,
        variant=cell.variant,
        context=cell.context,
        batch=cell.batch,
        attempt=spec.attempt,
        verdict=judgement.verdict,
        cause=judgement.cause,
        detail=judgement.detail,
        remedy=judgement.remedy,
        evidence=judgement.evidence,
        valid=valid,
        invalid_reasons=reasons,
        memory_wall=judgement.memory_wall,
        stops_variant=judgement.stops_variant,
        retryable=judgement.retryable,
        metrics=numbers,
        peak_footprint_bytes=released.peak_footprint_bytes if released else None,
        swap_growth_bytes=released.swap_growth_bytes if released else None,
        memory_bytes=order.limits.memory_bytes,
        phase=telemetry.phase.label if telemetry else None,
        rep=telemetry.rep if telemetry else None,
        step=telemetry.step if telemetry else None,
        exit_status=outcome.exit_status,
        signal=judgement.signal,
        rungs=tuple((str(name), float(at)) for name, at in released.rungs) if released else (),
        watchdog_late_max_s=released.late_max_s if released else None,
        would_have=_would_have(released) if released else None,
        started_at=started_at,
        ended_at=ended_at,
        duration_s=outcome.duration_s,
        boot_id=boot_id,
    )
    return record, judgement


def _doubts(outcome: Outcome, *, contaminated: bool) -> tuple[str, ...]:
    """Why the numbers of a completed cell cannot be trusted, by what is known beside its repetitions and the watchdog.

    `gpu_error`: Metal's errors come late and may be swallowed on their way (in a destructor, say), so a process that
    went on to its end after one may have decoded from a buffer that failed. `virtual_gpu`: the GPU of a virtual
    machine, as on hosted build machines, has a speed of its own.
    """
    hit = recognise(outcome.log_tail, native_only=True)
    device = str(outcome.hello.device_info.get("device_name", "")) if outcome.hello else ""
    checks = {
        "gpu_error": hit is not None and hit.row.verdict in (Verdict.HIT_THE_WALL, Verdict.CRASHED),
        "virtual_gpu": "paravirtual" in device.lower(),
        "host_contaminated": contaminated,
    }
    return tuple(name for name, applies in checks.items() if applies)


def with_broken_phase(numbers: Metrics, telemetry: Telemetry) -> Metrics:
    """The metrics, with MLX's peak of the phase that was under way where no finished repetition shows as much.

    A warm-up is a whole repetition: before its first decode step it prefills.
    """
    if telemetry.peak_bytes <= (numbers.peak_memory_bytes or 0):
        return numbers
    phase = telemetry.phase
    if phase is Phase.WARMUP:
        phase = Phase.DECODE if telemetry.step else Phase.PREFILL
    return dataclasses.replace(numbers, peak_memory_bytes=telemetry.peak_bytes, peak_phase=phase.label)


def result_document(record: CellRecord, order: Order, outcome: Outcome) -> dict[str, Any]:
    """Everything that was measured, for result.json: the record, the limits, each repetition with all its steps.

    `recent_step_s` holds the last steps (at most 64) that the telemetry page saw, which includes those of a
    repetition that was not finished.
    """
    telemetry = outcome.telemetry
    return {
        "schema": 1,
        "record": record.to_json(),
        "spec": dataclasses.asdict(order.spec),
        "limits": dataclasses.asdict(order.limits),
        "hello": dataclasses.asdict(outcome.hello) if outcome.hello else None,
        "model": dataclasses.asdict(outcome.model) if outcome.model else None,
        "reps": [dataclasses.asdict(rep) for rep in outcome.reps],
        "final": dataclasses.asdict(outcome.final) if outcome.final else None,
        "watchdog": dataclasses.asdict(outcome.released) if outcome.released else None,
        "recent_step_s": list(telemetry.recent_step_s) if telemetry else [],
        "strays_ended": outcome.strays,
        "mlx_peak_bytes": telemetry.peak_bytes if telemetry else None,
    }


def _would_have(released: Released) -> WouldHave | None:
    if released.would_have is None:
        return None
    return WouldHave(released.would_have, released.would_have_after_s or 0.0, released.would_have_evidence)


def _facts(order: Order, outcome: Outcome) -> verdict.AttemptFacts:
    telemetry = outcome.telemetry
    return verdict.AttemptFacts(
        exit_status=outcome.exit_status,
        final=outcome.final,
        hello_seen=outcome.hello is not None,
        torn_tail=outcome.torn,
        released=outcome.released,
        log_tail=outcome.log_tail,
        phase=telemetry.phase.label if telemetry else None,
        rep=telemetry.rep if telemetry else None,
        step=telemetry.step if telemetry else None,
        reps_expected=order.spec.reps,
        reps_measured=len(outcome.reps),
        watchdog_died=outcome.watchdog_died,
        acted=outcome.acted,
        jetsam_report=outcome.jetsam_report,
        stop_cause=outcome.asked_cause,
        platform=sys.platform,
    )

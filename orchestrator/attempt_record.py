"""Owns how an attempt's outcome becomes the ledger's record. Pure: verdict and metrics decide, this puts together."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import metrics, verdict
from orchestrator.definitions import measured_s
from orchestrator.failure_texts import recognise
from orchestrator.records import CellRecord, Metrics, Verdict, WouldHave
from worker.protocol import Done
from worker.telemetry import Phase, Telemetry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.attempt import Order, Outcome
    from orchestrator.cells import Cell
    from orchestrator.conditions import CellConditions
    from orchestrator.watchdog.wire import Released
    from worker.protocol import RepResult
    from worker.repeats import Repeats


@dataclass(frozen=True, slots=True)
class Around:
    """What is known around an attempt. Stamps in UTC.

    `contaminated`: the host had not come back to its baseline when it began; `drifted`: the sentinel was not what it
    had been when it was last measured.
    """

    started_at: str
    ended_at: str
    boot_id: str
    contaminated: bool = False
    drifted: bool = False
    conditions: CellConditions | None = None


def record_of(
    cell: Cell, order: Order, outcome: Outcome, around: Around, earlier: Sequence[RepResult] = ()
) -> tuple[CellRecord, verdict.Judgement]:
    """The record of an ended attempt, and the judgement that it holds.

    `earlier`: repetitions of the cell from attempts before, where repetitions of cells are taken in turn.
    """
    judgement = verdict.judge(_facts(order, outcome))
    spec, released, telemetry = order.spec, outcome.released, outcome.telemetry
    reps = [*earlier, *outcome.reps]
    numbers = _numbers(order, outcome, reps)
    valid: bool | None = None
    reasons: tuple[str, ...] = ()
    if judgement.verdict is Verdict.COMPLETED:
        _, reasons = metrics.validity(numbers, reps, released, order.limits.memory_bytes, measured_s(outcome.reps))
        reasons = (*reasons, *_doubts(outcome, around))
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
        conditions=around.conditions.to_json() if around.conditions else {},
        started_at=around.started_at,
        ended_at=around.ended_at,
        duration_s=outcome.duration_s,
        boot_id=around.boot_id,
    )
    return record, judgement


def one_of_several(
    record: CellRecord, earlier: Sequence[CellRecord], reps: Sequence[RepResult], repeats: Repeats
) -> CellRecord:
    """The record of a cell whose repetitions are taken in turn: partial until they are enough.

    `earlier` are its parts so far, whose doubts hold for the whole (its noise is judged over all), `reps` all
    repetitions.
    """
    judged_anew = {"noisy", "drifting"}
    for reason in dict.fromkeys(reason for part in earlier for reason in part.invalid_reasons):
        record = record if reason in judged_anew or record.valid is None else record.doubted(reason)
    if record.verdict is not Verdict.COMPLETED or len(earlier) + 1 >= repeats.most:
        return record
    return dataclasses.replace(record, partial=not repeats.enough(record.metrics.rep_tps, measured_s(reps)))


def _numbers(order: Order, outcome: Outcome, reps: Sequence[RepResult]) -> Metrics:
    spec, released = order.spec, outcome.released
    numbers = metrics.summarise(reps, outcome.model, spec.batch, spec.gen_tokens, spec.engine)
    if outcome.telemetry is not None:
        numbers = with_broken_phase(numbers, outcome.telemetry)
    numbers = metrics.with_terms(numbers, outcome.model, spec, outcome.hello.device if outcome.hello else "")
    return numbers if released is None else metrics.with_footprints(numbers, released.phase_footprint_bytes)


def _doubts(outcome: Outcome, around: Around) -> tuple[str, ...]:
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
        "host_contaminated": around.contaminated,
        "drifted": around.drifted,
    }
    found = around.conditions.reasons() if around.conditions else ()
    return (*(name for name, applies in checks.items() if applies), *found)


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
        reps_expected=outcome.final.reps if isinstance(outcome.final, Done) else order.spec.reps,
        reps_measured=len(outcome.reps),
        watchdog_died=outcome.watchdog_died,
        acted=outcome.acted,
        jetsam_report=outcome.jetsam_report,
        stop_cause=outcome.asked_cause,
        platform=sys.platform,
    )

"""Owns what the measured repetitions of a cell amount to, and whether the numbers can be trusted.

Does not measure (the worker does) and does not decide what became of the cell (verdict.py). Pure.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from orchestrator import definitions, stats
from orchestrator.peak_terms import peak_terms
from orchestrator.records import Metrics, PhaseMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from orchestrator.watchdog.wire import Released
    from worker.protocol import ModelFacts, RepResult, WorkerSpec

SWAPPED_FRAC = 0.005  # of memory: less than this leaves when idle programs are swapped out
PRESSURE_FRAC = 0.05  # of the measured time spent waiting for memory; a healthy machine has none
PRESSURE_FIGURES = frozenset(("pressure_stall_frac", "pressure_level", "available_frac", "compressor_growth_bytes"))
LATE_S = 1.0
SUSPENDED_S = 1.0
DRIFT_FRAC, DRIFT_P = 0.10, 0.05  # as far apart as makes a cell noisy, and no accident


def summarise(
    reps: Sequence[RepResult], facts: ModelFacts | None, batch: int, gen_tokens: int, engine: str = "batched"
) -> Metrics:
    """The figures of `definitions` over the repetitions: medians, their spread, and the peaks of memory.

    A repetition with other than B rows in a step, or other than G-1 steps, is not counted in the rates.
    """
    whole = [rep for rep in reps if definitions.is_whole(rep, batch, gen_tokens)]
    rates = _known(definitions.generation_tps(rep, batch) for rep in whole)
    steps = [step for rep in whole for step in rep.step_s]
    rate = _over(rates)
    interval, trend = stats.median_interval(rates), stats.trend(rates)
    phases = phase_memory(reps, facts)
    owner = max(phases, key=lambda phase: phases[phase].peak_bytes or -1)
    return Metrics(
        reps=len(whole),
        generation_tps=rate,
        generation_tps_per_stream=None if rate is None else rate / batch,
        tpot_ms=_over(_known(map(definitions.tpot_ms, whole))),
        prompt_tps=_over(_known(map(definitions.prompt_tps, whole))),
        ttft_s=_over(_known(map(definitions.ttft_s, whole))),
        robust_cv=stats.robust_cv(rates) if rates else None,
        iqr_tps=stats.iqr(rates) if rates else None,
        generation_tps_low=interval.low if interval else None,
        generation_tps_high=interval.high if interval else None,
        generation_tps_mlxlm=_over(_known(definitions.generation_tps_mlxlm(rep, batch, engine) for rep in whole)),
        rep_tps=tuple(rates),
        drift_frac=trend.change_frac if trend else None,
        drift_p=trend.p_value if trend else None,
        warmup_frac=1 - rates[0] / stats.median(rates[1:]) if len(rates) >= stats.FEWEST else None,
        step_s=_over(steps),
        step_p95_s=stats.percentile(steps, 0.95),
        step_p99_s=stats.percentile(steps, 0.99),
        peak_memory_bytes=phases[owner].peak_bytes,
        peak_phase=owner if phases[owner].peak_bytes is not None else None,
        load_peak_bytes=phases["load"].peak_bytes,
        prefill_peak_bytes=phases["prefill"].peak_bytes,
        decode_peak_bytes=phases["decode"].peak_bytes,
        phases=phases if any(memory != PhaseMemory() for memory in phases.values()) else {},
        weight_bytes=facts.weight_bytes if facts else None,
        kv_cache_bytes=_largest(reps, lambda rep: rep.kv_cache_bytes),
        cache_bytes_per_token=facts.cache_bytes_per_token if facts else None,
        cache_classes=tuple(facts.cache_classes) if facts else (),
        load_s=facts.load_s if facts else None,
        filled_tokens=max((rep.filled_tokens for rep in reps), default=0),
    )


def phase_memory(reps: Sequence[RepResult], facts: ModelFacts | None) -> dict[str, PhaseMemory]:
    """MLX's memory of each phase, the largest over the repetitions, by phase in order: of equal peaks the first owns
    it."""
    load = PhaseMemory()
    if facts is not None:
        load = PhaseMemory(facts.load_peak_bytes, facts.load_active_bytes, facts.load_cache_bytes)
    return {
        "load": load,
        "prefill": PhaseMemory(
            _largest(reps, lambda rep: rep.prefill_peak_bytes),
            _largest(reps, lambda rep: rep.prefill_active_bytes),
            _largest(reps, lambda rep: rep.prefill_cache_bytes),
        ),
        "decode": PhaseMemory(
            _largest(reps, lambda rep: rep.decode_peak_bytes),
            _largest(reps, lambda rep: rep.active_bytes),
            _largest(reps, lambda rep: rep.cache_bytes),
        ),
    }


def with_footprints(numbers: Metrics, footprints: Mapping[str, int]) -> Metrics:
    """The metrics with the system's footprint by phase, where there is one. A warm-up is prefill and decode at once."""
    if not footprints:
        return numbers
    phases = {
        name: dataclasses.replace(numbers.phases.get(name, PhaseMemory()), footprint_bytes=footprints.get(name))
        for name in ("load", "prefill", "decode")
    }
    return dataclasses.replace(numbers, phases=phases)


def with_terms(numbers: Metrics, facts: ModelFacts | None, spec: WorkerSpec, device: str = "gpu") -> Metrics:
    """The metrics with what the peak consists of; without, where no repetition was finished or sizes are not known."""
    if facts is None or numbers.peak_memory_bytes is None or numbers.peak_phase is None or not facts.shape:
        return numbers
    if numbers.kv_cache_bytes is None:  # how full the caches were when it broke is not known
        return numbers
    terms = peak_terms(numbers.peak_phase, numbers.peak_memory_bytes, facts, spec, numbers.kv_cache_bytes, device)
    return dataclasses.replace(numbers, peak_terms=terms.to_json(), peak_term=terms.owner)


def validity(
    metrics: Metrics,
    reps: Sequence[RepResult],
    released: Released | None,
    memory_bytes: int,
    watched_s: float | None = None,
) -> tuple[bool, tuple[str, ...]]:
    """Whether the numbers of a completed cell can be trusted, and every reason why not.

    The reasons: `rows_short` (a repetition did not hold all rows in all steps), `bad_logits` (not finite, or
    constant), `noisy` (robust CV over 0.10 of at least 3 repetitions), `drifting` (see `is_drifting`), `swapped`,
    `pressure`, `watchdog_late`, `suspended`, and `unwatched` where the watchdog could not say. `watched_s`: the
    seconds of measuring that `released` is about, where not those of all `reps`. `memory_bytes` is the memory that
    counts for the cell. `pressure`: over 5 % of the measured time went into waiting for memory, or the system was
    short of it in the last ten seconds; other programs' own bounds do not count.
    """
    seconds = definitions.measured_s(reps) if watched_s is None else watched_s
    checks = {
        "rows_short": metrics.reps < len(reps),
        "bad_logits": any(not rep.finite_logits or rep.constant_logits for rep in reps),
        "noisy": stats.is_noisy(metrics.robust_cv, metrics.reps),
        "drifting": is_drifting(metrics),
        **_host_checks(seconds, released, memory_bytes),
    }
    reasons = tuple(name for name, failed in checks.items() if failed)
    return not reasons, reasons


def is_drifting(metrics: Metrics) -> bool:
    """Whether the rate went up or down by over 10 % from the first repetition to the last, and not by accident (5
    %)."""
    if metrics.drift_frac is None or metrics.drift_p is None:
        return False
    return abs(metrics.drift_frac) > DRIFT_FRAC and metrics.drift_p < DRIFT_P


def _host_checks(measured_s: float, released: Released | None, memory_bytes: int) -> dict[str, bool]:
    if released is None:
        return {"unwatched": True}
    stalled_s = released.pressure_stall_s or 0.0
    pressed = not PRESSURE_FIGURES.isdisjoint(released.memory_evidence)
    return {
        "swapped": (released.swap_growth_bytes or 0) > SWAPPED_FRAC * memory_bytes,
        "pressure": stalled_s > PRESSURE_FRAC * measured_s or pressed,
        "watchdog_late": released.late_max_s > LATE_S,
        "suspended": released.suspended_s > SUSPENDED_S,
    }


def _largest(reps: Iterable[RepResult], reading: Callable[[RepResult], int]) -> int | None:
    return max((reading(rep) for rep in reps), default=None)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _over(values: Sequence[float]) -> float | None:
    return stats.median(values) if values else None

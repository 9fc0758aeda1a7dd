"""Owns what the measured repetitions of a cell amount to, and whether the numbers can be trusted.

Does not measure (the worker does) and does not decide what became of the cell (verdict.py). Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import stats
from orchestrator.records import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from orchestrator.watchdog.wire import Released
    from worker.protocol import ModelFacts, RepResult

SWAPPED_FRAC = 0.005  # of memory: less than this leaves when idle programs are swapped out
PRESSURE_FRAC = 0.05  # of the measured time spent waiting for memory; a healthy machine has none
PRESSURE_FIGURES = frozenset(("pressure_stall_frac", "pressure_level", "available_frac", "compressor_growth_bytes"))
LATE_S = 1.0
SUSPENDED_S = 1.0
_PHASES = ("load", "prefill", "decode")


def summarise(reps: Sequence[RepResult], facts: ModelFacts | None, batch: int, gen_tokens: int) -> Metrics:
    """The medians over the repetitions.

    Of each repetition's decode window (the G-1 steps after the first tokens): `generation_tps` = B * (G-1) /
    window, per stream that over B, `tpot_ms` = window / (G-1). `ttft_s` is the time until all first tokens
    exist and `prompt_tps` the prompt tokens of all rows over it; both are None where the context was filled
    at random. A repetition with other than B rows in a step, or other than G-1 steps, is not counted in the
    rates.
    """
    whole = [rep for rep in reps if _is_whole(rep, batch, gen_tokens)]
    windows = [window for window in (sum(rep.step_s) for rep in whole) if window > 0]
    rates = [batch * (gen_tokens - 1) / window for window in windows]
    prefills = [rep for rep in whole if rep.filled_tokens == 0 and rep.prefill_s > 0]
    rate = _over(rates)
    peaks = _peaks(reps, facts)
    owner = max(_PHASES, key=lambda phase: peaks[phase] or -1)
    return Metrics(
        reps=len(whole),
        generation_tps=rate,
        generation_tps_per_stream=None if rate is None else rate / batch,
        tpot_ms=_over([window / (gen_tokens - 1) * 1e3 for window in windows]),
        prompt_tps=_over([rep.prompt_tokens / rep.prefill_s for rep in prefills]),
        ttft_s=_over([rep.prefill_s for rep in prefills]),
        robust_cv=stats.robust_cv(rates) if rates else None,
        step_s=_over([step for rep in whole for step in rep.step_s]),
        peak_memory_bytes=peaks[owner],
        peak_phase=owner if peaks[owner] is not None else None,
        load_peak_bytes=peaks["load"],
        prefill_peak_bytes=peaks["prefill"],
        decode_peak_bytes=peaks["decode"],
        weight_bytes=facts.weight_bytes if facts else None,
        kv_cache_bytes=_largest(reps, lambda rep: rep.kv_cache_bytes),
        cache_bytes_per_token=facts.cache_bytes_per_token if facts else None,
        cache_classes=tuple(facts.cache_classes) if facts else (),
        load_s=facts.load_s if facts else None,
        filled_tokens=max((rep.filled_tokens for rep in reps), default=0),
    )


def validity(
    metrics: Metrics, reps: Sequence[RepResult], released: Released | None, memory_bytes: int
) -> tuple[bool, tuple[str, ...]]:
    """Whether the numbers of a completed cell can be trusted, and every reason why not.

    The reasons: `rows_short` (a repetition did not hold all rows in all steps), `bad_logits` (not finite, or
    constant), `noisy` (robust CV over 0.10 of at least 3 repetitions), `swapped`, `pressure`,
    `watchdog_late`, `suspended`, and `unwatched` where the watchdog could not say. `memory_bytes` is the
    memory that counts for the cell. `pressure`: over 5 % of the measured time went into waiting for memory,
    or the system was short of it in the last ten seconds; other programs' own bounds do not count.
    """
    checks = {
        "rows_short": metrics.reps < len(reps),
        "bad_logits": any(not rep.finite_logits or rep.constant_logits for rep in reps),
        "noisy": stats.is_noisy(metrics.robust_cv, metrics.reps),
        **_host_checks(reps, released, memory_bytes),
    }
    reasons = tuple(name for name, failed in checks.items() if failed)
    return not reasons, reasons


def _host_checks(reps: Sequence[RepResult], released: Released | None, memory_bytes: int) -> dict[str, bool]:
    if released is None:
        return {"unwatched": True}
    measured_s = sum(rep.ended_s - rep.started_s for rep in reps)
    stalled_s = released.pressure_stall_s or 0.0
    pressed = not PRESSURE_FIGURES.isdisjoint(released.memory_evidence)
    return {
        "swapped": (released.swap_growth_bytes or 0) > SWAPPED_FRAC * memory_bytes,
        "pressure": stalled_s > PRESSURE_FRAC * measured_s or pressed,
        "watchdog_late": released.late_max_s > LATE_S,
        "suspended": released.suspended_s > SUSPENDED_S,
    }


def _is_whole(rep: RepResult, batch: int, gen_tokens: int) -> bool:
    return len(rep.step_s) == gen_tokens - 1 and all(rows == batch for rows in rep.rows_per_step)


def _peaks(reps: Sequence[RepResult], facts: ModelFacts | None) -> dict[str, int | None]:
    """MLX's peak of each phase in bytes. Of equal peaks the earlier phase owns it."""
    return {
        "load": facts.load_peak_bytes if facts else None,
        "prefill": _largest(reps, lambda rep: rep.prefill_peak_bytes),
        "decode": _largest(reps, lambda rep: rep.decode_peak_bytes),
    }


def _largest(reps: Iterable[RepResult], reading: Callable[[RepResult], int]) -> int | None:
    return max((reading(rep) for rep in reps), default=None)


def _over(values: Sequence[float]) -> float | None:
    return stats.median(values) if values else None

"""Owns the judgement: decide(limits, state, sample) -> (state, action). Every rule is a threshold and a duration.

Does not read clocks or the machine and does not act; the same samples give the same actions, live or replayed.

Each reading alone lies (swap is sticky, one step is slow at every cache growth, pressure turns critical late), so a
sign of slowness and a sign of memory trouble together act within seconds, one sign alone acts late and sustained.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from orchestrator.watchdog.signals import (
    PAGING_FRAC_PER_S,
    WALL_STEP_S,
    Baseline,
    Counters,
    Figures,
    Steps,
    count,
    follow_steps,
    is_usable,
    measure,
    median,
    rise,
    slide,
)

if TYPE_CHECKING:
    from orchestrator.watchdog.limits import Limits
    from orchestrator.watchdog.sample import Sample

Evidence: TypeAlias = dict[str, float | int | str]

BLIND_SAMPLES = 3
STALL_FRAC_SOFT = (
    0.05  # a 400 MB cgroup in a wall stalls the host's tasks for 4-6 % of the time, a healthy host for 0
)
STALL_FRAC_HARD = {"warning": 0.2, "critical": 0.4}  # machine-wide walls: 40-67 %
PRESSURE_LEVEL_HARD = {"warning": 2, "critical": 4}
FREE_FRAC_SOFT, FREE_FRAC_HARD = 0.10, 0.04  # macOS counts wired memory here, and its pressure level does not
AVAILABLE_FRAC_SOFT = 0.02
COMPRESSOR_FRAC_SOFT = 0.10
FOOTPRINT_FRAC_SOFT = 0.9
LATE_S, LATE_MEMORY_S = 1.0, 5.0
STALL_SOFT_MARKS, STALL_HARD_MARKS = 4, 8  # of the slowest mark so far: chunks grow dearer with depth
FIRST_MARK_PATIENCE = 5  # nobody knows yet what a load, or a first chunk of 32 rows, takes on this machine
LOAD_PATIENCE = 3
QUIET_PATIENCE = 3
OUTWARD_PATIENCE = 2  # pages that only leave may be idle programs making room
MEMORY_PAIR_PATIENCE = 5
EVIDENCE_S = 10.0
SLEPT_S = 1.0

CAUSES = ("swap_growth", "step_inflation", "stalled", "memory_pressure", "footprint")
"""The signals that can be a cause, the most telling first: of several that agree, the first one names the wall."""
MEMORY_SIGNALS = ("swap_growth", "memory_pressure", "footprint", "watchdog_late")


@dataclass(frozen=True, slots=True)
class Continue:
    """Let the worker run."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the worker. `cause` is one of CAUSES, `time_limit` or `blind`; `evidence` holds figures by name."""

    cause: str
    evidence: Evidence


Action: TypeAlias = Continue | Stop
CONTINUE = Continue()


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers of one attempt. Begin with `State()`.

    `since` says when each condition that holds now began to hold. `judged_from_s` is where patience starts anew:
    after a suspend, a stop or a pause nothing before it counts against the worker.
    """

    started_s: float | None = None
    last: tuple[float, float] | None = None
    blind: int = 0
    baseline: Baseline = Baseline()
    window: tuple[Counters, ...] = ()
    steps: Steps = Steps()
    since: dict[str, float] = dataclasses.field(default_factory=dict)
    judged_from_s: float = 0.0
    suspended_s: float = 0.0
    late_at_s: float | None = None
    seen: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    figures: Figures | None = None
    swap_growth_max_bytes: int | None = None


def decide(limits: Limits, state: State, sample: Sample) -> tuple[State, Action]:
    """Takes in one sample and says what to do. Time comes from `sample.monotonic_s`; call it in order of time."""
    now = sample.monotonic_s
    started_s = now if state.started_s is None else state.started_s
    blind = 0 if is_usable(sample) else state.blind + 1
    window = slide(state.window, count(sample)) if blind == 0 or not state.window else state.window
    state = dataclasses.replace(
        state, started_s=started_s, blind=blind, window=window, baseline=rise(state.baseline, sample)
    )
    age_s = _age(sample, state.judged_from_s)
    stall_soft_s, stall_hard_s = stall_limits(limits, state.steps, sample)
    figures = measure(limits, state.baseline, window, state.steps, sample, age_s)
    state = _note_gaps(limits, state, sample, figures)
    if _age(sample, state.judged_from_s) != age_s:  # a gap was found: measure what still counts
        age_s = _age(sample, state.judged_from_s)
        figures = measure(limits, state.baseline, window, state.steps, sample, age_s)
    late = state.late_at_s is not None and now - state.late_at_s <= LATE_MEMORY_S and figures.paging
    soft = _soft(limits, figures, late, stall_soft_s)
    hard = _hard(limits, figures, stall_hard_s)
    conditions = {f"hard:{name}" for name in hard} | _agreeing(soft, figures)
    since = {name: state.since.get(name, now) for name in conditions}
    growth = max(
        (g for g in (figures.swap_growth_bytes, state.swap_growth_max_bytes) if g is not None), default=None
    )
    state = dataclasses.replace(
        state,
        last=(now, sample.boottime_s),
        since=since,
        steps=follow_steps(state.steps, sample, stall_soft_s),
        seen=_remember(state.seen, soft, hard, figures, now),
        figures=figures,
        swap_growth_max_bytes=growth,
    )
    return state, _judge(limits, state, soft, hard, (stall_soft_s, stall_hard_s), now)


def _judge(
    limits: Limits, state: State, soft: set[str], hard: set[str], stall_s: tuple[float, float], now: float
) -> Action:
    """The first rule whose condition has held long enough, walls before limits."""
    figures = state.figures
    assert figures is not None  # decide has just set it
    if state.blind >= BLIND_SAMPLES:
        return Stop("blind", {"unusable_samples": state.blind})
    needed = _needed(limits, figures)
    held = {name: now - began for name, began in state.since.items()}
    alone = [n for n in CAUSES if held.get(f"hard:{n}", -1.0) >= needed[f"hard:{n}"]]
    together = [n for n in ("slow and memory", "memory twice") if held.get(n, -1.0) >= needed[n]]
    if together:
        cause = next(n for n in CAUSES if n in soft)
        rule, held_s = together[0], held[together[0]]
    elif alone:
        cause, rule = alone[0], "alone"
        held_s = held[f"hard:{cause}"]
    elif state.started_s is not None and now - state.started_s - state.suspended_s >= limits.time_limit_s:
        return Stop(
            "time_limit", {"elapsed_s": round(now - state.started_s, 3), "time_limit_s": limits.time_limit_s}
        )
    else:
        return CONTINUE
    evidence = describe(limits, figures, stall_s)
    signs = "+".join(n for n in (*CAUSES, "watchdog_late") if n in soft or n in hard)
    return Stop(cause, {"rule": rule, "signals": signs, "held_s": round(held_s, 3), **evidence})


def _needed(limits: Limits, figures: Figures) -> dict[str, float]:
    """How long each condition has to hold, in seconds."""
    return {
        "slow and memory": limits.corroborated_s,
        "memory twice": MEMORY_PAIR_PATIENCE * limits.corroborated_s,
        "hard:swap_growth": limits.swap_sustained_s * (1 if figures.thrashing else OUTWARD_PATIENCE),
        "hard:step_inflation": limits.inflation_sustained_s * (QUIET_PATIENCE if figures.quiet else 1),
        "hard:stalled": 0.0,  # an age is a duration already
        "hard:memory_pressure": limits.pressure_sustained_s,
        "hard:footprint": limits.footprint_sustained_s,
    }


def _agreeing(soft: set[str], figures: Figures) -> set[str]:
    """Which agreements hold now.

    Slowness twice over (a long step is both) agrees on nothing: one of the two must be memory. Two memory signals
    without slowness take longer, and pages that only leave do not count there: that is how idle programs make room.
    """
    memory = [n for n in MEMORY_SIGNALS if n in soft]
    agreeing = set()
    if memory and ("step_inflation" in soft or "stalled" in soft):
        agreeing.add("slow and memory")
    if figures.thrashing and len([n for n in memory if n != "watchdog_late"]) >= 2:
        agreeing.add("memory twice")
    return agreeing


def _soft(limits: Limits, figures: Figures, late: bool, stall_soft_s: float) -> set[str]:
    """The signals at their soft level or over it."""
    signs = set()
    if figures.paging and _over(
        figures.swap_growth_bytes, limits.swap_soft_bytes or limits.memory_bytes / 100
    ):
        signs.add("swap_growth")
    if _inflated(figures.acute_step_s, figures.step_reference_s, limits.inflation_soft):
        signs.add("step_inflation")
    if _over(figures.progress_age_s, stall_soft_s):
        signs.add("stalled")
    if _pressed(limits, figures):
        signs.add("memory_pressure")
    # A large worker on a machine at ease is large, not in trouble.
    if limits.footprint_bytes and not figures.quiet:
        if _over(figures.footprint_bytes, FOOTPRINT_FRAC_SOFT * limits.footprint_bytes):
            signs.add("footprint")
    if late:
        signs.add("watchdog_late")
    return signs


def _pressed(limits: Limits, figures: Figures) -> bool:
    squeezed = _over(figures.compressor_growth_bytes, COMPRESSOR_FRAC_SOFT * limits.memory_bytes) and _over(
        figures.decompressed_bytes_per_s, PAGING_FRAC_PER_S * limits.memory_bytes
    )
    return (
        _over(figures.pressure_stall_frac, STALL_FRAC_SOFT)
        or _over(figures.pressure_level, 2)
        or _under(figures.available_frac, FREE_FRAC_SOFT if figures.pressure_level else AVAILABLE_FRAC_SOFT)
        or squeezed
    )


def _hard(limits: Limits, figures: Figures, stall_hard_s: float) -> set[str]:
    """The signals at their hard level."""
    signs = set()
    if figures.paging and _over(
        figures.swap_growth_bytes, limits.swap_hard_bytes or 0.08 * limits.memory_bytes
    ):
        signs.add("swap_growth")
    if _inflated(figures.step_s, figures.lone_reference_s, limits.inflation_hard):
        signs.add("step_inflation")
    if _over(figures.progress_age_s, stall_hard_s):
        signs.add("stalled")
    if (
        _over(figures.pressure_stall_frac, STALL_FRAC_HARD[limits.pressure_level])
        or _over(figures.pressure_level, PRESSURE_LEVEL_HARD[limits.pressure_level])
        or (figures.pressure_level is not None and _under(figures.available_frac, FREE_FRAC_HARD))
    ):
        signs.add("memory_pressure")
    if limits.footprint_bytes and _over(figures.footprint_bytes, limits.footprint_bytes):
        signs.add("footprint")
    return signs


def stall_limits(limits: Limits, steps: Steps, sample: Sample) -> tuple[float, float]:
    """How old the last progress may be, with memory evidence and alone, in seconds.

    At least the limits; scaled by the slowest mark so far, since chunks grow dearer with depth; and patient where
    nothing is known yet: until the first mark of a load or a prefill.
    """
    progress = sample.progress
    if progress is None:
        return limits.stall_soft_s, limits.stall_hard_s
    phase = progress.phase
    usual_s = steps.chunk_s.get(phase, 0.0)
    if phase in ("decode", "warmup") and progress.recent_step_s:
        warm = steps.warm_s if steps.warm_s is not None else median(progress.recent_step_s[-5:])
        usual_s = max(usual_s, warm, limits.expected_step_s or 0.0)
    soft, hard = STALL_SOFT_MARKS * usual_s, STALL_HARD_MARKS * usual_s
    starting = phase in ("starting", "load")
    unknown = phase in ("warmup", "prefill") and usual_s == 0.0 and progress.step == 0
    return (
        max(limits.stall_soft_s * (LOAD_PATIENCE if starting else 1), soft),
        max(limits.stall_hard_s * (FIRST_MARK_PATIENCE if starting or unknown else 1), hard),
    )


def _note_gaps(limits: Limits, state: State, sample: Sample, figures: Figures) -> State:
    """Starts patience anew after a suspend, a pause of the watchdog or a stopped worker.

    A watchdog that is late *while pages move* is no pause but thrash: that keeps every timer and is evidence.
    """
    now = sample.monotonic_s
    gap_s, slept_s = 0.0, 0.0
    if state.last is not None:
        gap_s = now - state.last[0]
        slept_s = max(0.0, sample.boottime_s - state.last[1] - gap_s)
    late = max(gap_s - limits.sample_every_s, sample.late_s) > LATE_S
    paused = gap_s > max(LATE_S, 5 * limits.sample_every_s) and not figures.paging
    stopped = sample.worker is not None and sample.worker.state in ("T", "t")
    if slept_s > SLEPT_S or paused or stopped:
        suspended_s = state.suspended_s + (slept_s if slept_s > SLEPT_S else 0.0)
        window = state.window if stopped and not paused else state.window[-1:]
        return dataclasses.replace(state, since={}, judged_from_s=now, suspended_s=suspended_s, window=window)
    return dataclasses.replace(state, late_at_s=now) if late else state


def _age(sample: Sample, judged_from_s: float) -> float | None:
    progress = sample.progress
    return (
        None
        if progress is None
        else max(0.0, min(progress.progress_age_s, sample.monotonic_s - judged_from_s))
    )


def _remember(
    seen: dict[str, tuple[float, float]], soft: set[str], hard: set[str], figures: Figures, now: float
) -> dict[str, tuple[float, float]]:
    """Until when each memory signal was at soft or more, and its largest figure."""
    now_seen = [name for name in MEMORY_SIGNALS if name in soft or name in hard]
    if not now_seen:
        return seen
    seen = dict(seen)
    for name in now_seen:
        value = {
            "swap_growth": figures.swap_growth_bytes,
            "memory_pressure": figures.pressure_stall_frac or figures.pressure_level,
            "footprint": figures.footprint_bytes,
            "watchdog_late": figures.late_s,
        }[name]
        seen[name] = (now, max(float(value or 0.0), seen.get(name, (0.0, 0.0))[1]))
    return seen


def memory_evidence(state: State, now: float) -> Evidence:
    """The memory signals that were at soft or more within the last ten seconds before `now`, with their peaks.

    Empty where there were none, so a stall or a kill by others can be judged by whether it is empty.
    """
    return {name: value for name, (at, value) in state.seen.items() if now - at <= EVIDENCE_S}


def describe(limits: Limits, figures: Figures, stall_s: tuple[float, float]) -> Evidence:
    """Every known figure and the thresholds it was held against, rounded to what a reader needs."""
    inflation = None
    if figures.step_reference_s and (figures.step_s or figures.acute_step_s):
        inflation = max(figures.step_s or 0.0, figures.acute_step_s or 0.0) / figures.step_reference_s
    raw: dict[str, float | int | None] = {
        "swap_growth_bytes": figures.swap_growth_bytes,
        "swap_soft_bytes": limits.swap_soft_bytes,
        "swap_hard_bytes": limits.swap_hard_bytes,
        "swap_in_bytes_per_s": figures.swap_in_bytes_per_s,
        "swap_out_bytes_per_s": figures.swap_out_bytes_per_s,
        "step_s": max(figures.step_s or 0.0, figures.acute_step_s or 0.0) or None,
        "step_reference_s": figures.step_reference_s,
        "step_inflation": inflation,
        "inflation_soft": limits.inflation_soft,
        "inflation_hard": limits.inflation_hard,
        "progress_age_s": figures.progress_age_s,
        "stall_soft_s": stall_s[0],
        "stall_hard_s": stall_s[1],
        "pressure_stall_frac": figures.pressure_stall_frac,
        "pressure_level": figures.pressure_level,
        "available_frac": figures.available_frac,
        "compressor_growth_bytes": figures.compressor_growth_bytes,
        "decompressed_bytes_per_s": figures.decompressed_bytes_per_s,
        "footprint_bytes": figures.footprint_bytes,
        "footprint_limit_bytes": limits.footprint_bytes or None,
        "watchdog_late_s": figures.late_s,
    }
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in raw.items() if v is not None}


def _inflated(step_s: float | None, reference_s: float | None, factor: float) -> bool:
    return bool(step_s and reference_s and step_s >= WALL_STEP_S and step_s >= factor * reference_s)


def _over(value: float | None, threshold: float) -> bool:
    return value is not None and value >= threshold


def _under(value: float | None, threshold: float) -> bool:
    return value is not None and value <= threshold

"""Owns the judgement: decide(limits, state, sample) -> (state, action).

Does not read clocks or the machine and does not act; the same samples give the same actions, live or
replayed.

Every rule is a threshold and a duration. Each reading alone lies (swap is sticky, one step is slow at every
cache growth, pressure turns critical late), so a sign of slowness and a sign of memory trouble together act
within seconds, and one sign alone acts late and sustained.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from orchestrator.watchdog.memory import (
    Baseline,
    Counters,
    MemoryFigures,
    complete,
    count,
    is_usable,
    measure_memory,
    paging_threshold,
    slide,
    swap_limits,
)
from orchestrator.watchdog.pace import History, PaceFigures, age_of_progress, follow, measure_pace

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from orchestrator.watchdog.limits import Limits
    from orchestrator.watchdog.sample import Sample

Evidence: TypeAlias = dict[str, float | int | str]

CAUSES = ("swap_growth", "step_inflation", "stalled", "memory_pressure", "footprint")
"""The signals that can be a cause, the most telling first: of several, the first names the wall."""
MEMORY_SIGNALS = ("swap_growth", "memory_pressure", "footprint", "watchdog_late")
SLOW_AND_MEMORY, MEMORY_TWICE = "slow and memory", "memory twice"
MEASURED_PHASES = ("prefill", "decode")
AVAILABLE = "available_frac"  # the one figure that is the worse the less it is

BLIND_SAMPLES = 3
WALL_STEP_S = 0.05  # shorter steps are never a wall, whatever their ratio: the scheduler's noise is that large
STALL_FRAC_SOFT = 0.05  # a 400 MB cgroup in a wall stalls the host for 4-6 % of the time, a healthy host for 0
STALL_FRAC_HARD = {"warning": 0.2, "critical": 0.4}  # walls of a whole machine: 40-67 %
PRESSURE_LEVEL_SOFT, PRESSURE_LEVEL_HARD = 2, {"warning": 2, "critical": 4}
FREE_FRAC_SOFT, FREE_FRAC_HARD = 0.10, 0.04  # macOS counts wired memory here; its pressure level does not
AVAILABLE_FRAC_SOFT = 0.02
COMPRESSOR_FRAC_SOFT = 0.10
FOOTPRINT_FRAC_SOFT = 0.9
LATE_S, LATE_MEMORY_S = 1.0, 5.0
QUIET_PATIENCE = 3
OUTWARD_PATIENCE = 2  # pages that only leave may be idle programs making room
MEMORY_TWICE_PATIENCE = 5
EVIDENCE_S = 10.0
SLEPT_S = 1.0


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

    `since` says when each condition that holds now began to hold. `judged_from_s` is where patience starts
    anew: after a suspend, a stop or a pause, nothing before it counts against the worker. `seen` holds, per
    figure of memory trouble, when its signal was last at soft or more, and the worst figure so far.
    `measured_stall_s` is the time for which tasks waited for memory while something was measured, as far as
    the worker was part of it; None where the platform does not say.
    """

    started_s: float | None = None
    last: tuple[float, float] | None = None
    blind: int = 0
    baseline: Baseline = dataclasses.field(default_factory=Baseline)
    window: tuple[Counters, ...] = ()
    history: History = dataclasses.field(default_factory=History)
    since: dict[str, float] = dataclasses.field(default_factory=dict)
    judged_from_s: float = 0.0
    suspended_s: float = 0.0
    late_at_s: float | None = None
    seen: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    memory: MemoryFigures | None = None
    pace: PaceFigures | None = None
    swap_growth_max_bytes: int | None = None
    measured_stall_s: float | None = None


def decide(limits: Limits, state: State, sample: Sample) -> tuple[State, Action]:
    """Takes in one sample and says what to do. Call it in order of `sample.monotonic_s`."""
    now = sample.monotonic_s
    usable = is_usable(sample)
    window = slide(state.window, count(sample)) if usable or not state.window else state.window
    baseline = complete(state.baseline, sample)
    memory = measure_memory(limits, baseline, window, sample)
    state = _note_gaps(limits, dataclasses.replace(state, window=window), sample, memory)
    pace = measure_pace(limits, state.history, sample, age_of_progress(sample, state.judged_from_s))
    late = state.late_at_s is not None and now - state.late_at_s <= LATE_MEMORY_S and memory.paging
    soft, hard = _soft(limits, memory, pace, late), _hard(limits, memory, pace)
    conditions = {f"hard:{name}" for name in hard} | _agreeing(soft, memory)
    state = dataclasses.replace(
        state,
        started_s=now if state.started_s is None else state.started_s,
        last=(now, sample.boottime_s),
        measured_stall_s=_add_stall(state, memory, sample),
        blind=0 if usable else state.blind + 1,
        baseline=baseline,
        since={name: state.since.get(name, now) for name in conditions},
        history=follow(state.history, sample, pace.stall_hard_s),
        seen=_remember(state.seen, soft | hard, memory, sample),
        memory=memory,
        pace=pace,
        swap_growth_max_bytes=_most(state.swap_growth_max_bytes, memory.swap_growth_bytes),
    )
    return state, _judge(limits, state, memory, pace, soft, hard, now)


def memory_evidence(state: State, now_s: float) -> Evidence:
    """The figures of the memory signals that were at soft or more in the ten seconds before `now_s`.

    `swap_growth`, `footprint` and `compressor_growth_bytes` in bytes, `watchdog_late` in seconds,
    `pressure_stall_frac` and `pressure_level`, each at its largest, and `available_frac` at its least.
    Empty where there were none, so a stall or a kill by others is a wall exactly where this is not empty.
    """
    return {name: value for name, (at_s, value) in state.seen.items() if now_s - at_s <= EVIDENCE_S}


# -- signals


def _soft(limits: Limits, memory: MemoryFigures, pace: PaceFigures, late: bool) -> set[str]:
    """The signals at their soft level or over it."""
    signs = set()
    if memory.paging and _over(memory.swap_growth_bytes, swap_limits(limits)[0]):
        signs.add("swap_growth")
    if _inflated(pace.acute_step_s, pace.reference_s, limits.inflation_soft):
        signs.add("step_inflation")
    if _over(pace.age_s, pace.stall_soft_s):
        signs.add("stalled")
    if _pressed(limits, memory):
        signs.add("memory_pressure")
    large = limits.footprint_bytes and _over(memory.footprint_bytes, FOOTPRINT_FRAC_SOFT * limits.footprint_bytes)
    if large and not memory.quiet:  # a large worker on a machine at ease is large, not in trouble
        signs.add("footprint")
    if late:
        signs.add("watchdog_late")
    return signs


def _pressed(limits: Limits, memory: MemoryFigures) -> bool:
    compressing = _over(memory.compressor_growth_bytes, COMPRESSOR_FRAC_SOFT * limits.memory_bytes)
    is_mac = memory.pressure_level is not None
    return (
        _over(memory.pressure_stall_frac, STALL_FRAC_SOFT)
        or _over(memory.pressure_level, PRESSURE_LEVEL_SOFT)
        or _under(memory.available_frac, FREE_FRAC_SOFT if is_mac else AVAILABLE_FRAC_SOFT)
        or (compressing and _over(memory.decompressed_bytes_per_s, paging_threshold(limits)))
    )


def _hard(limits: Limits, memory: MemoryFigures, pace: PaceFigures) -> set[str]:
    """The signals at their hard level."""
    signs = set()
    if memory.paging and _over(memory.swap_growth_bytes, swap_limits(limits)[1]):
        signs.add("swap_growth")
    if _inflated(pace.step_s, pace.lone_reference_s, limits.inflation_hard):
        signs.add("step_inflation")
    if _over(pace.age_s, pace.stall_hard_s):
        signs.add("stalled")
    exhausted = memory.pressure_level is not None and _under(memory.available_frac, FREE_FRAC_HARD)
    if (
        exhausted
        or _over(memory.pressure_stall_frac, STALL_FRAC_HARD[limits.pressure_level])
        or _over(memory.pressure_level, PRESSURE_LEVEL_HARD[limits.pressure_level])
    ):
        signs.add("memory_pressure")
    if limits.footprint_bytes and _over(memory.footprint_bytes, limits.footprint_bytes):
        signs.add("footprint")
    return signs


# -- rules


def _agreeing(soft: AbstractSet[str], memory: MemoryFigures) -> set[str]:
    """Which agreements hold now.

    Slowness twice over (a long step is both inflated and stalled) agrees on nothing: one sign must be
    memory's. Two memory signs without slowness take longer, and need pages that come back: pages that only
    leave are how idle programs make room.
    """
    signs = [name for name in MEMORY_SIGNALS if name in soft]
    agreeing = set()
    if signs and ("step_inflation" in soft or "stalled" in soft):
        agreeing.add(SLOW_AND_MEMORY)
    if memory.thrashing and len([name for name in signs if name != "watchdog_late"]) >= 2:
        agreeing.add(MEMORY_TWICE)
    return agreeing


def _needed_s(limits: Limits, memory: MemoryFigures) -> dict[str, float]:
    """How long each condition has to hold."""
    return {
        SLOW_AND_MEMORY: limits.corroborated_s,
        MEMORY_TWICE: MEMORY_TWICE_PATIENCE * limits.corroborated_s,
        "hard:swap_growth": limits.swap_sustained_s * (1 if memory.thrashing else OUTWARD_PATIENCE),
        "hard:step_inflation": limits.inflation_sustained_s * (QUIET_PATIENCE if memory.quiet else 1),
        "hard:stalled": 0.0,  # an age is a duration already
        "hard:memory_pressure": limits.pressure_sustained_s,
        "hard:footprint": limits.footprint_sustained_s,
    }


def _judge(
    limits: Limits,
    state: State,
    memory: MemoryFigures,
    pace: PaceFigures,
    soft: AbstractSet[str],
    hard: AbstractSet[str],
    now: float,
) -> Action:
    """The first rule whose condition has held long enough; walls come before the time limit."""
    if state.blind >= BLIND_SAMPLES:
        return Stop("blind", {"unusable_samples": state.blind})
    elapsed_s = 0.0 if state.started_s is None else now - state.started_s
    if not state.since and elapsed_s < limits.time_limit_s:
        return CONTINUE  # as nearly always
    needed = _needed_s(limits, memory)
    due = {name: now - began for name, began in state.since.items() if now - began >= needed[name]}
    alone = [name for name in CAUSES if f"hard:{name}" in due]
    rule = next((name for name in (SLOW_AND_MEMORY, MEMORY_TWICE) if name in due), "alone")
    if rule != "alone":
        cause, held_s = next(name for name in CAUSES if name in soft), due[rule]
    elif alone:
        # The rule that is due first need not be the one that says most.
        cause, held_s = next(name for name in CAUSES if name in hard), due[f"hard:{alone[0]}"]
    elif elapsed_s >= limits.time_limit_s:
        return Stop("time_limit", {"elapsed_s": round(elapsed_s, 3), "time_limit_s": limits.time_limit_s})
    else:
        return CONTINUE
    signs = "+".join(name for name in (*CAUSES, "watchdog_late") if name in soft or name in hard)
    told: Evidence = {"rule": rule, "signals": signs, "held_s": round(held_s, 3)}
    return Stop(cause, {**told, **_describe(limits, memory, pace)})


def _note_gaps(limits: Limits, state: State, sample: Sample, memory: MemoryFigures) -> State:
    """Starts patience anew after a suspend, a pause of the watchdog, or a stop of the worker.

    A watchdog that is late *while pages move* was not paused, it thrashes: that keeps every timer, as
    evidence.
    """
    now = sample.monotonic_s
    gap_s, slept_s = 0.0, 0.0
    if state.last is not None:
        gap_s = now - state.last[0]
        slept_s = max(0.0, sample.boottime_s - state.last[1] - gap_s)
    slept_s = slept_s if slept_s > SLEPT_S else 0.0
    paused = gap_s > max(LATE_S, 5 * limits.sample_every_s) and not memory.paging
    stopped = sample.worker is not None and sample.worker.state in ("T", "t")
    if slept_s or paused or stopped:
        return dataclasses.replace(state, since={}, judged_from_s=now, suspended_s=state.suspended_s + slept_s)
    late = max(gap_s - limits.sample_every_s, sample.late_s) > LATE_S
    return dataclasses.replace(state, late_at_s=now) if late else state


def _remember(
    seen: dict[str, tuple[float, float]], signs: AbstractSet[str], memory: MemoryFigures, sample: Sample
) -> dict[str, tuple[float, float]]:
    """The figures seen, with those of the signals in `signs` brought up to now."""
    if signs.isdisjoint(MEMORY_SIGNALS):
        return seen
    figures = (
        ("swap_growth", "swap_growth", memory.swap_growth_bytes),
        ("memory_pressure", "pressure_stall_frac", memory.pressure_stall_frac),
        ("memory_pressure", "pressure_level", memory.pressure_level),
        ("memory_pressure", AVAILABLE, memory.available_frac),
        ("memory_pressure", "compressor_growth_bytes", memory.compressor_growth_bytes or None),
        ("footprint", "footprint", memory.footprint_bytes),
        ("watchdog_late", "watchdog_late", sample.late_s),
    )
    fresh = {name: value for sign, name, value in figures if sign in signs and value is not None}
    worst = {name: min if name == AVAILABLE else max for name in fresh}
    return seen | {
        name: (sample.monotonic_s, worst[name](value, seen.get(name, (0.0, value))[1])) for name, value in fresh.items()
    }


def _add_stall(state: State, memory: MemoryFigures, sample: Sample) -> float | None:
    """The measured time lost to waiting for memory, with this sample's span added."""
    frac, before_s = memory.pressure_stall_frac, state.measured_stall_s
    if frac is None or state.last is None:
        return before_s
    measured = sample.progress is not None and sample.progress.phase in MEASURED_PHASES
    return (before_s or 0.0) + (frac * (sample.monotonic_s - state.last[0]) if measured else 0.0)


def _describe(limits: Limits, memory: MemoryFigures, pace: PaceFigures) -> Evidence:
    """Every known figure and the thresholds it was held against, rounded to what a reader needs."""
    step_s = max(pace.step_s or 0.0, pace.acute_step_s or 0.0) or None
    soft_bytes, hard_bytes = swap_limits(limits)
    figures: dict[str, float | int | None] = {
        "swap_growth_bytes": memory.swap_growth_bytes,
        "swap_soft_bytes": soft_bytes,
        "swap_hard_bytes": hard_bytes,
        "swap_in_bytes_per_s": memory.swap_in_bytes_per_s,
        "swap_out_bytes_per_s": memory.swap_out_bytes_per_s,
        "step_s": step_s,
        "step_reference_s": pace.reference_s,
        "step_inflation": step_s / pace.reference_s if step_s and pace.reference_s else None,
        "inflation_soft": limits.inflation_soft,
        "inflation_hard": limits.inflation_hard,
        "progress_age_s": pace.age_s,
        "stall_soft_s": pace.stall_soft_s,
        "stall_hard_s": pace.stall_hard_s,
        "pressure_stall_frac": memory.pressure_stall_frac,
        "pressure_level": memory.pressure_level,
        "available_frac": memory.available_frac,
        "compressor_growth_bytes": memory.compressor_growth_bytes,
        "decompressed_bytes_per_s": memory.decompressed_bytes_per_s,
        "footprint_bytes": memory.footprint_bytes,
        "footprint_limit_bytes": limits.footprint_bytes or None,
    }
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items() if v is not None}


def _most(one: int | None, other: int | None) -> int | None:
    return max((n for n in (one, other) if n is not None), default=None)


def _inflated(step_s: float | None, reference_s: float | None, factor: float) -> bool:
    return bool(step_s and reference_s and step_s >= WALL_STEP_S and step_s >= factor * reference_s)


def _over(value: float | None, threshold: float) -> bool:
    return value is not None and value >= threshold


def _under(value: float | None, threshold: float) -> bool:
    return value is not None and value <= threshold

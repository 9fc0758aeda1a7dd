"""Owns what the samples of one attempt say of its pace: step times, their reference, the age of progress.

Does not judge (policy.py) and reads no clock: time arrives with the sample. Pure.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.watchdog.limits import Limits
    from orchestrator.watchdog.sample import ProgressReading, Sample

WARM_STEPS = 8
SKIPPED_STEPS = 2  # the first steps of an attempt compile and allocate
RECENT_STEPS = 5
PREDICTION_DOUBT = 2.0
STALL_SOFT_MARKS, STALL_HARD_MARKS = 4, 8  # of the slowest mark so far: chunks grow dearer with depth
FIRST_MARK_PATIENCE = 5  # nobody knows yet what a load, or a first chunk of 32 rows, takes on this machine


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered of the attempt's decode steps and of its other marks, in seconds.

    `warm_s` is the smallest median of eight steps in a row; `slowest_mark_s` the slowest mark of each phase
    that was not itself overdue; `mark` the last one seen, as (phase, rep, chunk).
    """

    seen: int = 0
    skip: int = SKIPPED_STEPS
    pending: tuple[float, ...] = ()
    warm_s: float | None = None
    mark: tuple[str, int, int] | None = None
    marked_at_s: float = 0.0
    slowest_mark_s: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PaceFigures:
    """One sample's pace. None: not known, or nothing is being decoded.

    `step_s` is settled: the median of the last five finished steps, which one slow step (a cache that grows
    by copy) does not move. `acute_step_s` counts the step in flight by its age, since a wall is often one
    unfinished step: the median of the last three, the mean of the last four (a wall that begins lets fast
    steps through), or half of the last or of the running one, whichever is most. `reference_s` is what a step
    should take, `lone_reference_s` the same with the benefit of the doubt.
    `age_s` is that of the last progress, without what was slept or stopped; `stall_*_s` how old it may be.
    """

    step_s: float | None
    acute_step_s: float | None
    reference_s: float | None
    lone_reference_s: float | None
    age_s: float | None
    stall_soft_s: float
    stall_hard_s: float


def median(values: Sequence[float]) -> float:
    """The middle value; the lower of two, so that one slow step of two is no median."""
    return sorted(values)[(len(values) - 1) // 2]


def age_of_progress(sample: Sample, judged_from_s: float) -> float | None:
    """Seconds since the last progress or since `judged_from_s`, whichever is less."""
    progress = sample.progress
    if progress is None:
        return None
    return max(0.0, min(progress.progress_age_s, sample.monotonic_s - judged_from_s))


def measure_pace(limits: Limits, history: History, sample: Sample, age_s: float | None) -> PaceFigures:
    """The pace of one sample, in the light of the history before it."""
    expected = limits.expected_step_s
    reference = _least(history.warm_s, expected)
    # A prediction that stands alone gets the benefit of the doubt, a measured median does not need it.
    lone = _least(history.warm_s, None if expected is None else PREDICTION_DOUBT * expected)
    step_s = acute_s = None
    if sample.progress is not None and _is_decoding(sample.progress):
        overdue_s = age_s if age_s and reference and age_s >= limits.inflation_soft * reference else None
        step_s, acute_s = _step_times(sample.progress, overdue_s)
    soft_s, hard_s = _stall_limits(limits, history, sample.progress)
    return PaceFigures(step_s, acute_s, reference, lone, age_s, soft_s, hard_s)


def follow(history: History, sample: Sample, overdue_s: float) -> History:
    """Takes in the steps and marks new in this sample; a mark slower than `overdue_s` teaches nothing."""
    progress = sample.progress
    if progress is None:
        return history
    history = _follow_marks(history, progress, sample.monotonic_s - progress.progress_age_s, overdue_s)
    new = progress.total_steps - history.seen
    return _follow_steps(history, progress, new) if new > 0 else history


def _follow_steps(history: History, progress: ProgressReading, new: int) -> History:
    skip, pending, warm = history.skip, history.pending, history.warm_s
    # Calibration runs at another depth.
    for step_s in progress.recent_step_s[-new:] if progress.phase != "calibrate" else ():
        if skip > 0:
            skip -= 1
            continue
        pending = (*pending, step_s)
        if len(pending) == WARM_STEPS:
            warm, pending = _least(warm, median(pending)), ()
    return dataclasses.replace(history, seen=progress.total_steps, skip=skip, pending=pending, warm_s=warm)


def _follow_marks(history: History, progress: ProgressReading, marked_at_s: float, overdue_s: float) -> History:
    mark, last = (progress.phase, progress.rep, progress.chunk), history.mark
    if mark == last:
        return history
    slowest = history.slowest_mark_s
    if last is not None and mark[:2] == last[:2] and mark[2] > last[2]:
        took_s = (marked_at_s - history.marked_at_s) / (mark[2] - last[2])
        if slowest.get(progress.phase, 0.0) < took_s < overdue_s:
            slowest = {**slowest, progress.phase: took_s}
    return dataclasses.replace(history, mark=mark, marked_at_s=marked_at_s, slowest_mark_s=slowest)


def _least(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _is_decoding(progress: ProgressReading) -> bool:
    """Whether a decode step is running: also in a warm-up, once its prefill has made all its marks."""
    prefilled = progress.step > 0 or 0 < progress.chunks <= progress.chunk
    return progress.phase == "decode" or (progress.phase == "warmup" and prefilled)


def _step_times(progress: ProgressReading, overdue_s: float | None) -> tuple[float | None, float | None]:
    finished = progress.recent_step_s[-RECENT_STEPS:][-progress.step :] if progress.step else ()
    last = finished if overdue_s is None else (*finished, overdue_s)
    settled = median(finished) if len(finished) >= 3 else None
    if not last:
        return settled, None
    lately = median(last[-3:]) if len(last) >= 3 else 0.0
    on_average = sum(last[-4:]) / 4 if len(last) >= 4 else 0.0
    return settled, max(lately, on_average, (overdue_s or 0.0) / 2, finished[-1] / 2 if finished else 0.0)


def _stall_limits(limits: Limits, history: History, progress: ProgressReading | None) -> tuple[float, float]:
    """How old the last progress may be, with memory evidence and alone, in seconds.

    At least the limits; scaled by the slowest mark so far, or by what smaller cells predict of one; and patient where
    nothing is known yet, which is until the first mark of a prefill that no smaller cell speaks for, and in a load
    throughout (weights differ in size a thousandfold).
    """
    if progress is None:
        return limits.stall_soft_s, limits.stall_hard_s
    phase = progress.phase
    usual_s = history.slowest_mark_s.get(phase, 0.0)
    if _is_decoding(progress):
        usual_s = max(usual_s, history.warm_s or 0.0, limits.expected_step_s or 0.0)
    elif phase in ("warmup", "prefill"):
        usual_s = max(usual_s, limits.expected_chunk_s or 0.0)
    unknown = phase in ("starting", "load") or (phase in ("warmup", "prefill") and usual_s == 0.0)
    patience = FIRST_MARK_PATIENCE if unknown else 1
    return (
        max(limits.stall_soft_s * patience, STALL_SOFT_MARKS * usual_s),
        max(limits.stall_hard_s * patience, STALL_HARD_MARKS * usual_s),
    )

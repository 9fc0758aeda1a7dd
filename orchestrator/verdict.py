"""Owns the decision what became of an attempt: facts in, one Judgement out.

Does not gather facts, count retries or write records. Pure.

The rules are asked in order, and the first that knows an answer gives it: what the worker finished stands;
what the person or a suspended machine broke off is not judged; what we ended for memory is a wall; then the
worker's own words decide, then why else we ended it, and only last the exit status. So our own SIGKILL is
never taken for somebody else's: the watchdog sets the cause before it sends a signal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.attempt_facts import AttemptFacts, last_words
from orchestrator.evidence import Figure, figures
from orchestrator.failure_texts import FailureText, Recognised, recognise
from orchestrator.quantities import duration, printable, shortened
from orchestrator.records import Verdict
from worker.protocol import Done, Failure, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["AttemptFacts", "Judgement", "judge", "judge_unfinished"]

# Past this, an attempt that slept with the machine is repeated; below it the numbers are only marked
# (metrics.py).
SUSPENDED_REPEAT_S = 5.0

_MEMORY_CAUSES = {
    "swap_growth": "Swap grew while the cell ran",
    "step_inflation": "Decode steps became many times slower than they were",
    "memory_pressure": "The system was short of memory",
    "footprint": "The worker's memory went over its limit",
}
_SMALLER = "smaller batch, shorter context or a quantized cache"
_SEE_LOG = "see worker.log in the folder of the attempt, cells/CELL/attempt-N"
_CRASH_REMEDIES = {
    "killed": "find out who sent SIGKILL: a person, another program, or a guard such as earlyoom or systemd-oomd",
    "sigbus": "see that the disk with the model stays mounted and nothing writes to its files while they are read",
    "sigabrt": f"{_SEE_LOG}; on a Mac also ~/Library/Logs/DiagnosticReports/Python-*.ips and `log show --last 10m`",
}
_LAST_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of an attempt.

    `detail` is a sentence for people, `remedy` what they can do. `memory_wall`: larger cells would hit it
    too. `retryable`: another attempt may end otherwise (the plan says how many). `stops_variant`: no cell of
    this variant can do better; `stops_sweep`: no cell on this host can.
    """

    verdict: Verdict
    cause: str | None = None
    detail: str = ""
    remedy: str = ""
    evidence: dict[str, Figure] = field(default_factory=dict)
    signal: str | None = None
    memory_wall: bool = False
    retryable: bool = False
    stops_variant: bool = False
    stops_sweep: bool = False


def judge(facts: AttemptFacts) -> Judgement:
    """What became of the attempt. Total: every combination of facts has a verdict."""
    for rule in _RULES:
        judgement = rule(facts)
        if judgement is not None:
            return judgement
    return _by_exit(facts)


def judge_unfinished(started_boot_id: str, boot_id: str) -> Judgement:
    """What became of an attempt of which the ledger knows only the start.

    Another boot id means that the machine went down under it, which counts as a wall and is not tried again
    by itself.
    """
    if started_boot_id and boot_id and started_boot_id != boot_id:
        return Judgement(
            verdict=Verdict.HOST_DIED,
            cause="reboot",
            detail="The machine went down while this cell ran.",
            remedy="a smaller cell is safer; what the machine said of its end: panic-full-*.panic in "
            "/Library/Logs/DiagnosticReports (macOS), journalctl -k -b -1 (Linux)",
            evidence={"boot_id_then": started_boot_id, "boot_id_now": boot_id},
            memory_wall=True,
        )
    return Judgement(
        verdict=Verdict.INTERRUPTED,
        cause="orchestrator_died",
        detail="The sweep ended while this cell ran, and the machine stayed up.",
        remedy="resume runs it again",
        retryable=True,
    )


# -- the rules, in the order in which they are asked


def _completed(facts: AttemptFacts) -> Judgement | None:
    if not isinstance(facts.final, Done) or facts.reps_measured < facts.reps_expected:
        return None
    if facts.slept_s > SUSPENDED_REPEAT_S:
        return None
    after: dict[str, Figure] = {}
    if facts.cause:
        after["ended_after_done"] = facts.cause
    if facts.exit_status:
        after["exit_after_done"] = facts.signal or facts.exit_status
    detail = "Measured in full before it went wrong at its exit." if after else ""
    return _judgement(facts, Verdict.COMPLETED, None, detail, more=after)


def _interrupted(facts: AttemptFacts) -> Judgement | None:
    if facts.cause != "interrupted":
        return None
    return _judgement(
        facts,
        Verdict.INTERRUPTED,
        "interrupted",
        f"The sweep was stopped while the cell was {facts.where}.",
        "resume runs it again",
        retryable=True,
    )


def _suspended(facts: AttemptFacts) -> Judgement | None:
    if facts.slept_s <= SUSPENDED_REPEAT_S:
        return None
    return _judgement(
        facts,
        Verdict.INTERRUPTED,
        "suspended",
        f"The machine slept for {duration(facts.slept_s)} while it was {facts.where}; it is not judged.",
        "keep the machine awake: mains power, an open lid, no sleep timer",
        more={"suspended_s": facts.slept_s},
        retryable=True,
    )


def _ended_for_memory(facts: AttemptFacts) -> Judgement | None:
    if facts.cause not in _MEMORY_CAUSES:
        return None
    seen = figures(facts.evidence, facts.cause)
    detail = f"{_MEMORY_CAUSES[facts.cause]}, so it was ended {facts.where}" + (f": {seen}." if seen else ".")
    hit = recognise(facts.words, native_only=True)
    return _judgement(
        facts,
        Verdict.HIT_THE_WALL,
        facts.cause,
        detail,
        _SMALLER,
        more={"text": hit.line} if hit else {},
        # Slow steps alone may come from another program on the GPU: a wall for this cell, no proof for larger
        # ones.
        memory_wall=facts.cause != "step_inflation" or bool(facts.memory_evidence),
    )


def _stopped_unasked(facts: AttemptFacts) -> Judgement | None:
    if not isinstance(facts.final, Stopped) or facts.cause:
        return None
    return _judgement(
        facts,
        Verdict.INTERRUPTED,
        "stop_flag",
        f"The worker saw the stop flag while it was {facts.where}; nobody owned up to a reason.",
        "resume runs it again",
        retryable=True,
    )


def _own_words(facts: AttemptFacts) -> Judgement | None:
    """By what the worker said, in its last message or in its log."""
    failure = facts.final if isinstance(facts.final, Failure) else None
    words = facts.words
    hit = recognise(words, native_only=True)
    if hit is None and failure is not None and failure.kind != "error":
        return _failed(facts, failure)
    if hit is None and (failure is not None or (facts.cause is None and (facts.exit_status or 0) > 0)):
        hit = recognise(words)
    if hit is not None:
        return _by_text(facts, hit)
    return _failed(facts, failure) if failure is not None else None


def _ended_for_time(facts: AttemptFacts) -> Judgement | None:
    cause = facts.cause
    if cause is None:
        return None
    said = {
        "stalled": f"Nothing moved any more {facts.where}",
        "time_limit": f"The cell's time ran out {facts.where}",
    }.get(cause)
    if said is None and not facts.memory_evidence:
        return _judgement(
            facts,
            Verdict.INTERRUPTED,
            cause,
            f"Ended {facts.where} for a reason that says nothing about the cell ({printable(cause)}).",
            "resume runs it again",
            retryable=True,
        )
    return _out_of_time(facts, cause, said or f"It was ended {facts.where}")


def _backstop(facts: AttemptFacts) -> Judgement | None:
    if facts.signal != "SIGALRM":
        return None
    return _out_of_time(facts, "backstop", f"The worker's own timer ended it {facts.where}: nobody else had")


def _unwatched(facts: AttemptFacts) -> Judgement | None:
    if not facts.watchdog_died:
        return None
    return _judgement(
        facts,
        Verdict.INTERRUPTED,
        "watchdog_died",
        f"The watchdog died while the cell was {facts.where}; an unwatched cell is not judged.",
        "resume runs it again",
        more={"watchdog_died": "yes"},
        retryable=True,
    )


def _killed(facts: AttemptFacts) -> Judgement | None:
    """A SIGKILL that we did not send."""
    if facts.signal != "SIGKILL" or facts.cause:
        return None
    oom_kills = facts.released.oom_kills if facts.released else None
    if facts.platform.startswith("linux") and oom_kills:
        return _judgement(
            facts,
            Verdict.HIT_THE_WALL,
            "kernel_oom",
            f"The kernel's out-of-memory killer ended it {facts.where}.",
            _SMALLER,
            more={"oom_kills": oom_kills},
            memory_wall=True,
        )
    if facts.platform == "darwin" and (facts.memory_evidence or facts.jetsam_report):
        return _judgement(
            facts,
            Verdict.HIT_THE_WALL,
            "jetsam",
            f"macOS ended it {facts.where} to get memory back.",
            _SMALLER,
            more={"jetsam_report": printable(facts.jetsam_report)} if facts.jetsam_report else {},
            memory_wall=True,
        )
    return None


_RULES: tuple[Callable[[AttemptFacts], Judgement | None], ...] = (
    _completed,
    _interrupted,
    _suspended,
    _ended_for_memory,
    _stopped_unasked,
    _own_words,
    _ended_for_time,
    _backstop,
    _killed,
    _unwatched,
)


def _by_exit(facts: AttemptFacts) -> Judgement:
    """Nobody ended it and it said nothing that is known: the exit status is all there is."""
    if facts.signal and facts.memory_evidence:
        said = f"The worker died of {facts.signal} {facts.where}"
        return _wall_by_evidence(facts, "crash_under_pressure", said)
    cause, said = _exit_in_words(facts)
    words = last_words(facts.log_tail)
    return _judgement(
        facts,
        Verdict.CRASHED,
        cause,
        f"{said}. Its last words: {words}" if words else f"{said}; its log is empty.",
        _CRASH_REMEDIES.get(cause, _SEE_LOG),
        more={"torn_tail": "yes"} if facts.torn_tail else {},
        retryable=True,
    )


def _exit_in_words(facts: AttemptFacts) -> tuple[str, str]:
    """Cause and sentence of a crash."""
    name, status = facts.signal, facts.exit_status
    if not facts.hello_seen:
        return "died_at_start", f"The worker died before it could say hello ({facts.ending})"
    if name:
        cause = "killed" if name == "SIGKILL" else name.lower()
        return cause, f"The worker died {facts.where}: {facts.ending}"
    if facts.torn_tail or isinstance(facts.final, Done):
        kept = f"{facts.reps_measured} of {facts.reps_expected} reps"
        return "torn_result", f"The worker's result is torn: {kept} arrived whole"
    if status is None:
        return "lost", f"The worker was lost {facts.where}: no exit status is known"
    if status == 0:
        return "no_result", f"The worker ended {facts.where} without a result, though its exit status is 0"
    return "exit_status", f"The worker ended {facts.where} with exit status {status}"


# -- parts of a judgement


def _by_text(facts: AttemptFacts, hit: Recognised) -> Judgement:
    row: FailureText = hit.row
    wall = row.memory_wall or (row.wall_with_evidence and bool(facts.memory_evidence))
    more: dict[str, Figure] = {"text": hit.line}
    if facts.cause:
        more["ended_by_us"] = facts.cause
    return _judgement(
        facts,
        Verdict.HIT_THE_WALL if wall else row.verdict,
        row.cause,
        f"{hit.sentence} It was {facts.where}.",
        row.remedy,
        more=more,
        memory_wall=wall,
        retryable=row.retryable and not wall,
        stops_variant=row.stops_variant,
        stops_sweep=row.stops_sweep,
    )


def _failed(facts: AttemptFacts, failure: Failure) -> Judgement:
    """A failure that the worker named itself, or one that nobody knows a name for."""
    named = failure.kind != "error"
    text = shortened(printable(failure.text), _LAST_CHARACTERS)
    of_the_cell = failure.kind in {"error", "rows_short", "bad_fault"}
    return _judgement(
        facts,
        Verdict.FAILED,
        failure.kind,
        text or last_words(failure.traceback) or "The worker reported an error without words.",
        failure.remedy or _SEE_LOG,
        retryable=not named,
        stops_variant=not of_the_cell or (failure.kind == "error" and failure.phase in {"starting", "load"}),
    )


def _out_of_time(facts: AttemptFacts, cause: str, said: str) -> Judgement:
    """Too slow: a wall where the watchdog saw memory trouble, else a time-out."""
    if facts.memory_evidence:
        return _wall_by_evidence(facts, cause, said)
    wedged = f"{_SEE_LOG}; where other cells stand still too, the GPU is wedged: restart the machine"
    remedy = "larger cell_time_limit, or fewer reps" if cause == "time_limit" else wedged
    return _judgement(facts, Verdict.TIMED_OUT, cause, f"{said}, with no sign of memory trouble.", remedy)


def _wall_by_evidence(facts: AttemptFacts, cause: str, said: str) -> Judgement:
    detail = f"{said}, with signs of memory trouble: {figures(facts.memory_evidence)}."
    return _judgement(facts, Verdict.HIT_THE_WALL, cause, detail, _SMALLER, memory_wall=True)


def _judgement(
    facts: AttemptFacts,
    verdict: Verdict,
    cause: str | None,
    detail: str,
    remedy: str = "",
    *,
    more: Mapping[str, Figure] | None = None,
    memory_wall: bool = False,
    retryable: bool = False,
    stops_variant: bool = False,
    stops_sweep: bool = False,
) -> Judgement:
    unkillable = facts.released is not None and facts.released.unkillable
    return Judgement(
        verdict=verdict,
        cause=cause,
        detail=detail,
        remedy="restart the machine: a worker that SIGKILL does not end still holds its memory"
        if unkillable
        else remedy,
        evidence={**facts.evidence, **(more or {}), **({"unkillable": "yes"} if unkillable else {})},
        signal=facts.signal,
        memory_wall=memory_wall,
        retryable=retryable and not unkillable,
        stops_variant=stops_variant,
        stops_sweep=stops_sweep or unkillable,
    )

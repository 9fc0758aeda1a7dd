"""What becomes of an attempt: a table for every line of docs/failures.md that is not a text."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import Verdict
from orchestrator.verdict import AttemptFacts, judge, judge_unfinished
from orchestrator.watchdog.wire import Acted, Released
from worker.protocol import Done, Failure, Stopped

SWAPPED: dict[str, float | int | str] = {"swap_growth": 0.7e9}
ACTED: dict[str, float | int | str] = {
    "rule": "slow and memory",
    "signals": "swap_growth+step_inflation",
    "held_s": 1.1,
    "swap_growth_bytes": 700_000_000,
    "swap_soft_bytes": 4_000_000,
    "step_s": 2.31,
    "step_inflation": 11.3,
}
OOM = "[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCallbackErrorOutOfMemory)"


def released(cause: str | None = None, **changes: Any) -> Released:
    quiet = Released(
        serial=1,
        cause=cause,
        evidence={},
        rungs=[],
        unkillable=False,
        peak_footprint_bytes=None,
        swap_growth_bytes=0,
        swapin_bytes=0,
        swapout_bytes=0,
        pressure_stall_s=0.0,
        oom_kills=0,
        late_max_s=0.0,
        samples=10,
    )
    return dataclasses.replace(quiet, **changes)


def facts(**changes: Any) -> AttemptFacts:
    plain = AttemptFacts(
        platform="linux",
        exit_status=0,
        reps_expected=3,
        reps_measured=1,
        released=released(),
        phase="decode",
        rep=2,
        step=17,
    )
    return dataclasses.replace(plain, **changes)


def failure(kind: str = "error", text: str = "no", **changes: Any) -> Failure:
    return dataclasses.replace(Failure(kind=kind, text=text, remedy="", phase="decode"), **changes)


KILL, SEGV, ABRT, ALRM, BUS, TERM = (
    -int(s) for s in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGALRM, signal.SIGBUS, signal.SIGTERM)
)

CASES: dict[str, tuple[AttemptFacts, Verdict, str | None]] = {
    # -- it finished
    "done": (facts(final=Done(3), reps_measured=3), Verdict.COMPLETED, None),
    "done, then a bad exit": (
        facts(final=Done(3), reps_measured=3, exit_status=SEGV),
        Verdict.COMPLETED,
        None,
    ),
    "done, then a hang at exit that we ended": (
        facts(final=Done(3), reps_measured=3, exit_status=KILL, released=released("stalled")),
        Verdict.COMPLETED,
        None,
    ),
    "done, watchdog gone": (
        facts(final=Done(3), reps_measured=3, released=None, watchdog_died=True),
        Verdict.COMPLETED,
        None,
    ),
    "done, but reps are missing": (facts(final=Done(3), reps_measured=2), Verdict.CRASHED, "torn_result"),
    # -- we ended it
    "swap": (
        facts(released=released("swap_growth", evidence=ACTED), exit_status=KILL),
        Verdict.HIT_THE_WALL,
        "swap_growth",
    ),
    "steps": (
        facts(released=released("step_inflation"), final=Stopped("decode", 2, 17)),
        Verdict.HIT_THE_WALL,
        "step_inflation",
    ),
    "pressure": (
        facts(released=released("memory_pressure"), exit_status=TERM),
        Verdict.HIT_THE_WALL,
        "memory_pressure",
    ),
    "footprint": (facts(released=released("footprint"), exit_status=KILL), Verdict.HIT_THE_WALL, "footprint"),
    "our own SIGKILL beside an OOM kill of somebody else": (
        facts(released=released("swap_growth", oom_kills=2), exit_status=KILL),
        Verdict.HIT_THE_WALL,
        "swap_growth",
    ),
    "our own SIGKILL of a stalled worker is no OOM": (
        facts(released=released("stalled", oom_kills=2), exit_status=KILL),
        Verdict.TIMED_OUT,
        "stalled",
    ),
    "stalled, memory": (
        facts(released=released("stalled", memory_evidence=SWAPPED), exit_status=KILL),
        Verdict.HIT_THE_WALL,
        "stalled",
    ),
    "stalled, no memory": (
        facts(released=released("stalled"), exit_status=KILL),
        Verdict.TIMED_OUT,
        "stalled",
    ),
    "stalled after Metal said why": (
        facts(released=released("stalled"), exit_status=KILL, log_tail=OOM),
        Verdict.HIT_THE_WALL,
        "metal_oom",
    ),
    "time limit": (facts(released=released("time_limit"), exit_status=TERM), Verdict.TIMED_OUT, "time_limit"),
    "time limit that only the orchestrator knows of": (
        facts(released=None, stop_cause="time_limit", exit_status=KILL),
        Verdict.TIMED_OUT,
        "time_limit",
    ),
    "time limit, memory": (
        facts(released=released("time_limit", memory_evidence=SWAPPED), exit_status=TERM),
        Verdict.HIT_THE_WALL,
        "time_limit",
    ),
    "blind watchdog": (facts(released=released("blind"), exit_status=KILL), Verdict.INTERRUPTED, "blind"),
    "blind watchdog, memory": (
        facts(released=released("blind", memory_evidence=SWAPPED), exit_status=KILL),
        Verdict.HIT_THE_WALL,
        "blind",
    ),
    # -- broken off, not judged
    "Ctrl-C": (
        facts(released=released("interrupted"), final=Stopped("decode", 2, 17)),
        Verdict.INTERRUPTED,
        "interrupted",
    ),
    "Ctrl-C twice": (
        facts(released=None, stop_cause="interrupted", exit_status=KILL),
        Verdict.INTERRUPTED,
        "interrupted",
    ),
    "Ctrl-C while it swapped": (
        facts(released=released("interrupted", memory_evidence=SWAPPED), exit_status=TERM),
        Verdict.INTERRUPTED,
        "interrupted",
    ),
    "stopped without a cause": (facts(final=Stopped("decode", 2, 17)), Verdict.INTERRUPTED, "stop_flag"),
    "slept with the machine": (
        facts(released=released("stalled", suspended_s=3600.0), exit_status=KILL),
        Verdict.INTERRUPTED,
        "suspended",
    ),
    "slept, and finished all the same": (
        facts(final=Done(3), reps_measured=3, released=released(None, suspended_s=60.0)),
        Verdict.INTERRUPTED,
        "suspended",
    ),
    "dozed for a moment": (
        facts(final=Done(3), reps_measured=3, released=released(None, suspended_s=2.0)),
        Verdict.COMPLETED,
        None,
    ),
    "watchdog died": (
        facts(released=None, watchdog_died=True, exit_status=KILL),
        Verdict.INTERRUPTED,
        "watchdog_died",
    ),
    # -- it ended by itself
    "kernel OOM": (
        facts(exit_status=KILL, released=released(oom_kills=1)),
        Verdict.HIT_THE_WALL,
        "kernel_oom",
    ),
    "SIGKILL of unknown origin": (facts(exit_status=KILL), Verdict.CRASHED, "killed"),
    "SIGKILL, counter unreadable, but it swapped": (
        facts(exit_status=KILL, released=released(oom_kills=None, memory_evidence=SWAPPED)),
        Verdict.HIT_THE_WALL,
        "crash_under_pressure",
    ),
    "jetsam by report": (
        facts(platform="darwin", exit_status=KILL, jetsam_report="JetsamEvent-1.ips"),
        Verdict.HIT_THE_WALL,
        "jetsam",
    ),
    "jetsam by evidence": (
        facts(platform="darwin", exit_status=KILL, released=released(memory_evidence=SWAPPED)),
        Verdict.HIT_THE_WALL,
        "jetsam",
    ),
    "SIGKILL on a Mac at ease": (facts(platform="darwin", exit_status=KILL), Verdict.CRASHED, "killed"),
    "a Linux counter says nothing on a Mac": (
        facts(platform="darwin", exit_status=KILL, released=released(oom_kills=3)),
        Verdict.CRASHED,
        "killed",
    ),
    "SIGSEGV": (facts(exit_status=SEGV), Verdict.CRASHED, "sigsegv"),
    "SIGSEGV seen through a shell": (facts(exit_status=128 + signal.SIGSEGV), Verdict.CRASHED, "sigsegv"),
    "SIGBUS": (facts(exit_status=BUS), Verdict.CRASHED, "sigbus"),
    "SIGABRT": (facts(exit_status=ABRT), Verdict.CRASHED, "sigabrt"),
    "SIGTERM that we did not send": (facts(exit_status=TERM), Verdict.CRASHED, "sigterm"),
    "a signal without a name": (facts(exit_status=-250), Verdict.CRASHED, "sig250"),
    "SIGSEGV while it swapped": (
        facts(exit_status=SEGV, released=released(memory_evidence=SWAPPED)),
        Verdict.HIT_THE_WALL,
        "crash_under_pressure",
    ),
    "the worker's own timer": (facts(exit_status=ALRM), Verdict.TIMED_OUT, "backstop"),
    "the worker's own timer, memory": (
        facts(exit_status=ALRM, released=released(memory_evidence=SWAPPED)),
        Verdict.HIT_THE_WALL,
        "backstop",
    ),
    "exit 0 without a result": (facts(exit_status=0), Verdict.CRASHED, "no_result"),
    "exit 3": (facts(exit_status=3), Verdict.CRASHED, "exit_status"),
    "torn result": (facts(exit_status=0, torn_tail=True), Verdict.CRASHED, "torn_result"),
    "a signal tells more than a torn line": (
        facts(exit_status=SEGV, torn_tail=True),
        Verdict.CRASHED,
        "sigsegv",
    ),
    "death before hello": (
        facts(exit_status=1, hello_seen=False, phase=None),
        Verdict.CRASHED,
        "died_at_start",
    ),
    "segfault before hello": (facts(exit_status=SEGV, hello_seen=False), Verdict.CRASHED, "died_at_start"),
    "kernel OOM before hello": (
        facts(exit_status=KILL, hello_seen=False, released=released(oom_kills=1)),
        Verdict.HIT_THE_WALL,
        "kernel_oom",
    ),
    "never reaped": (facts(exit_status=None), Verdict.CRASHED, "lost"),
    # -- it named its failure
    "unknown error": (facts(exit_status=1, final=failure(text="odd")), Verdict.FAILED, "error"),
    "named failure": (
        facts(exit_status=1, final=failure("kv_bits_unsupported")),
        Verdict.FAILED,
        "kv_bits_unsupported",
    ),
    "a named failure wins over a stray line in the log": (
        facts(exit_status=1, final=failure("rows_short"), log_tail="warning: 401 Client Error"),
        Verdict.FAILED,
        "rows_short",
    ),
    "out of memory wins over the name": (
        facts(exit_status=1, final=failure("rows_short", text=f"RuntimeError: {OOM}.")),
        Verdict.HIT_THE_WALL,
        "metal_oom",
    ),
    "a line about a login explains no segfault": (
        facts(exit_status=SEGV, log_tail="warning: 401 Client Error"),
        Verdict.CRASHED,
        "sigsegv",
    ),
}


@pytest.mark.parametrize(("given_facts", "verdict", "cause"), CASES.values(), ids=CASES.keys())
def test_table(given_facts: AttemptFacts, verdict: Verdict, cause: str | None) -> None:
    judgement = judge(given_facts)
    assert (judgement.verdict, judgement.cause) == (verdict, cause)


def test_a_wall_shows_its_evidence_in_the_sentence() -> None:
    judgement = judge(facts(released=released("swap_growth", evidence=ACTED), exit_status=KILL))
    assert judgement.memory_wall
    assert not judgement.retryable
    assert "swap +0.70 GB, step 2.3 s, 11x" in judgement.detail
    assert "in decode, rep 3 of 3, step 17" in judgement.detail
    assert judgement.evidence["swap_growth_bytes"] == 700_000_000


def test_slow_steps_alone_prove_nothing_for_larger_cells() -> None:
    alone = judge(facts(released=released("step_inflation"), exit_status=KILL))
    with_memory = judge(facts(released=released("step_inflation", memory_evidence=SWAPPED), exit_status=KILL))
    assert not alone.memory_wall
    assert with_memory.memory_wall
    assert with_memory.evidence == {"swap_growth_peak_bytes": 0.7e9}


def test_a_crash_names_signal_and_last_words_and_leaves_out_the_noise() -> None:
    tail = (
        "loading\nFatal Python error: Segmentation fault\n\x1b[31mred\n"
        "UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up\n"
    )
    judgement = judge(facts(exit_status=SEGV, log_tail=tail))
    assert judgement.signal == "SIGSEGV"
    assert judgement.retryable
    assert judgement.detail.endswith("loading | Fatal Python error: Segmentation fault | \\x1b[31mred")


def test_what_went_wrong_after_done_is_kept_as_evidence() -> None:
    judgement = judge(facts(final=Done(3), reps_measured=3, exit_status=ABRT, released=released("stalled")))
    assert judgement.evidence == {"ended_after_done": "stalled", "exit_after_done": "SIGABRT"}


def test_the_watchdog_s_cause_comes_before_the_orchestrator_s() -> None:
    judgement = judge(facts(released=released("swap_growth"), stop_cause="time_limit", exit_status=KILL))
    assert judgement.cause == "swap_growth"


def test_an_unkillable_worker_keeps_its_cause_and_stops_the_sweep() -> None:
    judgement = judge(facts(released=released("stalled", unkillable=True), exit_status=None))
    assert (judgement.verdict, judgement.cause) == (Verdict.TIMED_OUT, "stalled")
    assert judgement.evidence["unkillable"] == "yes"
    assert judgement.stops_sweep
    assert not judgement.retryable
    assert "restart" in judgement.remedy


@pytest.mark.parametrize(
    ("kind", "phase", "stops_variant"),
    [
        ("model_not_found", "load", True),
        ("unsupported_model", "load", True),
        ("not_batchable", "prefill", True),
        ("kv_bits_unsupported", "prefill", True),
        ("rows_short", "decode", False),
        ("error", "decode", False),
        ("error", "load", True),
    ],
)
def test_a_model_that_cannot_load_stops_its_variant(kind: str, phase: str, stops_variant: bool) -> None:
    judgement = judge(facts(exit_status=1, final=failure(kind, "so it is", phase=phase, remedy="do that")))
    assert judgement.stops_variant == stops_variant
    assert judgement.remedy == "do that"
    assert judgement.detail == "so it is"


def test_unfinished_attempts() -> None:
    died = judge_unfinished("boot-1", "boot-2")
    assert (died.verdict, died.memory_wall, died.retryable) == (Verdict.HOST_DIED, True, False)
    assert "panic-full-" in died.remedy
    alive = judge_unfinished("boot-1", "boot-1")
    assert (alive.verdict, alive.cause, alive.retryable) == (Verdict.INTERRUPTED, "orchestrator_died", True)
    assert judge_unfinished("", "boot-2").verdict is Verdict.INTERRUPTED  # no proof that the machine went down


_FINALS = st.sampled_from([None, Done(3), Stopped("decode", 1, 1), failure(), failure("protocol")])
_CAUSES = st.sampled_from([None, "swap_growth", "stalled", "time_limit", "interrupted", "blind", "footprint"])


@given(
    exit_status=st.none() | st.integers(-70, 300),
    final=_FINALS,
    hello_seen=st.booleans(),
    torn_tail=st.booleans(),
    reps_measured=st.integers(0, 3),
    cause=_CAUSES,
    memory=st.sampled_from([{}, SWAPPED]),
    unkillable=st.booleans(),
    watchdog_died=st.booleans(),
    suspended_s=st.sampled_from([0.0, 1e4]),
    acted=st.sampled_from([None, Acted(1, "swap_growth", {"swap_growth_bytes": 7_000_000_000})]),
    log_tail=st.text(max_size=60),
    platform=st.sampled_from(["linux", "darwin"]),
    phase=st.sampled_from([None, "starting", "load", "prefill", "decode"]),
)
def test_every_combination_has_a_verdict_that_is_consistent(
    cause: str | None, memory: dict[str, Any], unkillable: bool, watchdog_died: bool, suspended_s: float, **rest: Any
) -> None:
    told = released(cause, memory_evidence=memory, unkillable=unkillable, suspended_s=suspended_s)
    seen = None if watchdog_died else told
    given_facts = facts(released=seen, watchdog_died=watchdog_died, **rest)
    judgement = judge(given_facts)
    assert judgement.verdict not in {Verdict.HOST_DIED, Verdict.SKIPPED}
    assert (judgement.cause is None) == (judgement.verdict is Verdict.COMPLETED)
    assert judgement.detail.isprintable()
    if judgement.memory_wall:
        assert judgement.verdict is Verdict.HIT_THE_WALL
        assert not judgement.retryable
    if judgement.verdict is Verdict.CRASHED and given_facts.signal:
        assert not given_facts.memory_evidence
    if cause == "interrupted" and seen and judgement.verdict is not Verdict.COMPLETED:
        assert judgement.verdict is Verdict.INTERRUPTED


def test_a_watchdog_that_died_after_it_acted_has_told_why() -> None:
    """A wall that thrashes so hard that the watchdog is lost with it is still a wall."""
    acted = Acted(1, "swap_growth", {"swap_growth_bytes": 7_000_000_000})
    judgement = judge(facts(released=None, watchdog_died=True, acted=acted, exit_status=KILL))
    assert (judgement.verdict, judgement.cause) == (Verdict.HIT_THE_WALL, "swap_growth")
    assert judgement.evidence["swap_growth_bytes"] == 7_000_000_000
    assert judgement.memory_wall


def test_the_page_for_people_tells_of_every_cause() -> None:
    page = (Path(__file__).parents[1] / "docs" / "failures.md").read_text(encoding="utf-8")
    for name, (_, verdict, cause) in CASES.items():
        if cause is None or cause.startswith("sig") or cause in {"error", "kv_bits_unsupported"}:
            continue  # signals are told of together, named failures under the texts
        wall_too = f"{cause}`, or a wall with memory signs"
        assert f"`{verdict}: {cause}`" in page or wall_too in page, name

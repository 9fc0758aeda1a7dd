"""Owns the measuring loop: what is timed, when a phase begins and ends, and what a repetition reports.

Does not own how tokens are made (engines/) nor what the numbers mean for a cell (the orchestrator). No MLX
here, so that the faulty engine runs through the very same loop. docs/measurement.md defines the figures.
"""

from __future__ import annotations

import gc
import hashlib
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from worker.failures import AttemptError
from worker.protocol import Done, RepResult
from worker.telemetry import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.progress import Progress
    from worker.protocol import Message, WorkerSpec


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The allocator's figures in bytes; `peak_bytes` is since the last reset."""

    active_bytes: int
    cache_bytes: int
    peak_bytes: int


class Memory(Protocol):
    """The allocator whose figures are recorded."""

    def reset_peak(self) -> None:
        """Starts a new peak."""

    def read(self) -> MemoryReading:
        """The figures now."""


@dataclass(frozen=True, slots=True)
class RepEnd:
    """What an engine knows of a repetition once it is over.

    `finite_logits` and `constant_logits` judge the last step's logits of all rows; `filled_tokens` counts
    tokens whose keys and values were written at random; `tokens` holds the rows' token ids, step by step.
    """

    finite_logits: bool
    constant_logits: bool
    kv_cache_bytes: int
    filled_tokens: int
    tokens: list[list[int]] = field(default_factory=list)


class Engine(Protocol):
    """One way to decode a batch. A repetition is one `prefill`, any number of `step`s, one `finish`.

    `launches_ahead` says whether the next step is under way already when `prefill` and `step` return. Where it
    is not, nothing is: what prefill held is given back by then, and the peaks of its phases are its own.
    """

    launches_ahead: bool

    def prefill(self, prompts: list[list[int]], chunk_done: Callable[[], None]) -> int:
        """Takes prompts of equal length up to the first tokens; returns the rows that have one."""

    def step(self) -> int:
        """Makes one more token for every row, evaluated; returns the rows that got one."""

    def finish(self) -> RepEnd:
        """Checks what was made and lets go of the caches."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """One repetition as the clock saw it; seconds and bytes."""

    prefill_s: float
    chunk_s: list[float]
    step_s: list[float]
    rows_per_step: list[int]
    first_rows: int
    prefill: MemoryReading
    prefill_peak_bytes: int
    first_step_peak_bytes: int
    end: MemoryReading


def random_prompts(seed: int, batch: int, context: int, vocab_size: int) -> list[list[int]]:
    """`batch` prompts of `context` token ids below `vocab_size`.

    Row k is the same in every batch size of a seed, so that cells of one context differ in nothing but their
    width.
    """
    ids = list(range(vocab_size))  # shared, so that a million ids do not become a million int objects
    return [random.Random(f"{seed}/{row}").choices(ids, k=context) for row in range(batch)]


def expected_chunks(spec: WorkerSpec) -> int:
    """How many marks a prefill makes."""
    if spec.engine == "lockstep" and spec.prefill_logits == "all" and spec.context_fill == "prefill":
        return -(-spec.context // spec.prefill_step_size)
    return -(-(spec.context - 1) // spec.prefill_step_size) + 1


def run_cell(
    spec: WorkerSpec,
    engine: Engine,
    vocab_size: int,
    memory: Memory,
    progress: Progress,
    send: Callable[[Message], None],
) -> None:
    """Runs warm-up and measured repetitions and sends a result per measured one, and `Done`.

    Raises:
        StopAsked: the stop flag went up.
        AttemptError: a step did not hold all rows, or the engine cannot do what was asked.
    """
    prompts = random_prompts(spec.seed, spec.batch, spec.context, vocab_size)
    # Weights and prompts live to the end: the collector need not walk them inside a timed window.
    gc.collect()
    gc.freeze()
    for rep in range(-spec.warmup, 0):
        measure_rep(spec, rep, engine, prompts, memory, progress)
    rates: list[float] = []
    measured_s = 0.0
    while not rates or not spec.repeats.enough(rates, measured_s):
        result = measure_rep(spec, len(rates), engine, prompts, memory, progress)
        rates.append(_rate(spec, result))
        measured_s += result.ended_s - result.started_s
        send(result)
    progress.enter(Phase.DONE, rep=len(rates))
    send(Done(reps=len(rates)))


def measure_rep(
    spec: WorkerSpec,
    rep: int,
    engine: Engine,
    prompts: list[list[int]],
    memory: Memory,
    progress: Progress,
) -> RepResult:
    """Runs one whole repetition; a negative `rep` is a warm-up and shows itself as that phase."""
    started = time.monotonic()
    timed = _time_rep(spec, rep, engine, prompts, memory, progress)
    ended = time.monotonic()
    end = engine.finish()
    return RepResult(
        rep=rep,
        prefill_s=timed.prefill_s,
        prompt_tokens=sum(map(len, prompts)) - end.filled_tokens,
        chunk_s=timed.chunk_s,
        step_s=timed.step_s,
        rows_per_step=timed.rows_per_step,
        generated_tokens=timed.first_rows + sum(timed.rows_per_step),
        finite_logits=end.finite_logits,
        constant_logits=end.constant_logits,
        prefill_peak_bytes=timed.prefill_peak_bytes,
        decode_peak_bytes=max(timed.end.peak_bytes, timed.end.active_bytes),
        active_bytes=timed.end.active_bytes,
        cache_bytes=timed.end.cache_bytes,
        kv_cache_bytes=end.kv_cache_bytes,
        started_s=started,
        ended_s=ended,
        filled_tokens=end.filled_tokens,
        tokens_digest=_digest(end.tokens),
        first_step_peak_bytes=timed.first_step_peak_bytes,
        prefill_active_bytes=timed.prefill.active_bytes,
        prefill_cache_bytes=timed.prefill.cache_bytes,
    )


def _rate(spec: WorkerSpec, result: RepResult) -> float:
    """Tokens per second over all rows in the decode window; that of the prefill where there is no window."""
    window_s = sum(result.step_s)
    return spec.batch * len(result.step_s) / window_s if window_s > 0 else 1 / max(result.prefill_s, 1e-9)


def _time_rep(
    spec: WorkerSpec,
    rep: int,
    engine: Engine,
    prompts: list[list[int]],
    memory: Memory,
    progress: Progress,
) -> _Timed:
    phase, number = (Phase.WARMUP, spec.warmup + rep) if rep < 0 else (Phase.PREFILL, rep)
    progress.enter(phase, rep=number, chunks=expected_chunks(spec))
    progress.heed_stop()
    chunk_ends: list[int] = []

    def chunk_done() -> None:
        chunk_ends.append(time.perf_counter_ns())
        _show(memory, progress)
        progress.mark()

    memory.reset_peak()
    began = time.perf_counter_ns()
    first_rows = engine.prefill(prompts, chunk_done)
    last = first_token = time.perf_counter_ns()
    _demand_rows(first_rows, spec.batch, "the first token")
    prefill = memory.read()
    prefill_peak, first_step_peak = max(prefill.peak_bytes, prefill.active_bytes), 0
    memory.reset_peak()
    if rep >= 0:
        progress.enter(Phase.DECODE, rep=rep)
    steps: list[int] = []
    rows_per_step: list[int] = []
    for step in range(spec.gen_tokens - 1):
        progress.heed_stop()
        rows = engine.step()
        # Each step is timed from the end of the one before, so the steps add up to the window with nothing
        # left out.
        now = time.perf_counter_ns()
        steps.append(now - last)
        last = now
        rows_per_step.append(rows)
        _demand_rows(rows, spec.batch, f"decode step {step + 1}")
        _show(memory, progress)
        progress.stepped(steps[-1])
        if step == 0:
            first_step_peak = memory.read().peak_bytes
            if engine.launches_ahead and spec.gen_tokens > 2:
                # The first step was under way before the peak began anew, among what prefill held still.
                prefill_peak = max(prefill_peak, first_step_peak)
                memory.reset_peak()
    return _Timed(
        prefill_s=(first_token - began) / 1e9,
        chunk_s=[(b - a) / 1e9 for a, b in zip([began, *chunk_ends], chunk_ends, strict=False)],
        step_s=[ns / 1e9 for ns in steps],
        rows_per_step=rows_per_step,
        first_rows=first_rows,
        prefill=prefill,
        prefill_peak_bytes=prefill_peak,
        first_step_peak_bytes=first_step_peak,
        end=memory.read(),
    )


def _digest(tokens: list[list[int]]) -> str:
    return hashlib.sha256(repr(tokens).encode()).hexdigest()[:16] if tokens else ""


def _show(memory: Memory, progress: Progress) -> None:
    reading = memory.read()
    progress.memory(reading.active_bytes, reading.cache_bytes, reading.peak_bytes)


def _demand_rows(rows: int, batch: int, where: str) -> None:
    if rows != batch:
        raise AttemptError(
            "rows_short",
            f"{where} held {rows} of {batch} rows",
            "the engine did not batch all rows, so this would not measure that batch; try `engine: lockstep`",
        )

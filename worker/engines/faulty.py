"""Owns the test engine: quick made-up cells through the real measuring loop, and one fault at a chosen phase.

Does not import MLX, so it starts at once. Its figures are made up and named so (device `none`, model type
`faulty`).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.engines import faults
from worker.measure import MemoryReading, RepEnd, run_cell
from worker.protocol import Hello, ModelFacts
from worker.telemetry import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.engines.faults import Fault
    from worker.progress import Progress
    from worker.protocol import WorkerSpec
    from worker.results import ResultPipe

_VOCAB_SIZE = 1000
_WEIGHT_BYTES = 1_000_000
_BYTES_PER_TOKEN = 1024
_LOAD_MARKS = 4
_CHUNK_S = 0.001
_STEP_S = 0.001
_WARM_STEPS = 16


class MadeUpMemory:
    """Figures that grow with the cell as real ones would: weights, and a kilobyte per token of cache."""

    def __init__(self) -> None:
        self.tokens = 0
        self.leaked_bytes = 0

    def reset_peak(self) -> None:
        """Nothing is kept between readings."""

    def read(self) -> MemoryReading:
        """Weights, cache and leak, in bytes."""
        active = _WEIGHT_BYTES + self.tokens * _BYTES_PER_TOKEN + self.leaked_bytes
        return MemoryReading(active_bytes=active, cache_bytes=0, peak_bytes=active)


@dataclass(frozen=True, slots=True)
class Descriptors:
    """What a grandchild inherits: the descriptors that others wait on."""

    result: int
    control: int
    page: int

    @property
    def all(self) -> tuple[int, ...]:
        """Every one of them."""
        return (self.result, self.control, self.page)


class FaultyEngine:
    """Sleeps a millisecond per chunk and per step, and plays its fault when the phase comes.

    Prefill faults strike after the first chunk of the first measured repetition, decode faults after a
    quarter of its steps (one to sixteen), so that there is always something to keep and a baseline to compare
    with.
    """

    launches_ahead = False

    def __init__(self, spec: WorkerSpec, fault: Fault | None, fds: Descriptors) -> None:
        self._spec = spec
        self._fault = fault
        self._fds = fds
        self.memory = MadeUpMemory()
        self._leak = faults.Leak(fault.number * 1_000_000) if fault and fault.kind == "leak" else None
        self._prefills = 0
        self._steps = 0
        self._afflicted = False

    def prefill(self, prompts: list[list[int]], chunk_done: Callable[[], None]) -> int:
        """Sleeps a moment per chunk."""
        self._prefills += 1
        self._steps = 0
        self.memory.tokens = 0
        chunks = -(-self._spec.context // self._spec.prefill_step_size)
        for chunk in range(chunks):
            self._pause(_CHUNK_S)
            self.memory.tokens = len(prompts) * min(self._spec.context, (chunk + 1) * self._spec.prefill_step_size)
            chunk_done()
            if chunk == 0:
                self._reach("prefill")
        return len(prompts)

    def step(self) -> int:
        """Sleeps a moment."""
        if self._steps >= min(_WARM_STEPS, max(1, (self._spec.gen_tokens - 1) // 4)):
            self._reach("decode")
        if self._steps >= 1:
            self._reach("warmup")
        self._steps += 1
        self.memory.tokens += self._spec.batch
        self._pause(_STEP_S)
        return self._spec.batch

    def finish(self) -> RepEnd:
        """Always fine logits; a fault shows itself in other ways."""
        return RepEnd(
            finite_logits=True,
            constant_logits=False,
            kv_cache_bytes=self.memory.tokens * _BYTES_PER_TOKEN,
            filled_tokens=self._spec.batch * (self._spec.context - 1) if self._spec.context_fill == "random" else 0,
        )

    def load(self, progress: Progress) -> None:
        """Marks as loading weights would."""
        for _ in range(_LOAD_MARKS):
            self._pause(_CHUNK_S)
            progress.mark()
        self._reach("load")

    def _reach(self, phase: str) -> None:
        fault = self._fault
        if fault is None or self._afflicted or fault.phase != phase:
            return
        warming_up = self._prefills <= self._spec.warmup
        if phase == "warmup" and not warming_up:
            return
        if phase in ("prefill", "decode") and warming_up:
            return
        self._afflicted = True
        faults.strike(fault, self._fds.result, self._fds.all)

    def _pause(self, seconds: float) -> None:
        if self._afflicted and self._leak is not None:
            self._leak.grow()
            self.memory.leaked_bytes = self._leak.held_bytes
        if self._afflicted and self._fault is not None and self._fault.kind == "slow":
            seconds *= self._fault.number
        time.sleep(seconds)


def play(
    spec: WorkerSpec, progress: Progress, results: ResultPipe, fds: Descriptors, backstops: dict[str, str]
) -> None:
    """One made-up attempt.

    Raises:
        StopAsked: the stop flag went up.
        AttemptError: the fault's text is wrong.
        RuntimeError, MemoryError: the fault says so.
    """
    fault = faults.parse_fault(spec.fault)
    if fault and fault.kind == "early_death":
        os._exit(fault.number)
    results.send(Hello(pid=os.getpid(), protocol=spec.protocol, device="none", backstops=backstops))
    engine = FaultyEngine(spec, fault, fds)
    progress.enter(Phase.LOAD, chunks=_LOAD_MARKS)
    began = time.perf_counter()
    engine.load(progress)
    load_s = time.perf_counter() - began
    progress.enter(Phase.CALIBRATE)
    progress.mark()
    results.send(_facts(spec, load_s))
    run_cell(spec, engine, _VOCAB_SIZE, engine.memory, progress, results.send)
    if fault:
        faults.strike_after_done(fault)


def _facts(spec: WorkerSpec, load_s: float) -> ModelFacts:
    return ModelFacts(
        model_type="faulty",
        parameters=_WEIGHT_BYTES // 2,
        weight_bytes=_WEIGHT_BYTES,
        vocab_size=_VOCAB_SIZE,
        load_s=load_s,
        load_peak_bytes=_WEIGHT_BYTES,
        cache_classes=["made_up"],
        cache_bytes_per_token=float(_BYTES_PER_TOKEN),
        kv_bits=spec.kv_bits,
        wired_limit="untouched",
    )

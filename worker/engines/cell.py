"""Owns one real attempt: load, calibrate, measure. Does not own the loop (measure.py) or the engines.

Calibration is one short run of one row through the chosen engine: it shows which caches really run, what a
token costs in them, and whether this architecture can be batched, quantized and filled as asked, before
anything large.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from worker import mlx_runtime  # before all else: it imports mlx-lm in a way of its own

# isort: split
import mlx.core as mx

from worker import fill, kv_quant, models
from worker.caches import Cache, CacheFacts, describe
from worker.engines.batched import BatchedEngine, demand_batchable, wired_limit_in_force
from worker.engines.lockstep import LockstepEngine
from worker.failures import AttemptError, StopAsked
from worker.measure import run_cell
from worker.protocol import ModelFacts
from worker.telemetry import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.nn as nn

    from worker.measure import MemoryReading
    from worker.models import Loaded
    from worker.progress import Progress
    from worker.protocol import WorkerSpec
    from worker.results import ResultPipe

MlxEngine: TypeAlias = BatchedEngine | LockstepEngine
_ENGINES: dict[str, type[MlxEngine]] = {"batched": BatchedEngine, "lockstep": LockstepEngine}
_PROBE_TOKENS = 3  # two through a prefill chunk, so that its masks are tried too, and the last alone


def play(spec: WorkerSpec, progress: Progress, results: ResultPipe, backstops: dict[str, str]) -> None:
    """One attempt with MLX.

    Raises:
        StopAsked: the stop flag went up.
        AttemptError: what was asked cannot be done.
        RuntimeError: MLX raised.
    """
    if spec.engine not in _ENGINES:
        raise AttemptError("protocol", f"no engine {spec.engine!r}", f"known: {', '.join(_ENGINES)}, faulty")
    results.send(mlx_runtime.hello(backstops))
    try:
        _play(spec, progress, results)
    except StopAsked as asked:
        stopped = asked.with_traceback(None)  # the frames of the traceback would keep model and caches alive
    else:
        return
    # A clean end gives wired memory back to Metal; what is merely killed may leave it wired.
    mlx_runtime.release()
    raise stopped


def _play(spec: WorkerSpec, progress: Progress, results: ResultPipe) -> None:
    progress.enter(Phase.LOAD)
    mx.reset_peak_memory()
    loaded = models.load(spec.model, spec.seed, progress)
    load_peak = max(mx.get_peak_memory(), loaded.weight_bytes)
    memory = mlx_runtime.MlxMemory()
    held = replace(memory.read(), peak_bytes=load_peak)
    progress.enter(Phase.CALIBRATE)
    engine, facts = prepare(loaded.model, spec)
    progress.mark()
    results.send(_model_facts(spec, loaded, held, facts))
    run_cell(spec, engine, loaded.vocab_size, memory, progress, results.send)


def prepare(model: nn.Module, spec: WorkerSpec) -> tuple[MlxEngine, CacheFacts]:
    """The engine of the spec, and what one row's caches take in it.

    Raises:
        AttemptError: not batchable, or kv_bits or a random context are not supported by the model's caches.
    """
    caches = _calibrate(model, spec)
    facts = describe(caches, 1)
    pattern = None
    if spec.context_fill == "random":
        fill.demand_fillable(caches)
        pattern = fill.learn(caches)
    return _make_engine(model, spec, pattern), facts


def _make_engine(model: nn.Module, spec: WorkerSpec, pattern: Sequence[Cache] | None = None) -> MlxEngine:
    return _ENGINES[spec.engine](model, spec, pattern)


def _calibrate(model: nn.Module, spec: WorkerSpec) -> list[Cache]:
    """The caches of one row after a few tokens through the engine."""
    if spec.engine == "batched":
        demand_batchable(model)
    if spec.kv_bits is None:
        return _probe(model, spec)
    try:
        return _probe(model, spec)
    # What an attention does with caches it was not written for is its own affair: any of these was seen.
    except (ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        plain = _probe(model, replace(spec, kv_bits=None))  # raises by itself where kv_bits are not to blame
        raise kv_quant.unsupported(spec.kv_bits, spec.kv_group_size, plain, error) from error


def _probe(model: nn.Module, spec: WorkerSpec) -> list[Cache]:
    engine = _make_engine(model, replace(spec, batch=1, context=_PROBE_TOKENS, gen_tokens=1))
    engine.prefill([[0] * _PROBE_TOKENS], lambda: None)
    caches: Sequence[Cache] = engine.caches
    mx.eval([cache.state for cache in caches])
    kept = list(caches)
    engine.finish()
    return kept


def _model_facts(spec: WorkerSpec, loaded: Loaded, held: MemoryReading, facts: CacheFacts) -> ModelFacts:
    return ModelFacts(
        model_type=loaded.model_type,
        parameters=loaded.parameters,
        weight_bytes=loaded.weight_bytes,
        vocab_size=loaded.vocab_size,
        load_s=loaded.load_s,
        load_peak_bytes=held.peak_bytes,
        cache_classes=list(facts.classes),
        cache_bytes_per_token=facts.bytes_per_token or None,
        kv_bits=spec.kv_bits,
        wired_limit=wired_limit_in_force(spec.wired_limit) if spec.engine == "batched" else "untouched",
        quantization=loaded.quantization,
        window_bytes_per_token={str(tokens): value for tokens, value in facts.window_bytes_per_token.items()},
        state_bytes_per_row=facts.state_bytes,
        load_active_bytes=held.active_bytes,
        load_cache_bytes=held.cache_bytes,
        shape={**loaded.shape, "vocab_size": loaded.shape.get("vocab_size", loaded.vocab_size)},
    )

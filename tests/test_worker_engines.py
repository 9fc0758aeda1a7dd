"""Both engines on real MLX with tiny models: same tokens, exact counts, honest peaks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
import tiny_models as tiny
from worker_driver import make_spec

from orchestrator.metrics import summarise
from worker import mlx_runtime, models
from worker.engines import cell
from worker.engines.logits import judge
from worker.failures import AttemptError, StopAsked
from worker.measure import expected_chunks, measure_rep, random_prompts
from worker.protocol import RepResult
from worker.results import ResultPipe
from worker.telemetry import Phase, TelemetryPage

if TYPE_CHECKING:
    from worker.protocol import Message

SHAPE: dict[str, Any] = {"batch": 3, "context": 20, "prefill_step_size": 8, "gen_tokens": 5}
BATCHABLE = {
    "llama": tiny.LLAMA,
    "qwen3": tiny.QWEN3,
    "gemma3_text": tiny.GEMMA3,
    "qwen3_moe": tiny.QWEN3_MOE,
    "mamba2": tiny.MAMBA2,
    "falcon_h1": tiny.FALCON_H1,
    "gpt_oss": tiny.GPT_OSS,
    "deepseek_v2": tiny.DEEPSEEK_V2,
    "deepseek_v3": tiny.DEEPSEEK_V3,
    "qwen3_next": tiny.QWEN3_NEXT,
    "rwkv7": tiny.RWKV7,
}


@pytest.mark.parametrize("name", BATCHABLE)
def test_both_engines_make_the_same_tokens(name: str) -> None:
    (batched,) = tiny.run_rep(BATCHABLE[name], "batched", **SHAPE)
    (lockstep,) = tiny.run_rep(BATCHABLE[name], "lockstep", **SHAPE)
    (whole_chunks,) = tiny.run_rep(BATCHABLE[name], "lockstep", prefill_logits="all", **SHAPE)
    assert batched.tokens_digest == lockstep.tokens_digest == whole_chunks.tokens_digest != ""
    assert batched.finite_logits
    assert not batched.constant_logits


@pytest.mark.parametrize("engine", ["batched", "lockstep"])
@pytest.mark.parametrize(("batch", "context", "gen_tokens"), [(1, 1, 1), (1, 1, 2), (5, 2, 3), (33, 9, 4)])
def test_counts_are_exact(engine: str, batch: int, context: int, gen_tokens: int) -> None:
    shape = {"batch": batch, "context": context, "gen_tokens": gen_tokens, "prefill_step_size": 4}
    (result,) = tiny.run_rep(tiny.LLAMA, engine, **shape)
    assert result.prompt_tokens == batch * context
    assert result.filled_tokens == 0
    assert len(result.step_s) == gen_tokens - 1
    assert result.rows_per_step == [batch] * (gen_tokens - 1)
    assert result.generated_tokens == batch * gen_tokens
    assert len(result.chunk_s) == expected_chunks(make_spec(engine=engine, **shape))
    assert sum(result.chunk_s) <= result.prefill_s
    assert result.prefill_s + sum(result.step_s) <= result.ended_s - result.started_s


@pytest.mark.parametrize("engine", ["batched", "lockstep"])
def test_a_seed_decides_the_tokens(engine: str) -> None:
    first, again = tiny.run_rep(tiny.LLAMA, engine, reps=2, **SHAPE)
    (same,) = tiny.run_rep(tiny.LLAMA, engine, **SHAPE)
    (other,) = tiny.run_rep(tiny.LLAMA, engine, seed=1, **SHAPE)
    assert first.tokens_digest == again.tokens_digest == same.tokens_digest
    assert other.tokens_digest != first.tokens_digest


def test_prompts_of_a_row_do_not_depend_on_the_batch() -> None:
    wide, narrow = random_prompts(0, 8, 50, 256), random_prompts(0, 2, 50, 256)
    assert wide[:2] == narrow
    assert len({tuple(prompt) for prompt in wide}) == 8
    assert all(0 <= token < 256 for prompt in wide for token in prompt)


@pytest.mark.parametrize("engine", ["batched", "lockstep"])
def test_memory_is_counted_per_phase(engine: str) -> None:
    """Weights and cache are the least that any phase holds, and the peaks are each phase's own."""
    shape = {"batch": 2, "context": 300, "gen_tokens": 3, "prefill_step_size": 128}
    (result,) = tiny.run_rep(tiny.LLAMA, engine, **shape)
    weights = 115_008 * 4
    per_token = 2 * 2 * 2 * 32 * 4  # layers, K and V, heads, head size, float32
    assert result.kv_cache_bytes == 2 * 512 * per_token
    assert result.decode_peak_bytes >= weights + result.kv_cache_bytes
    assert result.prefill_peak_bytes >= weights + 2 * 300 * per_token
    assert result.prefill_peak_bytes > result.decode_peak_bytes
    assert result.active_bytes <= result.decode_peak_bytes


def test_evaluating_all_prefill_logits_costs_their_memory() -> None:
    wide = {**tiny.LLAMA, "vocab_size": 20_000}
    shape = {"batch": 4, "context": 256, "gen_tokens": 2, "prefill_step_size": 256}
    (last,) = tiny.run_rep(wide, "lockstep", prefill_logits="last", **shape)
    (every,) = tiny.run_rep(wide, "lockstep", prefill_logits="all", **shape)
    logits = 4 * 256 * 20_000 * 4
    assert every.prefill_peak_bytes - last.prefill_peak_bytes > 0.9 * logits


def test_repetitions_leave_nothing_behind() -> None:
    """The step in flight makes the figure waver by some kilobytes; a cache left behind would be 786."""
    results = tiny.run_rep(tiny.LLAMA, "batched", reps=4, **SHAPE)
    active = [result.active_bytes for result in results]
    assert max(active) - min(active) < 0.1 * results[0].kv_cache_bytes


def test_a_step_that_lacks_rows_is_no_measurement() -> None:
    spec = make_spec(engine="batched", model=tiny.source(tiny.LLAMA), warmup=0, **SHAPE)
    progress, _ = tiny.make_progress()
    loaded = models.load(spec.model, 0, progress)
    engine, _ = cell.prepare(loaded.model, spec)
    prompts = random_prompts(0, 2, 20, 256)  # one row less than the spec says
    with pytest.raises(AttemptError, match="rows_short: the first token held 2 of 3 rows"):
        measure_rep(spec, 0, engine, prompts, mlx_runtime.MlxMemory(), progress)


@pytest.mark.parametrize("engine", ["batched", "lockstep"])
def test_the_stop_flag_is_heeded_within_one_chunk(engine: str) -> None:
    spec = make_spec(engine=engine, model=tiny.source(tiny.LLAMA), warmup=0, **SHAPE)
    progress, page = tiny.make_progress()
    loaded = models.load(spec.model, 0, progress)
    made, _ = cell.prepare(loaded.model, spec)
    page.request_stop()
    prompts = random_prompts(0, 3, 20, 256)
    with pytest.raises(StopAsked) as stopped:
        measure_rep(spec, 0, made, prompts, mlx_runtime.MlxMemory(), progress)
    assert stopped.value.phase == "prefill"
    progress, page = tiny.make_progress()
    page.request_stop()
    progress.enter(Phase.LOAD)
    with pytest.raises(StopAsked) as stopped:
        models.load(spec.model, 0, progress)
    assert stopped.value.phase == "load"


def test_progress_is_shown_while_a_repetition_runs() -> None:
    spec = make_spec(engine="batched", model=tiny.source(tiny.LLAMA), warmup=0, **SHAPE)
    progress, page = tiny.make_progress()
    progress.enter(Phase.LOAD)
    loaded = models.load(spec.model, 0, progress)
    seen = page.read()
    assert seen is not None
    assert seen.phase is Phase.LOAD
    assert seen.chunk == seen.chunks > 5
    engine, _ = cell.prepare(loaded.model, spec)
    prompts = random_prompts(0, 3, 20, 256)
    result = measure_rep(spec, 1, engine, prompts, mlx_runtime.MlxMemory(), progress)
    seen = page.read()
    assert seen is not None
    assert (seen.phase, seen.rep, seen.step, seen.total_steps) == (Phase.DECODE, 1, 4, 4)
    assert seen.recent_step_s == pytest.approx(result.step_s)
    assert seen.active_bytes > loaded.weight_bytes
    assert seen.peak_bytes >= seen.active_bytes


def test_logits_are_judged() -> None:
    good = mx.array([1.0, 2.0, 3.0])
    assert judge([good, good]) == (True, False)
    assert judge([good, mx.array([1.0, float("-inf"), 2.0])]) == (True, False)
    assert judge([good, mx.array([1.0, float("nan"), 2.0])])[0] is False
    assert judge([good, mx.array([1.0, float("inf"), 2.0])])[0] is False
    assert judge([good, mx.full((3,), float("-inf"))])[0] is False
    assert judge([good, mx.zeros((3,))]) == (True, True)


def test_a_model_of_nan_shows_itself() -> None:
    spec = make_spec(engine="lockstep", model=tiny.source(tiny.LLAMA), warmup=0, **SHAPE)
    progress, _ = tiny.make_progress()
    loaded = models.load(spec.model, 0, progress)
    loaded.model.model.norm.weight = mx.full((64,), float("nan"))
    engine, _ = cell.prepare(loaded.model, spec)
    prompts = random_prompts(0, 3, 20, 256)
    result = measure_rep(spec, 0, engine, prompts, mlx_runtime.MlxMemory(), progress)
    assert not result.finite_logits


def test_what_mlx_lm_cannot_batch_says_so() -> None:
    with pytest.raises(AttemptError, match="ChunkedKVCache does not yet support batching") as failure:
        tiny.run_rep(tiny.LLAMA4, "batched", **SHAPE)
    assert failure.value.kind == "not_batchable"
    assert "lockstep" in failure.value.remedy
    (result,) = tiny.run_rep(tiny.LLAMA4, "lockstep", **SHAPE)
    assert result.generated_tokens == 15


@pytest.mark.parametrize("engine", ["batched", "lockstep"])
def test_a_stop_lets_go_of_everything(engine: str) -> None:
    """Before the process ends, so that a GPU gets its wired memory back from a living process."""
    spec = make_spec(engine=engine, model=tiny.source(tiny.LLAMA), warmup=0, reps=3, **SHAPE)
    progress, page = tiny.make_progress()
    reader, writer = os.pipe()
    try:
        mx.clear_cache()
        before = mx.get_active_memory()
        results = _StopAfterFirstRep(writer, page)
        with pytest.raises(StopAsked):
            cell.play(spec, progress, results, {})
        assert mx.get_active_memory() - before < 50_000
        assert mx.get_cache_memory() == 0
    finally:
        os.close(reader)
        os.close(writer)


class _StopAfterFirstRep(ResultPipe):
    def __init__(self, fd: int, page: TelemetryPage) -> None:
        super().__init__(fd)
        self._page = page

    def send(self, message: Message) -> None:
        super().send(message)
        if isinstance(message, RepResult):
            self._page.request_stop()


CACHE_HEAVY = {"batch": 8, "context": 512, "gen_tokens": 4, "prefill_step_size": 32}


def _step_peaks(engine: Any, prompts: list[list[int]], steps: int) -> list[int]:
    """MLX's peak of each decode step, taken by hand: nothing in flight, counter at zero, one step."""
    engine.prefill(prompts, lambda: None)
    peaks = []
    for _ in range(steps):
        mx.synchronize()
        mx.reset_peak_memory()
        engine.step()
        peaks.append(mx.get_peak_memory())
    engine.finish()
    return peaks


def test_the_step_that_grows_the_cache_by_copy_is_decodes_peak() -> None:
    """The context is a multiple of 256, so the very first step of lockstep doubles what the caches hold."""
    spec = make_spec(engine="lockstep", model=tiny.source(tiny.LLAMA), warmup=0, **CACHE_HEAVY)
    progress, _ = tiny.make_progress()
    loaded = models.load(spec.model, 0, progress)
    engine, facts = cell.prepare(loaded.model, spec)
    prompts = random_prompts(0, 8, 512, 256)
    grows, *others = _step_peaks(engine, prompts, 3)
    result = measure_rep(spec, 0, engine, prompts, mlx_runtime.MlxMemory(), progress)

    copied = 8 * 512 * (facts.bytes_per_token or 0) / 2  # the old caches of one of the two layers
    assert grows > max(others) + 0.4 * copied
    assert result.decode_peak_bytes == pytest.approx(grows, rel=0.02)
    assert result.first_step_peak_bytes == pytest.approx(grows, rel=0.02)
    assert result.prefill_peak_bytes < result.decode_peak_bytes
    assert summarise([result], None, 8, 4).peak_phase == "decode"


@pytest.mark.parametrize("engine", ["batched", "lockstep"])
def test_the_first_step_is_some_phases_peak(engine: str) -> None:
    for gen_tokens in (2, 4):
        (result,) = tiny.run_rep(tiny.LLAMA, engine, **{**CACHE_HEAVY, "gen_tokens": gen_tokens})
        folded = engine == "batched" and gen_tokens > 2
        owner = result.prefill_peak_bytes if folded else result.decode_peak_bytes
        assert 0 < result.first_step_peak_bytes <= owner
    (result,) = tiny.run_rep(tiny.LLAMA, engine, **{**CACHE_HEAVY, "gen_tokens": 1})
    assert result.first_step_peak_bytes == 0

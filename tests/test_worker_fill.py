"""A random context takes the same cache as a real prefill of the same length."""

from __future__ import annotations

import mlx.core as mx
import pytest
import tiny_models as tiny
from mlx_lm.models.cache import KVCache

from worker import fill
from worker.failures import AttemptError


@pytest.mark.parametrize("engine", ["batched", "lockstep"])
@pytest.mark.parametrize("context", [1, 2, 255, 256, 257, 258, 300, 512, 513])
def test_capacity_is_that_of_a_prefill(engine: str, context: int) -> None:
    shape = {"batch": 2, "context": context, "gen_tokens": 4, "prefill_step_size": 128}
    (real,) = tiny.run_rep(tiny.LLAMA, engine, **shape)
    (random,) = tiny.run_rep(tiny.LLAMA, engine, context_fill="random", **shape)
    assert random.kv_cache_bytes == real.kv_cache_bytes
    assert random.filled_tokens == 2 * (context - 1)
    assert random.prompt_tokens == 2
    assert random.generated_tokens == real.generated_tokens == 8
    assert len(random.chunk_s) == len(real.chunk_s)
    assert random.finite_logits
    # Decode costs the same. The copy at a growth takes one layer (of two) more for a moment, and falls to
    # prefill or to decode, whichever the step in flight belongs to.
    one_layer = real.kv_cache_bytes / 2
    assert random.decode_peak_bytes == pytest.approx(real.decode_peak_bytes, abs=one_layer, rel=0.05)


@pytest.mark.parametrize("engine", ["batched", "lockstep"])
@pytest.mark.parametrize(
    "config",
    [tiny.GEMMA3, tiny.GPT_OSS, tiny.MAMBA2, tiny.FALCON_H1, tiny.DEEPSEEK_V2],
    ids=lambda config: str(config["model_type"]),
)
def test_sliding_and_state_caches_too(engine: str, config: dict[str, object]) -> None:
    shape = {"batch": 3, "context": 70, "gen_tokens": 4, "prefill_step_size": 32}
    (real,) = tiny.run_rep(config, engine, **shape)
    (random,) = tiny.run_rep(config, engine, context_fill="random", **shape)
    assert random.kv_cache_bytes == real.kv_cache_bytes
    assert random.finite_logits
    assert not random.constant_logits
    assert random.generated_tokens == 12


@pytest.mark.parametrize("engine", ["batched", "lockstep"])
@pytest.mark.parametrize("kv_bits", [4, 8])
def test_quantized_caches_too(engine: str, kv_bits: int) -> None:
    shape = {"batch": 2, "context": 300, "gen_tokens": 4, "prefill_step_size": 128}
    shape |= {"kv_bits": kv_bits, "kv_group_size": 32}
    (real,) = tiny.run_rep(tiny.LLAMA, engine, **shape)
    (random,) = tiny.run_rep(tiny.LLAMA, engine, context_fill="random", **shape)
    assert random.kv_cache_bytes == real.kv_cache_bytes


def test_both_engines_and_all_repetitions_fill_alike() -> None:
    shape = {"batch": 2, "context": 40, "gen_tokens": 5, "context_fill": "random"}
    first, second = tiny.run_rep(tiny.LLAMA, "batched", reps=2, **shape)
    (lockstep,) = tiny.run_rep(tiny.LLAMA, "lockstep", **shape)
    assert first.tokens_digest == second.tokens_digest == lockstep.tokens_digest


def test_what_is_written_is_random_in_every_row() -> None:
    one = KVCache()
    one.update_and_fetch(mx.ones((1, 2, 3, 32)), mx.ones((1, 2, 3, 16)))
    (pattern,) = fill.learn([one])
    cache = KVCache()
    chunks: list[None] = []
    fill.fill([cache], [pattern], rows=3, tokens=100, chunk=64, seed=0, chunk_done=lambda: chunks.append(None))
    keys, values = cache.keys_and_values()
    assert keys.shape == (3, 2, 100, 32)
    assert values.shape == (3, 2, 100, 16)
    assert len(chunks) == 2
    for array in (keys, values):
        assert mx.std(array).item() == pytest.approx(1, abs=0.05)
        assert not mx.array_equal(array[0], array[1])


def test_the_context_is_not_held_twice() -> None:
    """mlx-lm copies the cache once, layer by layer, when decoding begins; filling must not add to that."""
    deep = {**tiny.LLAMA, "num_hidden_layers": 8}
    shape = {"batch": 4, "context": 1024, "gen_tokens": 2, "prefill_step_size": 128, "context_fill": "random"}
    (result,) = tiny.run_rep(deep, "batched", **shape)
    assert result.prefill_peak_bytes < result.decode_peak_bytes + 0.4 * result.kv_cache_bytes


def test_an_unknown_cache_says_so() -> None:
    with pytest.raises(AttemptError, match="ChunkedKVCache") as failure:
        tiny.run_rep(tiny.LLAMA4, "lockstep", context=20, context_fill="random")
    assert failure.value.kind == "fill_unsupported"
    assert "context_fill: prefill" in failure.value.remedy

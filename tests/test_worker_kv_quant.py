"""Quantized key-value caches: the batched ones compute what mlx-lm's own do; the rest says so."""

from __future__ import annotations

import mlx.core as mx
import pytest
import tiny_models as tiny
from mlx.utils import tree_map
from mlx_lm.models.cache import ArraysCache, QuantizedKVCache, make_prompt_cache
from worker_driver import make_spec

from worker import models
from worker.caches import capacity, describe
from worker.engines import cell
from worker.engines.batched import BatchedEngine
from worker.engines.lockstep import LockstepEngine
from worker.failures import AttemptError
from worker.kv_quant import EqualRowsQuantizedKVCache, demand_quantized, quantized

SHAPE = {"batch": 3, "context": 40, "prefill_step_size": 16, "gen_tokens": 6, "kv_group_size": 32}


@pytest.mark.parametrize("kv_bits", [4, 8])
@pytest.mark.parametrize(
    "config",
    [tiny.LLAMA, tiny.QWEN3, tiny.QWEN3_MOE, tiny.FALCON_H1],
    ids=lambda config: str(config["model_type"]),
)
def test_batched_agrees_with_mlx_lms_own_cache(config: dict[str, object], kv_bits: int) -> None:
    (batched,) = tiny.run_rep(config, "batched", kv_bits=kv_bits, **SHAPE)
    (lockstep,) = tiny.run_rep(config, "lockstep", kv_bits=kv_bits, **SHAPE)
    (plain,) = tiny.run_rep(config, "lockstep", **SHAPE)
    assert batched.tokens_digest == lockstep.tokens_digest
    assert batched.kv_cache_bytes == lockstep.kv_cache_bytes < plain.kv_cache_bytes


@pytest.mark.parametrize("engine", ["batched", "lockstep"])
@pytest.mark.parametrize(("kv_bits", "per_value"), [(4, 0.5 + 8 / 32), (8, 1 + 8 / 32)])
def test_the_record_proves_what_ran(engine: str, kv_bits: int, per_value: float) -> None:
    """Bits per value, and a scale and a bias in float32 per group of 32."""
    spec = make_spec(engine=engine, model=tiny.source(tiny.LLAMA), kv_bits=kv_bits, kv_group_size=32)
    loaded = models.load(spec.model, 0, tiny.make_progress()[0])
    _, facts = cell.prepare(loaded.model, spec)
    assert all("Quantized" in name for name in facts.classes)
    assert facts.bytes_per_token == 2 * 2 * 2 * 32 * per_value


@pytest.mark.parametrize("engine", ["batched", "lockstep"])
@pytest.mark.parametrize(
    ("config", "why"),
    [
        (tiny.GEMMA3, "cannot quantize a RotatingKVCache"),
        (tiny.GPT_OSS, "cannot quantize a RotatingKVCache"),
        (tiny.MAMBA2, "keeps no keys and values that grow"),
        (tiny.DEEPSEEK_V2, "groups of 32 do not fit this model"),
    ],
    ids=["sliding window", "attention sinks", "state only", "odd head size"],
)
def test_what_cannot_be_quantized_says_so(engine: str, config: dict[str, object], why: str) -> None:
    with pytest.raises(AttemptError, match=why) as failure:
        tiny.run_rep(config, engine, kv_bits=8, **SHAPE)
    assert failure.value.kind == "kv_bits_unsupported"
    assert "without kv_bits" in failure.value.remedy


@pytest.mark.parametrize("engine", [BatchedEngine, LockstepEngine])
@pytest.mark.parametrize("ran", ["plain", "other bits"])
def test_a_quantized_cache_that_silently_is_another_fails_the_cell(
    engine: type[BatchedEngine | LockstepEngine], ran: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a generator makes caches of its own, whatever it was given."""
    spec = make_spec(engine="lockstep", model=tiny.source(tiny.LLAMA), batch=1, kv_bits=8, kv_group_size=32)
    model = models.load(spec.model, 0, tiny.make_progress()[0]).model
    other = make_prompt_cache(model)
    if ran == "other bits":
        other = quantized(other, 4, 32, batched=engine is BatchedEngine)
    maker = "_row_caches" if engine is BatchedEngine else "_new_caches"
    monkeypatch.setattr(engine, maker, lambda _self: list(other))
    made = engine(model, spec)
    made.prefill([[1, 2, 3]], lambda: None)
    with pytest.raises(AttemptError, match="kv_bits 8 were asked for, but keys and values ran in") as failure:
        made.finish()
    assert failure.value.kind == "kv_bits_unsupported"


def test_caches_that_hold_unpacked_values_are_not_quantized() -> None:
    rows = _some_rows(1, 5)
    demand_quantized([rows, ArraysCache(2)], 8)
    rows.keys = tree_map(lambda array: array.astype(mx.float16), rows.keys)
    with pytest.raises(AttemptError, match="EqualRowsQuantizedKVCache"):
        demand_quantized([rows], 8)


def _some_rows(rows: int, tokens: int) -> EqualRowsQuantizedKVCache:
    cache = EqualRowsQuantizedKVCache(group_size=32, bits=8)
    cache.update_and_fetch(mx.random.normal((rows, 2, tokens, 32)), mx.random.normal((rows, 2, tokens, 32)))
    return cache


def test_rows_can_be_merged_filtered_and_taken_out() -> None:
    rows = [_some_rows(1, 5) for _ in range(3)]
    merged = EqualRowsQuantizedKVCache.merge(rows)
    assert merged.keys[0].shape[0] == 3
    assert merged.size() == 5
    merged.filter([2, 0])
    for index, row in ((0, rows[2]), (1, rows[0])):
        taken = merged.extract(index)
        assert type(taken) is QuantizedKVCache
        assert taken.offset == capacity(taken) == 5
        wanted = row.keys_and_values()
        assert all(mx.array_equal(a, b) for a, b in zip(taken.keys, wanted[0], strict=True))
        assert all(mx.array_equal(a, b) for a, b in zip(taken.values, wanted[1], strict=True))


def test_rows_of_other_capacity_are_grown() -> None:
    one = _some_rows(1, 300)
    other = _some_rows(2, 299)
    other.update_and_fetch(mx.ones((2, 2, 1, 32)), mx.ones((2, 2, 1, 32)))
    trimmed = other.extract(1)
    small = EqualRowsQuantizedKVCache(group_size=32, bits=8)
    small.keys, small.values, small.offset = trimmed.keys, trimmed.values, trimmed.offset
    one.extend(small)
    assert one.keys[0].shape[:3] == (2, 2, 512)
    assert describe([one], 2).bytes_per_token == 2 * 2 * 32 * (1 + 8 / 32)


def test_rows_of_other_length_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        EqualRowsQuantizedKVCache.merge([_some_rows(1, 5), _some_rows(1, 6)])
    with pytest.raises(ValueError, match="6 tokens"):
        _some_rows(1, 5).extend(_some_rows(1, 6))
    with pytest.raises(ValueError, match="one length"):
        _some_rows(2, 5).prepare(lengths=[5, 4], right_padding=[0, 1])

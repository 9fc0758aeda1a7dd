"""A peak split into its terms, against published figures and by hand."""

from __future__ import annotations

import dataclasses

import pytest
from test_metrics import FACTS
from worker_driver import make_spec

from orchestrator.peak_terms import TERMS, peak_terms

# Qwen3-8B in 4 bits: the sizes of its config; KV of 36 layers of 8 heads of 128, K and V in bfloat16.
QWEN3_8B = dataclasses.replace(
    FACTS,
    weight_bytes=4_610_000_000,
    cache_bytes_per_token=147_456.0,
    shape={"hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 151_936, "dtype_bytes": 2},
)


def test_the_origin_sweeps_wall_belongs_to_kv_and_logits() -> None:
    spec = make_spec(batch=32, context=4096, engine="lockstep", prefill_logits="all", prefill_step_size=2048)
    kv = 32 * 4096 * 147_456
    terms = peak_terms("prefill", int(0.976 * 51_539_607_552), QWEN3_8B, spec, 32 * 4352 * 147_456)
    assert terms.kv == pytest.approx(19.3e9, rel=0.01)
    assert terms.kv == kv
    assert terms.logits == 32 * 2048 * 151_936 * 2
    assert terms.logits == pytest.approx(19.9e9, rel=0.01)
    assert terms.activations == pytest.approx(4.8e9, rel=0.01)
    assert terms.weights == 4_610_000_000
    assert abs(terms.rest) < 0.05 * 50.3e9  # the published peak within 5 % of the four terms
    assert terms.owner == "logits"


def test_mlx_lms_own_prefill_evaluates_one_position() -> None:
    spec = make_spec(batch=32, context=4096, engine="batched", prefill_step_size=2048)
    terms = peak_terms("prefill", 30_000_000_000, QWEN3_8B, spec, 32 * 4352 * 147_456)
    assert terms.logits == 32 * 151_936 * 2
    assert terms.owner == "kv"


def test_decode_holds_the_caches_as_allocated_and_the_logits_twice() -> None:
    spec = make_spec(batch=4, context=512, engine="batched")
    terms = peak_terms("decode", 6_000_000_000, QWEN3_8B, spec, 4 * 768 * 147_456)
    assert terms.kv == 4 * 768 * 147_456
    assert terms.logits == 2 * 4 * 151_936 * 2
    assert terms.activations == 4 * 3 * 12288 * 2
    assert terms.owner == "weights"


def test_loading_is_weights_and_what_loading_needs_beside() -> None:
    terms = peak_terms("load", 5_000_000_000, QWEN3_8B, make_spec(), 10**9)
    assert (terms.weights, terms.kv, terms.logits, terms.activations) == (4_610_000_000, 0, 0, 0)
    assert terms.rest == 390_000_000


def test_windows_and_states_are_bounded() -> None:
    facts = dataclasses.replace(
        QWEN3_8B, cache_bytes_per_token=1000.0, window_bytes_per_token={"512": 100.0}, state_bytes_per_row=7
    )
    spec = make_spec(batch=2, context=4000)
    assert peak_terms("prefill", 10**10, facts, spec, 10**9).kv == 2 * (4096 * 1000 + 512 * 100 + 7)


@pytest.mark.parametrize("phase", ["load", "prefill", "decode"])
@pytest.mark.parametrize("fill", ["prefill", "random"])
def test_the_terms_add_up_to_the_peak(phase: str, fill: str) -> None:
    terms = peak_terms(phase, 12_345_678_901, QWEN3_8B, make_spec(context_fill=fill, batch=3, context=700), 10**9)
    assert sum(getattr(terms, term) for term in TERMS) == 12_345_678_901
    assert set(terms.to_json()) == {f"{term}_bytes" for term in TERMS}


@pytest.mark.parametrize(
    ("device", "kv_bits", "head_dim", "held"),
    [
        ("Device(gpu, 0)", None, 128, False),
        ("Device(gpu, 0)", None, 96, True),  # no kernel for this size
        ("Device(gpu, 0)", 8, 128, True),  # quantized attention is not fused
        ("Device(cpu, 0)", None, 128, True),
    ],
)
def test_attention_that_is_not_fused_holds_its_scores(
    device: str, kv_bits: int | None, head_dim: int, held: bool
) -> None:
    facts = dataclasses.replace(QWEN3_8B, shape={**QWEN3_8B.shape, "num_attention_heads": 32, "head_dim": head_dim})
    spec = make_spec(batch=2, context=8192, prefill_step_size=2048, kv_bits=kv_bits)
    terms = peak_terms("prefill", 10**11, facts, spec, 10**10, device)
    scores, mlp = 2 * 2048 * (2 * 32 * 8192) * 2, 2 * 2048 * (3 * 12288) * 2
    assert terms.activations == (scores if held else mlp)


def test_a_mixture_of_experts_is_as_wide_as_the_experts_of_a_token() -> None:
    shape = {"intermediate_size": 100, "moe_intermediate_size": 64, "num_experts_per_tok": 8, "dtype_bytes": 2}
    facts = dataclasses.replace(QWEN3_8B, shape=shape)
    assert peak_terms("decode", 10**10, facts, make_spec(batch=1), 0).activations == 3 * 512 * 2

"""Owns which term owns a peak of memory: weights, KV cache, logits, activations, or the rest. Pure.

Does not foretell peaks: it splits one that was measured. Weights and KV cache are measured too; logits and activations
follow from the config's sizes; the rest is what is left, such as copies of caches while they grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from worker.protocol import ModelFacts, WorkerSpec

TERMS = ("weights", "kv", "logits", "activations", "rest")
_ROUNDED_TO = 256  # tokens: mlx-lm's caches grow by so many
_FUSED_HEAD_DIMS = (64, 80, 128)  # of Metal's kernels
_MLP_BUFFERS = 3  # of the width of the MLP: gate, up, and their product


@dataclass(frozen=True, slots=True)
class PeakTerms:
    """A peak in bytes, term by term; they add up to it. `rest` is negative where the terms promise more than there
    was."""

    weights: int
    kv: int
    logits: int
    activations: int
    rest: int

    @property
    def owner(self) -> str:
        """The largest term."""
        return max(TERMS, key=lambda term: getattr(self, term))

    def to_json(self) -> dict[str, int]:
        """By name, in bytes."""
        return {f"{term}_bytes": getattr(self, term) for term in TERMS}


def peak_terms(
    phase: str, peak_bytes: int, facts: ModelFacts, spec: WorkerSpec, kv_cache_bytes: int, device: str = "gpu"
) -> PeakTerms:
    """The terms of a phase's peak. `kv_cache_bytes`: all caches at the end of a repetition, as allocated.

    `device` is MLX's, as the worker names it: only a GPU has attention that does not hold its scores.
    """
    weights = facts.weight_bytes
    if phase == "load":
        return PeakTerms(weights, 0, 0, 0, peak_bytes - weights)
    kv = kv_cache_bytes if phase == "decode" else min(kv_cache_bytes, _kv_after_prefill(facts, spec))
    tokens = _tokens_at_once(spec) if phase == "prefill" else 1
    logits = spec.batch * _logit_positions(phase, spec) * _of(facts, "vocab_size") * _of(facts, "dtype_bytes")
    width = max(_mlp_width(facts.shape), _scores_width(facts.shape, spec, device))  # one after the other, not at once
    activations = spec.batch * tokens * width * _of(facts, "dtype_bytes")
    return PeakTerms(weights, kv, logits, activations, peak_bytes - weights - kv - logits - activations)


def _kv_after_prefill(facts: ModelFacts, spec: WorkerSpec) -> int:
    held = -(-spec.context // _ROUNDED_TO) * _ROUNDED_TO
    growing = (facts.cache_bytes_per_token or 0.0) * held
    windows = sum(min(int(size), held) * per_token for size, per_token in facts.window_bytes_per_token.items())
    return int(spec.batch * (growing + windows + facts.state_bytes_per_row))


def _tokens_at_once(spec: WorkerSpec) -> int:
    if spec.context_fill == "random":
        return 1
    held = spec.context if spec.prefill_logits == "all" else spec.context - 1
    return max(1, min(spec.prefill_step_size, held))


def _logit_positions(phase: str, spec: WorkerSpec) -> int:
    """How many positions per row have logits at once. mlx-lm's decode holds them twice, as log-probabilities too."""
    if phase == "prefill" and spec.prefill_logits == "all" and spec.engine == "lockstep":
        return _tokens_at_once(spec)
    return 2 if spec.engine == "batched" and phase == "decode" else 1


def _scores_width(shape: Mapping[str, int], spec: WorkerSpec, device: str) -> int:
    """Values per token of attention's scores and their softmax, where they are held: query heads times context,
    twice."""
    heads = shape.get("num_attention_heads", 0)
    head_dim = shape.get("head_dim") or shape.get("hidden_size", 0) // max(heads, 1)
    fused = "gpu" in device and head_dim in _FUSED_HEAD_DIMS and spec.kv_bits is None
    return 0 if fused else 2 * heads * spec.context


def _mlp_width(shape: Mapping[str, int]) -> int:
    """Values per token that the MLP holds at its widest, or the experts that a token goes to."""
    dense = shape.get("intermediate_size", 0)
    experts = shape.get("moe_intermediate_size", 0) * shape.get("num_experts_per_tok", 1)
    return _MLP_BUFFERS * max(dense, experts)


def _of(facts: ModelFacts, name: str) -> int:
    return facts.shape.get(name, 0)

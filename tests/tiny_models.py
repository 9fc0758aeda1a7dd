"""Owns tiny models for tests: configs of several architectures, and short cells run in this process.

Does not hold any real weights.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten
from worker_driver import make_spec

from worker import mlx_runtime, models
from worker.engines import cell
from worker.measure import measure_rep, random_prompts
from worker.progress import Progress
from worker.protocol import ModelSource, RepResult
from worker.synthetic import make_up
from worker.telemetry import TelemetryPage, create_page_fd

if TYPE_CHECKING:
    from pathlib import Path

COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": 256,
}
LLAMA = {**COMMON, "model_type": "llama"}
QWEN3 = {
    **COMMON,
    "model_type": "qwen3",
    "max_position_embeddings": 4096,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
}
GEMMA3 = {
    **COMMON,
    "model_type": "gemma3_text",
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 32,
    "sliding_window": 16,
    "sliding_window_pattern": 2,
}
QWEN3_MOE = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
MAMBA2 = {
    "model_type": "mamba2",
    "num_heads": 4,
    "head_dim": 16,
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "state_size": 16,
    "num_hidden_layers": 2,
    "layer_norm_epsilon": 1e-5,
    "conv_kernel": 4,
    "n_groups": 1,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": True,
    "time_step_limit": [0.0, float("inf")],
    "time_step_rank": "auto",
    "expand": 2,
}
FALCON_H1 = {
    **COMMON,
    "model_type": "falcon_h1",
    "mamba_d_head": 16,
    "mamba_d_ssm": 64,
    "mamba_d_state": 16,
    "mamba_n_heads": 4,
}
GPT_OSS = {
    **COMMON,
    "model_type": "gpt_oss",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
}
DEEPSEEK_V2 = {
    **COMMON,
    "model_type": "deepseek_v2",
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "qk_nope_head_dim": 16,
    "rope_scaling": {
        "type": "yarn",
        "factor": 2,
        "original_max_position_embeddings": 2048,
        "mscale_all_dim": 1,
    },
}
del DEEPSEEK_V2["head_dim"]
DEEPSEEK_V3 = {
    **DEEPSEEK_V2,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
QWEN3_NEXT = {
    **QWEN3_MOE,
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 32,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 2,
}
RWKV7 = {
    "model_type": "rwkv7",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "norm_eps": 1e-5,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "a_low_rank_dim": 16,
    "v_low_rank_dim": 16,
    "gate_low_rank_dim": 16,
    "decay_low_rank_dim": 16,
}
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        **COMMON,
        "model_type": "llama4_text",
        "attention_bias": False,
        "attention_chunk_size": 32,
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 64,
        "max_position_embeddings": 4096,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 4,
        "num_local_experts": 2,
        "rope_scaling": None,
        "rope_theta": 1e4,
        "use_qk_norm": False,
    },
}


class NoTimer:
    """A kernel timer would end the test run."""

    def push_back(self) -> None:
        """Nothing to push back."""


def make_progress() -> tuple[Progress, TelemetryPage]:
    """Progress over a page of its own; the page lives as long as its map."""
    page = TelemetryPage(create_page_fd())
    page.lay(1)
    page.open_as_worker()
    return Progress(page, NoTimer()), page  # type: ignore[arg-type]  # a timer that never fires


def save(config: dict[str, Any], folder: Path, seed: int) -> None:
    """Writes a whole MLX model folder with random weights of that seed."""
    model, made = make_up(source(config), seed)
    folder.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps(made))


def source(config: dict[str, Any], **changes: Any) -> ModelSource:
    """A synthetic model in float32, so that two ways of computing agree to the last token."""
    return ModelSource(config_json=json.dumps(config), **{"dtype": "float32", **changes})


def run_rep(config: dict[str, Any], engine: str, *, reps: int = 1, **changes: Any) -> list[RepResult]:
    """Loads, calibrates and measures in this process; the repetitions' results."""
    quantization = {k: changes.pop(k) for k in ("quantization_bits", "dtype") if k in changes}
    spec = make_spec(engine=engine, model=source(config, **quantization), warmup=0, reps=reps, **changes)
    progress, _ = make_progress()
    loaded = models.load(spec.model, spec.seed, progress)
    made, _ = cell.prepare(loaded.model, spec)
    prompts = random_prompts(spec.seed, spec.batch, spec.context, loaded.vocab_size)
    memory = mlx_runtime.MlxMemory()
    return [measure_rep(spec, rep, made, prompts, memory, progress) for rep in range(reps)]

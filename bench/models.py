"""Owns a model on the disk for the benchmarks: a small llama of random weights that mlx-lm's own commands load too.

Holds no real weights and no real words: its tokenizer knows a made-up word per token id.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, models, pre_tokenizers

from worker.protocol import ModelSource
from worker.synthetic import make_up

if TYPE_CHECKING:
    from pathlib import Path

_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "dtype": "float32",
}


def write_llama(folder: Path, hidden_size: int, layers: int) -> Path:
    """Writes config.json, model.safetensors and a tokenizer into a new folder; float32, four heads.

    The tokenizer has no end token, so that nothing ends early.
    """
    config = {
        **_LLAMA,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": layers,
        "head_dim": hidden_size // _LLAMA["num_attention_heads"],
    }
    model, config = make_up(ModelSource(config_json=json.dumps(config)), seed=0)
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(config["vocab_size"])}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind), encoding="utf-8")
    return folder

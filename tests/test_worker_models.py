"""Models come from folders or are made up; what cannot be loaded says why, and the remedy."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
import pytest
import tiny_models as tiny

from worker import models
from worker.failures import AttemptError
from worker.protocol import FAILURE_KINDS, ModelSource

if TYPE_CHECKING:
    from pathlib import Path


def load(source: ModelSource, seed: int = 0) -> models.Loaded:
    return models.load(source, seed, tiny.make_progress()[0])


def refusal(source: ModelSource) -> AttemptError:
    with pytest.raises(AttemptError) as failure:
        load(source)
    assert failure.value.kind in FAILURE_KINDS
    assert failure.value.remedy
    return failure.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole MLX model folder with random weights."""
    tiny.save(tiny.LLAMA, tmp_path, seed=0)
    return tmp_path


def test_a_folder_and_its_made_up_twin_are_the_same(folder: Path) -> None:
    loaded, twin = load(ModelSource(path=str(folder))), load(tiny.source(tiny.LLAMA))
    assert loaded.weight_bytes == twin.weight_bytes == 115_008 * 4
    assert loaded.parameters == twin.parameters == 115_008
    assert loaded.model_type == "llama"
    assert loaded.vocab_size == 256
    assert loaded.quantization is None
    ids = mx.array([[1, 2, 3]])
    assert mx.array_equal(loaded.model(ids), twin.model(ids))


def test_another_seed_makes_another_model() -> None:
    ids = mx.array([[1, 2, 3]])
    first, again, other = (load(tiny.source(tiny.LLAMA), seed).model(ids) for seed in (0, 0, 1))
    assert mx.array_equal(first, again)
    assert not mx.array_equal(first, other)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_dtype_decides_the_bytes(dtype: str, size: int) -> None:
    assert load(tiny.source(tiny.LLAMA, dtype=dtype)).weight_bytes == 115_008 * size


def test_quantization_takes_what_a_checkpoint_takes() -> None:
    loaded = load(tiny.source(tiny.LLAMA, dtype="bfloat16", quantization_bits=4, quantization_group_size=32))
    linear = loaded.model.model.layers[0].self_attn.q_proj
    assert isinstance(linear, nn.QuantizedLinear)
    assert isinstance(loaded.model.model.embed_tokens, nn.QuantizedEmbedding)
    assert loaded.quantization == {"bits": 4, "group_size": 32, "mode": "affine"}
    norms = (2 * 2 + 1) * 64
    assert loaded.weight_bytes == (115_008 - norms) * (0.5 + 2 * 2 / 32) + norms * 2
    assert loaded.parameters == 115_008
    assert loaded.vocab_size == 256


def test_a_quantized_config_is_taken_at_its_word() -> None:
    """The config.json of a converted checkpoint, single layers excepted or in other bits."""
    quantization: dict[str, Any] = {
        "bits": 4,
        "group_size": 32,
        "lm_head": {"bits": 8, "group_size": 32},
        "model.embed_tokens": False,
    }
    config = {**tiny.LLAMA, "tie_word_embeddings": False, "quantization": quantization}
    loaded = load(tiny.source(config, dtype=None))
    assert loaded.model.lm_head.bits == 8
    assert loaded.model.model.layers[0].mlp.up_proj.bits == 4
    assert isinstance(loaded.model.model.embed_tokens, nn.Embedding)
    assert loaded.quantization == {"bits": 4, "group_size": 32}


def test_loading_never_holds_much_more_than_the_weights() -> None:
    """Random weights are made in float32, then quantized; one at a time, that is one weight's worth more."""
    wide = {**tiny.LLAMA, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8}
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    loaded = load(tiny.source(wide, dtype="bfloat16", quantization_bits=4))
    largest = 256 * 512
    assert mx.get_peak_memory() - before < loaded.weight_bytes + largest * (4 + 2) * 2.5


@pytest.mark.parametrize(
    ("config", "kind", "words"),
    [
        ("{", "bad_config", "not JSON"),
        ("[]", "bad_config", "not a mapping"),
        ("{}", "bad_config", "no model_type"),
        ('{"model_type": "nonesuch"}', "unsupported_model", "'nonesuch'"),
        ('{"model_type": "base"}', "unsupported_model", "'base'"),
        (
            '{"model_type": "llama", "hidden_size": 8}',
            "bad_config",
            "llama needs num_hidden_layers, intermediate_size, num_attention_heads, rms_norm_eps, vocab_size",
        ),
        (
            json.dumps({**tiny.LLAMA, "num_attention_heads": 0, "head_dim": None}),
            "bad_config",
            "ZeroDivisionError",
        ),
        (json.dumps({**tiny.LLAMA, "hidden_size": "wide"}), "bad_config", "llama: "),
        (json.dumps({**tiny.LLAMA, "dtype": "int7"}), "bad_config", "float32, float16, bfloat16"),
    ],
)
def test_a_config_that_does_not_do(config: str, kind: str, words: str) -> None:
    failure = refusal(ModelSource(config_json=config))
    assert failure.kind == kind
    assert words in failure.text


def test_quantization_that_does_not_do() -> None:
    failure = refusal(tiny.source(tiny.LLAMA, quantization_bits=7, quantization_group_size=32))
    assert failure.kind == "bad_config"
    assert "7 bits" in failure.text


def test_keys_that_nobody_reads_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    load(tiny.source({**tiny.LLAMA, "num_hiden_layers": 3, "torch_dtype": "float32"}))
    assert "config keys that llama does not read: num_hiden_layers\n" in capfd.readouterr().err


def test_no_such_folder(tmp_path: Path) -> None:
    failure = refusal(ModelSource(path=str(tmp_path / "gone")))
    assert failure.kind == "model_not_found"
    assert str(tmp_path / "gone") in failure.text


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert refusal(ModelSource(path=str(folder))).kind == "model_not_found"


def test_config_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert refusal(ModelSource(path=str(folder))).kind == "bad_config"


def test_config_without_model_type(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    failure = refusal(ModelSource(path=str(folder)))
    assert failure.kind == "bad_config"
    assert "model_type" in failure.text


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    failure = refusal(ModelSource(path=str(folder)))
    assert failure.kind == "model_not_found"
    assert "No safetensors" in failure.text


def test_unknown_architecture(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "nonesuch"}')
    failure = refusal(ModelSource(path=str(folder)))
    assert failure.kind == "unsupported_model"
    assert "Model type nonesuch not supported" in failure.text


def test_remote_code_waits_for_a_yes(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_file": "own.py"}))
    (folder / "own.py").write_text("from mlx_lm.models.llama import Model, ModelArgs\n")
    failure = refusal(ModelSource(path=str(folder)))
    assert failure.kind == "remote_code"
    assert "trust_remote_code" in failure.remedy
    assert load(ModelSource(path=str(folder), trust_remote_code=True)).parameters == 115_008


@pytest.mark.parametrize("damage", ["header", "short", "empty", "tensor"])
def test_damaged_weights(folder: Path, damage: str) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    broken = {
        "header": data[:8] + b"x" * length + data[8 + length :],
        "short": data[: len(data) // 2],
        "empty": b"",
    }
    if damage == "tensor":
        mx.save_safetensors(str(path), {"model.norm.weight": mx.ones((64,))})
    else:
        path.write_bytes(broken[damage])
    failure = refusal(ModelSource(path=str(folder)))
    assert failure.kind == "bad_weights"
    assert str(folder) in failure.text


def test_weights_of_another_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 256}))
    assert refusal(ModelSource(path=str(folder))).kind == "bad_weights"


class _Embedded(nn.Module):
    def __init__(self, rows: int | None) -> None:
        super().__init__()
        if rows is not None:
            self.embed_tokens = nn.Embedding(rows, 4)


@pytest.mark.parametrize(
    ("config", "rows", "safe"),
    [
        ({"vocab_size": 100}, 128, 100),
        ({"vocab_size": 128}, 100, 100),
        ({"text_config": {"vocab_size": 90}}, 128, 90),
        ({}, 128, 128),
        ({"vocab_size": 100}, None, 100),
    ],
)
def test_ids_stay_inside_the_vocabulary(config: dict[str, Any], rows: int | None, safe: int) -> None:
    assert models.vocabulary(_Embedded(rows), config) == safe


def test_no_vocabulary_at_all() -> None:
    with pytest.raises(AttemptError, match="vocab_size"):
        models.vocabulary(_Embedded(None), {})

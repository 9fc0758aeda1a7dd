"""Owns getting a model: from a folder, or made up at random from a config, evaluated weight by weight.

Does not download anything (the orchestrator hands a local folder) and needs no tokenizer: prompts are random
ids.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import get_total_parameters, load_model

from worker.failures import AttemptError
from worker.synthetic import make_up

if TYPE_CHECKING:
    from worker.progress import Progress
    from worker.protocol import ModelSource

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
_METAL_SIGNS = ("[METAL]", "[metal::", "[malloc", "Unable to allocate")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model whose weights are evaluated, and what is known of it."""

    model: nn.Module
    model_type: str
    vocab_size: int
    parameters: int
    weight_bytes: int
    load_s: float
    quantization: dict[str, int | str] | None
    shape: dict[str, int]


def load(source: ModelSource, seed: int, progress: Progress) -> Loaded:
    """The model with all its weights in memory, a progress mark per weight.

    Raises:
        AttemptError: it cannot be had; the kind says why.
        StopAsked: the stop flag went up between two weights.
        RuntimeError: MLX ran out of memory.
    """
    began = time.perf_counter()
    if source.path is not None:
        model, config = _from_folder(Path(source.path), trust_remote_code=source.trust_remote_code)
    else:
        model, config = make_up(source, seed)
    try:
        weight_bytes = _evaluate(model, progress)
    except RuntimeError as error:
        if source.path is None or any(sign in str(error) for sign in _METAL_SIGNS):
            raise
        raise _bad_weights(Path(source.path), error) from error
    return Loaded(
        model=model,
        model_type=str(config["model_type"]),
        vocab_size=vocabulary(model, config),
        parameters=int(get_total_parameters(model)),
        weight_bytes=weight_bytes,
        load_s=time.perf_counter() - began,
        quantization=_quantization(config),
        shape=_shape(model, config),
    )


def vocabulary(model: nn.Module, config: dict[str, Any]) -> int:
    """How many token ids are safe: the config's vocabulary, bounded by the rows of the token embedding.

    An id beyond the embedding is no error in MLX, it reads other memory.

    Raises:
        AttemptError: neither is there.
    """
    text_config = config.get("text_config")
    nested = text_config.get("vocab_size") if isinstance(text_config, dict) else None
    stated = config.get("vocab_size", nested)
    rows = _embedding_rows(model)
    sizes = [size for size in (stated, rows) if isinstance(size, int) and size > 0]
    if not sizes:
        raise AttemptError(
            "bad_config",
            "neither the config's vocab_size nor an embedding says how large the vocabulary is",
            "add vocab_size to the config",
        )
    return min(sizes)


def _embedding_rows(model: nn.Module) -> int | None:
    """Rows of the largest embedding: tables of positions or token types are smaller than that of tokens."""
    embeddings = (nn.Embedding, nn.QuantizedEmbedding)
    rows = [int(m.weight.shape[0]) for _, m in model.named_modules() if isinstance(m, embeddings)]
    return max(rows, default=None)


def _from_folder(folder: Path, *, trust_remote_code: bool) -> tuple[nn.Module, dict[str, Any]]:
    if not folder.is_dir():
        raise AttemptError("model_not_found", f"no folder {folder}", "check `model`: a hub id or a folder")
    if not (folder / "config.json").is_file():
        raise AttemptError("model_not_found", f"no config.json in {folder}", "name a folder that holds an MLX model")
    try:
        model, config = load_model(folder, lazy=True, trust_remote_code=trust_remote_code)
    except json.JSONDecodeError as error:
        raise AttemptError("bad_config", f"{folder}/config.json is not JSON: {error}", "get the model anew") from error
    except FileNotFoundError as error:
        raise AttemptError(
            "model_not_found",
            str(error),
            "the download is incomplete or these are no MLX weights; get it anew",
        ) from error
    except RuntimeError as error:
        raise _bad_weights(folder, error) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _refused(folder, error) from error
    return model, dict(config)


def _refused(folder: Path, error: Exception) -> AttemptError:
    """What mlx-lm's loader meant; its exceptions differ by text only."""
    text = f"{type(error).__name__}: {error}"
    if "trust_remote_code" in text:
        remedy = "if you trust its author, set `trust_remote_code: true` for this model"
        return AttemptError("remote_code", f"{folder} brings Python code of its own", remedy)
    if "not supported" in text and "Model type" in text:
        return AttemptError("unsupported_model", str(error), "use another model, or a newer mlx-lm")
    if "parameters" in text and ("Missing" in text or "Received" in text or "Expected shape" in text):
        return _bad_weights(folder, error)
    if "Expected shape" in text:
        return _bad_weights(folder, error)
    return AttemptError("bad_config", f"{folder}/config.json: {text}", "this config does not fit this mlx-lm")


def _bad_weights(folder: Path, error: Exception) -> AttemptError:
    lines = str(error).splitlines() or [type(error).__name__]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} ({len(lines) - 1} more lines)"
    return AttemptError(
        "bad_weights",
        f"weights in {folder}: {text[:2000]}",
        "the files are damaged, incomplete, or of another mlx-lm version; get the model anew",
    )


def _evaluate(model: nn.Module, progress: Progress) -> int:
    """Evaluates weight after weight, so that only one at a time is held in two forms; returns their bytes."""
    weights = [array for _, array in tree_flatten(model.parameters())]
    total = 0
    for array in weights:
        mx.eval(array)
        total += array.nbytes
        progress.memory(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())
        progress.mark(len(weights))
    mx.clear_cache()
    return total


def _shape(model: nn.Module, config: dict[str, Any]) -> dict[str, int]:
    """The config's sizes that decide how much memory a step takes, and `dtype_bytes`, the bytes of one activation.

    Of a model with more than text, those of its text part.
    """
    text_config = config.get("text_config")
    stated = {**config, **(text_config if isinstance(text_config, dict) else {})}
    shape = {key: value for key in _SIZES if isinstance(value := stated.get(key), int) and not isinstance(value, bool)}
    # Activations have the type of what is not quantized: norms, scales.
    floats = (
        array.dtype.size for _, array in tree_flatten(model.parameters()) if mx.issubdtype(array.dtype, mx.floating)
    )
    return shape | {"dtype_bytes": int(next(floats, 2))}


def _quantization(config: dict[str, Any]) -> dict[str, int | str] | None:
    """The global part of the config's quantization: bits, group size, mode. Per-layer parts stay out."""
    quantization = config.get("quantization")
    if not isinstance(quantization, dict):
        return None
    return {str(k): v for k, v in quantization.items() if isinstance(v, int | str) and not isinstance(v, bool)}

"""Owns models made up from a config: mlx-lm's architecture, seeded random weights, optional quantization.

Does not evaluate the weights (models.py does, one by one): what is built here is lazy, so nothing is
allocated yet. Such a model computes nonsense at the real speed and in the real memory.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import (
    _get_classes as get_classes,  # private, but nothing public finds an architecture's classes
)

from worker.failures import AttemptError

if TYPE_CHECKING:
    from worker.protocol import ModelSource

_DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
_MODE = "affine"
# Keys of every config.json that no ModelArgs takes and nobody misses.
_COMMON_KEYS = frozenset({"architectures", "dtype", "quantization", "quantization_config", "torch_dtype"})


def make_up(source: ModelSource, seed: int) -> tuple[nn.Module, dict[str, Any]]:
    """The model, unevaluated, and its config with the quantization that was applied.

    Raises:
        AttemptError: the config does not name an architecture of this mlx-lm, or lacks values.
    """
    config = _parse(source.config_json or "")
    model_class, args_class = _classes(config)
    _demand_fields(config, args_class)
    _name_ignored_keys(config, args_class)
    mx.random.seed(seed)
    try:
        model = model_class(args_class.from_dict(config))
    # An architecture's constructor computes with the config's values: any of these can come of a wrong one.
    except (TypeError, ValueError, KeyError, AttributeError, ZeroDivisionError, IndexError) as error:
        raise _bad(f"{config['model_type']}: {type(error).__name__}: {error}") from error
    model.set_dtype(_dtype(source, config))
    quantization = _quantization(source, config)
    if quantization is not None:
        _quantize(model, quantization)
        config["quantization"] = quantization
    model.eval()
    return model, config


def _parse(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise _bad(f"the synthetic config is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise _bad("the synthetic config is not a mapping of names to values")
    if not isinstance(config.get("model_type"), str):
        raise _bad("the synthetic config has no model_type")
    return config


def _classes(config: dict[str, Any]) -> tuple[Any, Any]:
    try:
        model_class, args_class = get_classes(config)
    except (ValueError, AttributeError) as error:
        raise AttemptError(
            "unsupported_model",
            f"this mlx-lm has no architecture {config['model_type']!r}",
            "set model_type to one that mlx_lm.models holds",
        ) from error
    return model_class, args_class


def _demand_fields(config: dict[str, Any], args_class: Any) -> None:
    """Names every missing value at once; Python's own error would come one constructor at a time."""
    parameters = inspect.signature(args_class).parameters.values()
    missing = [p.name for p in parameters if p.default is inspect.Parameter.empty and p.name not in config]
    if missing:
        raise _bad(f"{config['model_type']} needs {', '.join(missing)}")


def _name_ignored_keys(config: dict[str, Any], args_class: Any) -> None:
    """A misspelt key is ignored by mlx-lm; the log at least says so."""
    ignored = config.keys() - inspect.signature(args_class).parameters.keys() - _COMMON_KEYS
    if ignored:
        print(
            f"config keys that {config['model_type']} does not read: {', '.join(sorted(ignored))}",
            file=sys.stderr,
        )


def _dtype(source: ModelSource, config: dict[str, Any]) -> mx.Dtype:
    name = source.dtype or config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    if name not in _DTYPES:
        raise _bad(f"dtype {name!r}; known: {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _quantization(source: ModelSource, config: dict[str, Any]) -> dict[str, Any] | None:
    if source.quantization_bits is not None:
        return {
            "bits": source.quantization_bits,
            "group_size": source.quantization_group_size or 64,
            "mode": _MODE,
        }
    stated = config.get("quantization")
    return dict(stated) if isinstance(stated, dict) else None


def _quantize(model: nn.Module, quantization: dict[str, Any]) -> None:
    """Quantizes what a converted checkpoint of this config has quantized.

    Per-layer entries of the config decide first, then the architecture's own predicate, then whether the
    width fits.
    """
    group_size, bits = quantization.get("group_size", 64), quantization.get("bits", 4)
    own_predicate = getattr(model, "quant_predicate", None)

    def chosen(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if path in quantization:
            return quantization[path]  # type: ignore[no-any-return]  # JSON: a bool or a mapping
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % group_size != 0:
            return False
        return own_predicate(path, module) if own_predicate is not None else True

    try:
        nn.quantize(model, group_size, bits, mode=quantization.get("mode", _MODE), class_predicate=chosen)
    except (ValueError, TypeError) as error:
        raise _bad(f"quantization {bits} bits in groups of {group_size}: {error}") from error


def _bad(text: str) -> AttemptError:
    return AttemptError("bad_config", text, "mend the values under `model: {synthetic: ...}`")

"""Owns what `model:` may be: a hub id, a folder, or a synthetic architecture; reads the config.json it names.

Does not download, load or judge a model: whether mlx-lm knows the architecture shows in the worker.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import core_schema

from orchestrator.errors import PlanError
from orchestrator.plan.file import file_label, read_text_file
from orchestrator.plan.types import JsonSchema, as_pydantic
from orchestrator.plan.values import (
    UnreadableError,
    described,
    is_null,
    read_choice,
    read_free,
    read_text,
    read_whole,
    wrong,
)
from orchestrator.plan.yaml import KeyPath, shown

DTYPES = ("float32", "float16", "bfloat16")
QUANTIZATION_BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
_MAX_CONFIG_BYTES = 4 << 20
_MAX_LEVELS = 30
_MAX_VALUES = 10_000
_OWN_KEYS = ("config", "dtype", "torch_dtype", "quantization", "quantization_config")
_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*/[\w.-]*[A-Za-z0-9_]", re.ASCII)
_REMEDY = "write a hub id such as mlx-community/Qwen3-8B-4bit, the path of a folder, or `synthetic:` with keys"


@dataclass(frozen=True, slots=True)
class Place:
    """Where relative paths of a plan are looked for: beside the plan file, then in the current folder.

    `frozen` marks the resolved plan of a run directory: nothing is looked for, nothing has to exist.
    """

    folder: Path
    frozen: bool = False

    def find(self, text: str) -> Path:
        """The absolute path meant by `text`; it need not exist."""
        path = Path(text).expanduser()
        for root in (self.folder, Path.cwd()):
            if (root / path).exists():
                return (root / path).resolve()
        return (self.folder / path).resolve()


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A model of random weights. `config_json` is canonical JSON text, without dtype and quantization."""

    config_json: str
    dtype: str = "bfloat16"
    quantization_bits: int | None = None
    quantization_group_size: int | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The config's keys and values."""
        return cast("dict[str, Any]", json.loads(self.config_json))


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A plan's model by kind; `name` is the hub id or the absolute folder, None where it is synthetic."""

    kind: Literal["hub", "folder", "synthetic"]
    name: str | None = None
    synthetic: Synthetic | None = None

    def __str__(self) -> str:
        if self.synthetic is None:
            return f"{self.name} ({'hub' if self.kind == 'hub' else 'local folder'})"
        bits = self.synthetic.quantization_bits
        weights = self.synthetic.dtype if bits is None else f"{bits}-bit, {self.synthetic.dtype}"
        return f"synthetic {shown(str(self.synthetic.config.get('model_type')))} ({weights}, random weights)"


def model_ref(model: str | Synthetic) -> ModelRef:
    """The kind of a resolved model: an absolute path is a folder, other text a hub id."""
    if isinstance(model, Synthetic):
        return ModelRef("synthetic", synthetic=model)
    return ModelRef("folder" if model.startswith("/") else "hub", name=model)


def read_model(value: object, place: Place) -> str | Synthetic:
    """The resolved model: hub id, absolute folder, or Synthetic.

    Raises:
        UnreadableError: it is none of them, or a file that it names cannot be used.
    """
    if isinstance(value, Synthetic):
        return value
    if isinstance(value, dict):
        if list(value) != ["synthetic"]:
            raise wrong(f"a mapping here has the one key `synthetic`; {_REMEDY}")
        try:
            return read_synthetic(value["synthetic"], place)
        except UnreadableError as error:
            raise UnreadableError(*((("synthetic", *path), text) for path, text in error.problems)) from None
    if isinstance(value, list | tuple) or is_null(value):
        raise wrong(f"{described(value)} stands where a model belongs; {_REMEDY}")
    return _read_name(read_text(value, "a model").strip(), place)


def _read_name(text: str, place: Place) -> str:
    looks_like_path = text.startswith(("./", "../", "/", "~")) or text in (".", "..")
    if place.frozen and (text.startswith("/") or _is_hub_id(text)):
        return text
    try:
        path = place.find(text)
        exists, is_folder = path.exists(), path.is_dir()
        has_config = (path / "config.json").is_file()
    except (OSError, RuntimeError, ValueError) as error:  # no home for ~, a name too long, a loop of links
        raise wrong(f"{shown(text)} cannot be looked up: {shown(str(error), 200)}; {_REMEDY}") from None
    if is_folder and has_config:
        return str(path)
    if is_folder:
        raise wrong(f"{shown(str(path), 200)} has no config.json; give a folder that mlx-lm can load")
    if exists:
        raise wrong(f"{shown(text)} is a file; a model is a folder with config.json and safetensors")
    if looks_like_path:
        raise wrong(f"{shown(str(path), 200)} does not exist; give a folder with config.json and safetensors")
    if not _is_hub_id(text):
        raise wrong(f"{shown(text)} is neither a folder that exists nor a hub id; {_REMEDY}")
    return text


def _is_hub_id(text: str) -> bool:
    return len(text) <= 96 and "--" not in text and ".." not in text and _HUB_ID.fullmatch(text) is not None


def read_synthetic(value: object, place: Place) -> Synthetic:
    """`synthetic:` as the path of a config.json, or as a mapping of config keys with an optional base.

    Raises:
        UnreadableError: with the path of each key that is wrong.
    """
    own = value if isinstance(value, dict) else {"config": value}
    if isinstance(value, list | tuple) or is_null(value) or not own:
        raise wrong(f"{described(value)} stands where a config belongs; write its keys, or the path of a config.json")
    reader = _SyntheticReader(own, place, config_path=("config",) if isinstance(value, dict) else ())
    return reader.read()


class _SyntheticReader:
    """Puts a base config and the plan's own keys together, and gathers what is wrong with either."""

    def __init__(self, own: dict[str, Any], place: Place, config_path: KeyPath) -> None:
        self._own, self._place, self._config_path = own, place, config_path
        self._problems: list[tuple[KeyPath, str]] = []

    def read(self) -> Synthetic:
        base = self._base() if "config" in self._own else {}
        dtype = self._dtype(base)
        bits, group_size = self._quantization(base)
        config = {key: value for key, value in base.items() if key not in _OWN_KEYS}
        for key, value in self._own.items():
            if key not in _OWN_KEYS:
                config[key] = self._free(value, (key,))
        if not self._problems and not isinstance(config.get("model_type"), str):
            self._wrong((), "model_type is missing; name an mlx-lm architecture, such as `model_type: llama`")
        if self._problems:
            raise UnreadableError(*self._problems)
        text = json.dumps(config, sort_keys=True, separators=(",", ":"))
        return Synthetic(text, dtype, bits, group_size)

    def _wrong(self, path: KeyPath, text: str) -> None:
        self._problems.append((path, text))

    def _base(self) -> dict[str, Any]:
        try:
            text = read_text(self._own["config"], "the path of a config.json")
            path = self._place.find(text)
            path = path / "config.json" if path.is_dir() else path
            body = json.loads(read_text_file(path, "a config.json", _MAX_CONFIG_BYTES))
            _check_json(body)
        except PlanError as error:
            self._wrong(self._config_path, "; ".join(error.problems))
            return {}
        except UnreadableError as error:
            self._wrong(self._config_path, str(error))
            return {}
        except (OSError, RuntimeError, ValueError) as error:  # not JSON, nested without end, no home for ~
            self._wrong(
                self._config_path,
                f"{file_label(Path(text))} is not JSON that can be used: {shown(str(error))}",
            )
            return {}
        if not isinstance(body, dict) or "config" in body:
            self._wrong(
                self._config_path,
                f"{file_label(path)} is not the config of a model; give one with model_type",
            )
            return {}
        return body

    def _dtype(self, base: dict[str, Any]) -> str:
        given = [key for key in ("dtype", "torch_dtype") if key in self._own]
        if len(given) == 2:
            self._wrong(("torch_dtype",), "is the same as dtype; keep one of them")
        source = self._own if given else base
        key = next((key for key in ("dtype", "torch_dtype") if source.get(key) is not None), None)
        if key is None:
            return "bfloat16"
        path = (key,) if given else self._config_path
        try:
            return str(read_choice(source[key], DTYPES))
        except UnreadableError as error:
            hint = "" if given else f" (its {key}; a dtype in the plan goes before it)"
            self._wrong(path, f"{error}{hint}")
            return "bfloat16"

    def _quantization(self, base: dict[str, Any]) -> tuple[int | None, int | None]:
        if "quantization_config" in self._own:
            self._wrong(("quantization_config",), "is not used here; write `quantization: {bits: 4, group_size: 64}`")
        if "quantization" in self._own:
            given = self._own["quantization"]
            return (None, None) if is_null(given) else self._bits(given, ("quantization",))
        # Other formats (gptq, fp8, ...) say so by quant_method: random weights are then made in dtype.
        found = base.get("quantization") or base.get("quantization_config") or {}
        if not isinstance(found, dict) or "bits" not in found or "quant_method" in found:
            return None, None
        if found.get("mode", "affine") != "affine" or any(isinstance(value, dict) for value in found.values()):
            text = "its layers differ in quantization; write `quantization: {bits: 4, group_size: 64}` or null"
            self._wrong(self._config_path, text)
            return None, None
        return self._bits({k: found[k] for k in ("bits", "group_size") if k in found}, self._config_path)

    def _bits(self, given: Any, path: KeyPath) -> tuple[int | None, int | None]:
        if not isinstance(given, dict) or "bits" not in given:
            self._wrong(path, f"{described(given)} is no quantization; write {{bits: 4, group_size: 64}} or null")
            return None, None
        for key in given.keys() - {"bits", "group_size"}:
            self._wrong((*path, key), "is not a key of quantization; it has bits and group_size")
        bits = self._choice(given["bits"], QUANTIZATION_BITS, (*path, "bits"))
        return bits, self._choice(given.get("group_size", 64), GROUP_SIZES, (*path, "group_size"))

    def _choice(self, value: Any, choices: tuple[int, ...], path: KeyPath) -> int | None:
        try:
            read_whole(value, 1, 2**31)
            return cast("int", read_choice(value, choices))
        except UnreadableError as error:
            self._wrong(path, str(error))
            return None

    def _free(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {str(key): self._free(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._free(item, (*path, at)) for at, item in enumerate(value)]
        try:
            return read_free(value)
        except UnreadableError as error:
            self._wrong(path, str(error))
            return None


def _check_json(body: Any) -> None:
    """Refuses what cannot be written into a plan again.

    Raises:
        ValueError: NaN, half a character, a key without a name, a number beyond 64 bits, or too much at all.
    """
    waiting = [(body, 1)]
    values = 0
    while waiting:
        item, level = waiting.pop()
        values += 1
        if level > _MAX_LEVELS or values > _MAX_VALUES:
            raise ValueError(f"it has over {_MAX_LEVELS} levels or {_MAX_VALUES} values")
        if isinstance(item, dict):
            if "" in item:
                raise ValueError("it has a key without a name")
            waiting += [(part, level + 1) for part in (*item, *item.values())]
        elif isinstance(item, list):
            waiting += [(part, level + 1) for part in item]
        elif isinstance(item, str):
            item.encode()
        elif isinstance(item, float) and math.isnan(item):
            raise ValueError("it holds NaN")
        elif type(item) is int and abs(item) >= 2**63:
            raise ValueError("it holds a number beyond 64 bits")


def render_model(model: str | Synthetic) -> object:
    """The model as a plan writes it, every key of a synthetic config inline."""
    if isinstance(model, str):
        return model
    body: dict[str, object] = {"dtype": model.dtype}
    if model.quantization_bits is not None:
        body["quantization"] = {"bits": model.quantization_bits, "group_size": model.quantization_group_size}
    return {"synthetic": {**body, **model.config}}


@dataclass(frozen=True, slots=True)
class Model:
    """The annotation of `model`; relative paths are looked for as the validation's context (a Place) says."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def validator(value: Any, info: ValidationInfo) -> str | Synthetic:
            place = info.context if isinstance(info.context, Place) else Place(Path())
            try:
                return read_model(value, place)
            except UnreadableError as error:
                raise as_pydantic(error) from None

        serialization = core_schema.plain_serializer_function_ser_schema(render_model, when_used="json")
        return core_schema.with_info_plain_validator_function(validator, serialization=serialization)

    def __get_pydantic_json_schema__(self, _: Any, handler: GetJsonSchemaHandler) -> JsonSchema:
        return MODEL_SCHEMA


_QUANTIZATION_SCHEMA: JsonSchema = {
    "description": "Quantized random weights; null for none.",
    "type": ["object", "null"],
    "additionalProperties": False,
    "required": ["bits"],
    "properties": {
        "bits": {"description": "Bits of a weight.", "enum": list(QUANTIZATION_BITS)},
        "group_size": {
            "description": "Weights that share a scale.",
            "enum": list(GROUP_SIZES),
            "default": 64,
        },
    },
}
_SYNTHETIC_SCHEMA: JsonSchema = {
    "description": "The path of a config.json, or its keys; any architecture that mlx-lm knows.",
    "type": ["string", "object"],
    "minLength": 1,
    "properties": {
        "config": {
            "description": "The path of a config.json to start from; the other keys go before it.",
            "type": "string",
        },
        "model_type": {"description": "The architecture, such as llama or qwen3.", "type": "string"},
        "dtype": {"description": "The type of the weights.", "enum": list(DTYPES), "default": "bfloat16"},
        "torch_dtype": {"description": "The same as dtype.", "enum": list(DTYPES)},
        "quantization": _QUANTIZATION_SCHEMA,
    },
    "additionalProperties": True,
}
MODEL_SCHEMA: JsonSchema = {
    "type": ["string", "object"],
    "minLength": 1,
    "properties": {"synthetic": _SYNTHETIC_SCHEMA},
    "required": ["synthetic"],
    "additionalProperties": False,
    "examples": ["mlx-community/Qwen3-8B-4bit", "./models/my-model"],
}

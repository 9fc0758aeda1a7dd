"""Owns the types of the plan's keys: each reads, renders and describes (as JSON Schema) one kind of value.

Does not know which keys there are. Pydantic takes these as annotations: `Annotated[int, whole(1, 10)]`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import PydanticCustomError, core_schema

from orchestrator.plan.quantities import (
    DURATION_PATTERN,
    PERCENT_PATTERN,
    SIZE_PATTERN,
    read_duration,
    read_share,
    read_size,
    render_duration,
    render_size,
)
from orchestrator.plan.values import (
    UnreadableError,
    described,
    is_null,
    read_choice,
    read_flag,
    read_number,
    read_whole,
    wrong,
)
from orchestrator.plan.yaml import KeyPath, Scalar, shown

JsonSchema: TypeAlias = dict[str, Any]
MAX_DURATION_S = 366 * 86_400.0


def as_pydantic(error: UnreadableError) -> PydanticCustomError:
    """The error in pydantic's form; its problems travel along, for loading.py to take apart."""
    return PydanticCustomError("plan", "{text}", {"text": str(error), "problems": error.problems})


def _guarded(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def validator(value: Any) -> Any:
        try:
            return read(value)
        except UnreadableError as error:
            raise as_pydantic(error) from None

    return validator


def _guarded_wrap(read: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, handler: _guarded(lambda inner: read(inner, handler))(value)


@dataclass(frozen=True, slots=True, eq=False)  # compared, and hashed, by identity
class Reads:
    """A value read by `read`, described by `schema`, and written again by `render` (None: as it is)."""

    read: Callable[[Any], Any]
    schema: JsonSchema
    render: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        write = self.render
        serialization = core_schema.plain_serializer_function_ser_schema(write, when_used="json") if write else None
        return core_schema.no_info_plain_validator_function(_guarded(self.read), serialization=serialization)

    def __get_pydantic_json_schema__(self, _: Any, handler: GetJsonSchemaHandler) -> JsonSchema:
        return dict(self.schema)


def whole(low: int, high: int) -> Reads:
    """A whole number from `low` to `high`."""
    return Reads(lambda value: read_whole(value, low, high), {"type": "integer", "minimum": low, "maximum": high})


def number(low: float, high: float) -> Reads:
    """A number from `low` to `high`."""
    return Reads(lambda value: read_number(value, low, high), {"type": "number", "minimum": low, "maximum": high})


def flag() -> Reads:
    """true or false."""
    return Reads(read_flag, {"type": "boolean"})


def duration(low_s: float = 0.0, high_s: float = MAX_DURATION_S) -> Reads:
    """Seconds, written with a unit."""
    schema = {
        "type": "string",
        "pattern": DURATION_PATTERN,
        "minLength": 2,
        "examples": ["100ms", "5s", "1h30m"],
    }
    return Reads(lambda value: read_duration(value, low_s, high_s), schema, render_duration)


def optional_size(low: int, high: int) -> Reads:
    """Bytes, written with a unit, or null."""
    return Reads(
        lambda value: None if is_null(value) else read_size(value, low, high),
        {"type": ["string", "null"], "pattern": SIZE_PATTERN, "examples": ["400MB", "1.5GB", "1GiB"]},
        lambda size: None if size is None else render_size(size),
    )


def share() -> Reads:
    """A Share of memory, written as a percentage or a size."""
    forms = [{"pattern": PERCENT_PATTERN}, {"pattern": SIZE_PATTERN}]
    return Reads(read_share, {"type": "string", "anyOf": forms, "examples": ["1%", "0.5%", "400MB"]}, str)


def optional_whole(low: int, high: int) -> Reads:
    """A whole number from `low` to `high`, or null."""
    schema = {"type": ["integer", "null"], "minimum": low, "maximum": high}
    return Reads(lambda value: None if is_null(value) else read_whole(value, low, high), schema)


def only_default(default: Any) -> Reads:
    """A key of a later version: nothing but its default, of which a mapping may give a part.

    The default is as read from YAML: text, None, a flag, or a flat mapping of text.
    """

    def same(value: Any, wanted: Any) -> bool:
        if isinstance(wanted, dict):
            return isinstance(value, dict) and all(k in wanted and same(v, wanted[k]) for k, v in value.items())
        if wanted is None:
            return is_null(value)
        text = value.text if isinstance(value, Scalar) else value
        return text is wanted or text == (str(wanted).lower() if isinstance(wanted, bool) else wanted)

    def read(value: Any) -> Any:
        if not same(value, default):
            raise wrong("is not available in this version yet; leave it out")
        return default

    if isinstance(default, dict):
        properties = {key: {"const": item} for key, item in default.items()}
        return Reads(read, {"type": "object", "additionalProperties": False, "properties": properties})
    return Reads(read, {"const": default})


@dataclass(frozen=True, slots=True)
class WholeOr:
    """A whole number from `low` to `high`, or a mapping that `mapping`, a pydantic model, reads."""

    low: int
    high: int
    mapping: type[BaseModel]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def read(value: Any, keys_of: Callable[[Any], Any]) -> Any:
            is_mapping = isinstance(value, dict | self.mapping)
            return keys_of(value) if is_mapping else read_whole(value, self.low, self.high)

        def render(value: Any) -> Any:
            return value if isinstance(value, int) else value.model_dump(mode="json", by_alias=True)

        return core_schema.no_info_wrap_validator_function(
            _guarded_wrap(read),
            handler.generate_schema(self.mapping),
            serialization=core_schema.plain_serializer_function_ser_schema(render, when_used="json"),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchema:
        whole_schema = {"type": "integer", "minimum": self.low, "maximum": self.high}
        return {"anyOf": [whole_schema, handler(schema["schema"])]}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the values of the Literal that it annotates."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        choices: tuple[Any, ...] = get_args(source)
        if type(None) in choices:  # Literal[...] | None
            choices = (*get_args(choices[0]), None)
        metadata = {"pydantic_js_functions": [lambda _schema, _handler: {"enum": list(choices)}]}
        return core_schema.no_info_plain_validator_function(
            _guarded(lambda value: read_choice(value, choices)), metadata=metadata
        )


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list with at least one item, none of them twice; `what` names the items, `example` shows a list."""

    what: str
    example: str
    unique: bool = True
    required: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(_guarded_wrap(self._read), handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchema:
        items = {"minItems": 1, "uniqueItems": True} if self.unique else {"minItems": 1}
        return {**handler(schema), **items}

    def _listed(self, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            alone = isinstance(value, Scalar) and not is_null(value)
            remedy = f"write [{shown(value.text)}]" if alone else f"write a list such as {self.example}"
            raise wrong(f"{described(value)} stands where a list of {self.what} belongs; {remedy}")
        if not value:
            way_out = "" if self.required else ", or leave the key out"
            raise wrong(f"the list is empty; write {self.what} such as {self.example}{way_out}")
        return tuple(value)

    def _read(self, value: Any, items_of: Callable[[Any], Any]) -> Any:
        listed = self._listed(value)
        problems = self._repeated(listed)
        try:
            items = items_of(listed)
        except ValidationError as error:
            if not problems:
                raise
            details = error.errors(include_url=False)
            below = [(d["loc"], part) for d in details for part in d.get("ctx", {}).get("problems", ())]
            problems += [((*at, *path), text) for at, (path, text) in below]
        if problems:
            raise UnreadableError(*problems)
        return items

    def _repeated(self, items: Any) -> list[tuple[KeyPath, str]]:
        """Items that are in the list before, told apart by how they are written."""
        first: dict[object, int] = {}
        twice: list[tuple[KeyPath, str]] = []
        for at, item in enumerate(items if self.unique else ()):
            text = item.text if isinstance(item, Scalar) else str(item)
            if first.setdefault(text, at) != at:
                twice.append(((at,), f"{shown(text)} is in the list already; leave it out"))
        return twice

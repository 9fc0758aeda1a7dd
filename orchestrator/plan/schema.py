"""Owns the plan described to others: the JSON Schema for editors, and the table of keys in docs/plan.md.

Both are made from model.py. `python -m orchestrator.plan.schema` writes them into a checkout anew.
"""

import ast
import inspect
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from orchestrator.plan import model
from orchestrator.plan.model import (
    AdaptiveReps,
    Cooldown,
    Footprint,
    PlanFile,
    Pressure,
    Retries,
    Stall,
    StepInflation,
    SwapGrowth,
    Watchdog,
)
from orchestrator.plan.types import JsonSchema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"
SCHEMA_PATH, REFERENCE_PATH = Path("configs/plan.schema.json"), Path("docs/plan.md")
# Models whose defaults are a plan's; a variant's defaults are those of its plan, an exclusion has none.
_WITH_DEFAULTS: tuple[type[BaseModel], ...] = (
    PlanFile,
    Watchdog,
    SwapGrowth,
    StepInflation,
    Stall,
    Pressure,
    Footprint,
    Retries,
    Cooldown,
    AdaptiveReps,
)
_NO_DEFAULT = ("name", "variants", "exclude")


def plan_json_schema() -> JsonSchema:
    """The JSON Schema (draft 2020-12) of a plan file, with the description and the default of every key."""
    schema = PlanFile.model_json_schema(by_alias=True)
    definitions: JsonSchema = schema["$defs"]
    defaults = {kind.__name__: _defaults(kind) for kind in _WITH_DEFAULTS}
    meanings = _meanings()
    parts: list[tuple[str, JsonSchema]] = [(PlanFile.__name__, schema), *definitions.items()]
    entries = [entry for _, part in parts for entry in part["properties"].values()]
    parts += [(form["title"], form) for entry in entries for form in _inline(entry)]
    for name, part in parts:
        part.pop("title", None)
        for key, entry in part["properties"].items():
            entry.pop("title", None)
            entry.pop("default", None)
            _describe(entry, meanings[name].get(key))
            if key in defaults.get(name, {}) and key not in _NO_DEFAULT and "$ref" not in entry:
                entry["default"] = defaults[name][key]
    first = ("name", "model", "batches", "contexts")
    schema["properties"] = {key: schema["properties"][key] for key in (*first, *schema["properties"])}
    return {"$schema": DIALECT, "title": "wallfinder plan", **schema}


def _describe(entry: JsonSchema, meaning: str | None) -> None:
    """Puts the description in, at its place in the alphabet."""
    if meaning is not None:
        whole = dict(sorted({**entry, "description": meaning}.items()))
        entry.clear()
        entry.update(whole)


def _meanings() -> dict[str, dict[str, str]]:
    """The docstring under each key, by class and by the key as people write it."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(model)).body:
        if isinstance(node, ast.ClassDef) and isinstance(kind := getattr(model, node.name), type(BaseModel)):
            own = dict(_docstrings(node.body))
            inherited = [found.get(base.__name__, {}) for base in reversed(kind.__mro__[1:])]
            names = {name: field.alias or name for name, field in kind.model_fields.items()}
            redefined = {names[name] for name in kind.__annotations__ if name in names}
            kept = {key: text for texts in inherited for key, text in texts.items() if key not in redefined}
            found[node.name] = kept | {names[name]: text for name, text in own.items() if name in names}
    return found


def _docstrings(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """The name and the docstring of each field of a class that has one."""
    for field, text in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            yield field.target.id, inspect.cleandoc(text.value.value)


def _defaults(kind: type[BaseModel]) -> dict[str, Any]:
    """The defaults of a model's keys as people write them."""
    return kind.model_construct().model_dump(mode="json", by_alias=True)


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One key of the plan: its full name, what it takes, its default (None: it has none), its meaning."""

    key: str
    takes: str
    default: str | None
    meaning: str


def plan_keys() -> tuple[KeyLine, ...]:
    """Every key that a plan file can hold, nested ones by their full name."""
    schema = plan_json_schema()
    return tuple(_lines(schema, schema["$defs"], ""))


def _lines(part: JsonSchema, definitions: JsonSchema, prefix: str) -> Iterator[KeyLine]:
    for key, entry in part["properties"].items():
        name = f"{prefix}{key}"
        target = _target(entry)
        if mappings := _inline(entry):
            plain = _takes(next(form for form in entry["anyOf"] if form not in mappings))
            yield KeyLine(name, f"{plain}, or a mapping", json.dumps(entry["default"]), entry["description"])
            yield from _lines(mappings[0], definitions, f"{name}.")
        elif target in ("VariantFile", None):
            default = json.dumps(entry["default"]) if "default" in entry else None
            yield KeyLine(name, _takes(entry), default, entry.get("description", ""))
        elif entry.get("type") == "array":
            yield KeyLine(name, "a list of mappings", None, entry["description"])
            yield from _lines(definitions[target], definitions, f"{name}[].")
        else:
            yield from _lines(definitions[target], definitions, f"{name}.")


def _inline(entry: JsonSchema) -> list[JsonSchema]:
    """The mappings among the forms that a key may take, where it may take other forms too."""
    return [form for form in entry.get("anyOf", ()) if "properties" in form]


def _target(entry: JsonSchema) -> str | None:
    reference = entry.get("$ref") or entry.get("items", {}).get("$ref")
    return str(reference).rpartition("/")[2] if reference else None


def _takes(entry: JsonSchema) -> str:
    if "enum" in entry:
        return ", ".join("null" if word is None else str(word) for word in entry["enum"])
    if "const" in entry:
        return json.dumps(entry["const"])
    if entry.get("type") == "array":
        return f"a list: {_takes(entry['items'])}" if "$ref" not in entry["items"] else "a list of mappings"
    if "minimum" in entry:
        return f"{entry['minimum']} to {entry['maximum']}"
    if "examples" in entry:
        return "such as " + ", ".join(entry["examples"])
    kinds = entry.get("type", "any")
    words = {"string": "text", "boolean": "true, false", "object": "a mapping", "null": "null"}
    return " or ".join(words.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def plan_reference() -> str:
    """The table of keys as Markdown."""
    lines = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for line in plan_keys():
        default = "required" if line.key in ("model", "batches", "contexts") else ""
        default = f"`{line.default}`" if line.default is not None else default
        meaning = line.meaning.replace("\n", " ").replace("|", "\\|")
        lines.append(f"| `{line.key}` | {line.takes} | {default} | {meaning} |")
    return "\n".join(lines)


def schema_text() -> str:
    """The JSON Schema as the file in configs/ holds it."""
    return json.dumps(plan_json_schema(), indent=2) + "\n"


def with_reference(page: str) -> str:
    """A Markdown page with the table between its two marks made anew.

    Raises:
        ValueError: the page lacks the marks.
    """
    head, _, rest = page.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{head}{BEGIN}\n{plan_reference()}\n{END}{tail}"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text())
    REFERENCE_PATH.write_text(with_reference(REFERENCE_PATH.read_text()))

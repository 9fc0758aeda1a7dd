"""Owns the way from a plan file, or from command line options, to a Plan: every problem at once.

Does not decide what a key means (model.py and the types it uses) or which keys contradict each other (checks.py).
"""

import copy
import difflib
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.errors import PlanError
from orchestrator.plan.checks import Complaint, Drafted, complaints
from orchestrator.plan.file import file_label, read_text_file
from orchestrator.plan.model import Plan, PlanFile, Settings, Variant, VariantFile, Watchdog
from orchestrator.plan.source import Place
from orchestrator.plan.text_types import read_name, safe_name
from orchestrator.plan.values import UnreadableError, described
from orchestrator.plan.yaml import (
    KeyPath,
    Mapping,
    Problem,
    line_of,
    read_tree,
    shown,
    unwrapped,
)

MAX_PROBLEMS = 500  # more than that is no plan, and nobody reads on
_SMALLEST = "the smallest plan has model, batches and contexts"
_EXAMPLES = {
    "model": "`model: mlx-community/Qwen3-8B-4bit`",
    "batches": "`batches: [1, 2, 4, 8]`",
    "contexts": "`contexts: [512, 4096]`",
    "name": "`name: kv8`",
}
_PLACEHOLDERS: dict[str, Any] = {"model": "none/none", "batches": (1,), "contexts": (2,)}
_FLAGS = {
    "model": "-m/--model",
    "batches": "-b/--batches",
    "contexts": "-c/--contexts",
    "gen_tokens": "-g/--gen-tokens",
    "reps": "-n/--reps",
    "name": "--name",
}


def load_plan(path: Path, *, frozen: bool = False) -> Plan:
    """The plan of a YAML file.

    `frozen` is for the resolved plan in a run directory: its folders need not exist (any more), and no path
    is looked for, so that a report can be made on another machine.

    Raises:
        PlanError: with every problem, as `file:line: key: what is wrong, what would be right`.
    """
    label = file_label(path)
    if not frozen and os.path.isfile(path / "plan.yaml"):  # noqa: PTH113  # never raises, unlike Path.is_file
        raise PlanError([f"{label}: is a run directory; give a plan file, or go on with `wallfinder resume {label}`"])
    text = read_text_file(path, "a plan file")
    return parse_plan(text, label, Place(path.absolute().parent, frozen), safe_name(path.stem))


def parse_plan(text: str, label: str, place: Place, name: str = "plan") -> Plan:
    """The plan of a YAML text; `label` names it in messages, `name` is the plan's name where it gives none.

    Raises:
        PlanError: with every problem.
    """
    tree, problems = read_tree(text)
    if tree is None and not problems:
        problems = [Problem(None, (), f"holds no plan; {_SMALLEST}")]
    plan = None
    if isinstance(tree, Mapping):
        plan, found = _build(typing.cast("dict[str, Any]", unwrapped(tree)), place, name)
        problems += [Problem(line_of(tree, path), path, text) for path, text in found]
    elif tree is not None:
        problems.append(Problem(tree.line, (), f"{described(unwrapped(tree))} is no plan; {_SMALLEST}"))
    if problems or plan is None:
        raise _refusal(problems, label)
    return plan


def load_watchdog(path: Path) -> Watchdog:
    """The watchdog's thresholds out of a YAML file: a plan, of which only its own `watchdog:` is looked at (without
    one: the defaults), a `watchdog:` alone, or that block's keys alone.

    Raises:
        PlanError: with every problem.
    """
    label = file_label(path)
    tree, problems = read_tree(read_text_file(path, "a plan, or of a file with its `watchdog:` block"))
    plan = None
    if isinstance(tree, Mapping) and tree.entries:
        raw, known = typing.cast("dict[str, Any]", unwrapped(tree)), set(_keys(PlanFile))
        within: KeyPath = () if known.isdisjoint(raw) else ("watchdog",)
        block = raw.get("watchdog", {}) if within else raw
        plan, found = _build({**_PLACEHOLDERS, "watchdog": block}, Place(Path()), "plan")
        found = [((*within, *key[1:]), text) for key, text in found]
        found += [((key,), _unknown_key((key,))) for key in raw if within and key not in known]
        problems += [Problem(line_of(tree, key), key, text) for key, text in found]
    elif not problems:
        problems = [Problem(None, (), "holds no thresholds; write for instance `watchdog: {stall: {hard: 30s}}`")]
    if problems or plan is None:
        raise _refusal(problems, label)
    return plan.watchdog


def plan_from_options(
    model: str,
    batches: tuple[int, ...],
    contexts: tuple[int, ...],
    gen_tokens: int | None = None,
    reps: int | None = None,
    name: str | None = None,
) -> Plan:
    """The plan of `wallfinder run -m MODEL -b 1,2,4 -c 512,4096`; None takes the plan's default.

    Raises:
        PlanError: with every problem, as `flag: what is wrong, what would be right`.
    """
    options = {
        "model": model,
        "batches": batches,
        "contexts": contexts,
        "gen_tokens": gen_tokens,
        "reps": reps,
    }
    raw = {key: value for key, value in {**options, "name": name}.items() if value is not None}
    default = safe_name(model.rstrip("/").rpartition("/")[2])
    plan, found = _build(raw, Place(Path()), default)
    if found or plan is None:
        raise PlanError(list(dict.fromkeys(f"{_FLAGS[str(path[0])]}: {text}" for path, text in found)))
    return plan


def rename_plan(plan: Plan, name: str) -> Plan:
    """The plan under another name, as `--name` asks.

    Raises:
        PlanError: the name cannot be that of a folder.
    """
    try:
        return plan.model_copy(update={"name": read_name(name)})
    except UnreadableError as error:
        raise PlanError([f"{_FLAGS['name']}: {error}"]) from None


def _refusal(problems: list[Problem], label: str) -> PlanError:
    """All problems in the order of their lines, each once."""
    problems = sorted(problems, key=lambda problem: problem.line or 0)
    rendered = list(dict.fromkeys(problem.render(label) for problem in problems))
    more = len(rendered) - MAX_PROBLEMS
    return PlanError(rendered[:MAX_PROBLEMS] + ([f"{label}: and {more} problems more"] if more > 0 else []))


def _build(raw: dict[str, Any], place: Place, name: str) -> tuple[Plan | None, list[Complaint]]:
    """The plan, or what is wrong; keys that can be read are judged even where others cannot."""
    found: list[Complaint] = []
    try:
        file = PlanFile.model_validate(raw, context=place)
    except ValidationError as error:
        details = error.errors(include_url=False)
        for detail in details[:MAX_PROBLEMS]:
            found += _complaints_of(detail)
        unread = [path for path, _ in found] + [detail["loc"] for detail in details[MAX_PROBLEMS:]]
        file = _readable(raw, unread, place)
    bad = frozenset(path for path, _ in found)
    variants = tuple(_resolved(file, variant) for variant in file.variants)
    found += complaints(Drafted(file, variants, bad))
    if found:
        return None, found
    values = {key: getattr(file, key) for key in Plan.model_fields}
    return Plan.model_construct(**{**values, "name": file.name or name, "variants": variants}), []


def _readable(raw: dict[str, Any], unread: list[KeyPath], place: Place) -> PlanFile:
    """The plan without the keys that could not be read, defaults in their place."""
    pruned = {**_PLACEHOLDERS, **copy.deepcopy(raw)}
    for path in unread:
        _prune(pruned, path)
    pruned = {**_PLACEHOLDERS, **pruned}
    try:
        return PlanFile.model_validate(pruned, context=place)
    except ValidationError as error:  # something needed is not there, such as the name of a variant
        whole = {detail["loc"][0] for detail in error.errors(include_url=False)}
        kept = {key: value for key, value in pruned.items() if key not in whole}
        return PlanFile.model_validate({**_PLACEHOLDERS, **kept}, context=place)


def _prune(raw: dict[str, Any], path: KeyPath) -> None:
    """Takes out the innermost mapping's key on the path; of `model` all, since its keys are free."""
    holder, key = raw, path[0]
    node: Any = raw
    for part in path if path[0] != "model" else path[:1]:
        if isinstance(node, dict):
            holder, key = node, part
        node = node.get(str(part)) if isinstance(node, dict) else _item(node, part)
    holder.pop(str(key), None)


def _item(node: Any, part: str | int) -> Any:
    return node[part] if isinstance(node, list) and isinstance(part, int) and part < len(node) else None


def _resolved(file: PlanFile, own: VariantFile) -> Variant:
    """The variant's settings: the plan's, with the variant's own on top; watchdog and env key by key."""
    values = {key: getattr(file, key) for key in Settings.model_fields}
    if "model" in own.model_fields_set:  # another model's revision, and trust in its code, are not this one's
        values |= {key: Settings.model_fields[key].default for key in ("revision", "trust_remote_code")}
    for key in own.model_fields_set:
        value = getattr(own, key)
        if key == "env":
            value = dict(sorted({**values["env"], **value}.items()))
        values[key] = _laid_over(values[key], value) if key == "watchdog" else value
    return Variant.model_construct(**values)


def _laid_over(below: BaseModel, above: BaseModel) -> BaseModel:
    update = {}
    for key in above.model_fields_set:
        value = getattr(above, key)
        update[key] = _laid_over(getattr(below, key), value) if isinstance(value, BaseModel) else value
    return below.model_copy(update=update)


# -- pydantic's errors in our words


def _complaints_of(detail: ErrorDetails) -> Iterator[Complaint]:
    path: KeyPath = tuple(detail["loc"])
    kind = detail["type"]
    if kind == "plan":
        for below, text in detail["ctx"]["problems"]:
            yield (*path, *below), text
    elif kind == "missing":
        key = str(path[-1])
        yield path, f"is missing; write {_EXAMPLES.get(key, key)}"
    elif kind == "extra_forbidden":
        yield path, _unknown_key(path)
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        keys = ", ".join(list(_keys(_model_at(path)))[:3])
        yield (
            path,
            f"{described(detail['input'])} stands where a mapping belongs; write its keys ({keys}, ...)",
        )
    else:
        yield path, detail["msg"]


def _unknown_key(path: KeyPath) -> str:
    key = str(path[-1])
    model = _model_at(path[:-1])
    known = list(_keys(model))
    if model is VariantFile and key in PlanFile.model_fields:
        return f"belongs to the whole plan and cannot differ by variant; a variant may give {', '.join(known)}"
    near = difflib.get_close_matches(key.lower().replace("-", "_"), known, n=1, cutoff=0.6)
    if near:
        return f"is not a key here; did you mean {near[0]}?"
    return f"is not a key here; the keys are {shown(', '.join(known), 600)}"


def _keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name


def _model_at(path: KeyPath) -> type[BaseModel]:
    """The model of which the key path names a part."""
    model: type[BaseModel] = PlanFile
    for part in path:
        for name, field in model.model_fields.items():
            if part == (field.alias or name):
                model = next(_models_in(field.annotation), model)
                break
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models_in(part)

"""Owns the resolved plan as data and as YAML text, readable again from anywhere; and its digest.

Does not write files. Keys of later versions are left out, since only their default is accepted.
"""

import hashlib
import json
import math
import re
from typing import Any

import yaml

from orchestrator.plan.model import Later, Plan
from orchestrator.plan.values import UnreadableError, read_free
from orchestrator.plan.yaml import Scalar

_FIRST = ("name", "model", "batches", "contexts")
_LAST = ("variants", "exclude")
# A variant that has a model of its own starts from these, not from the plan's.
_OF_A_MODEL: dict[str, Any] = {"revision": None, "trust_remote_code": False}


def plan_data(plan: Plan) -> dict[str, Any]:
    """The resolved plan as JSON values, as a plan file has them; of variants, what differs from the plan."""
    dump = plan.model_dump(mode="json", by_alias=True)
    middle = [key for key in dump if key not in (*_FIRST, *_LAST) and key not in Later.model_fields]
    data = {key: dump[key] for key in (*_FIRST, *middle)}
    base = dict(data)
    data = {key: value for key, value in data.items() if value != {}}
    if plan.variants:
        data["variants"] = [_overrides(variant, base) for variant in dump["variants"]]
    if plan.exclude:
        data["exclude"] = [{key: value for key, value in rule.items() if value} for rule in dump["exclude"]]
    return data


def _overrides(variant: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = {"name": variant["name"]}
    below = dict(base)
    if variant["model"] != base["model"]:
        below |= _OF_A_MODEL
    for key, value in variant.items():
        if key == "name" or value == below[key]:
            continue
        own[key] = _differing(value, below[key]) if key in ("watchdog", "env") else value
    return own


def _differing(value: dict[str, Any], below: dict[str, Any]) -> dict[str, Any]:
    differing = {}
    for key, item in value.items():
        if key not in below or item != below[key]:
            differing[key] = _differing(item, below[key]) if isinstance(item, dict) else item
    return differing


def plan_digest(plan: Plan) -> str:
    """SHA-256 of the resolved plan: equal plans have equal digests, on every machine."""
    text = json.dumps(plan_data(plan), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def plan_to_yaml(plan: Plan) -> str:
    """The resolved plan as the text of a plan file; folders are absolute, synthetic configs inline."""
    head = "# A plan of wallfinder, resolved: every key with its value, defaults included.\n"
    body: str = yaml.dump(
        plan_data(plan),
        Dumper=_PlanDumper,
        sort_keys=False,
        default_flow_style=None,
        width=100,
        allow_unicode=True,
    )
    return head + body


class _PlanDumper(yaml.SafeDumper):
    """Writes what values.py reads: quotes where text could be taken for something else; no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML calls it with one
        return True


def _reads_as_itself(text: str) -> bool:
    try:
        return read_free(Scalar(text, plain=True, line=0)) == text
    except UnreadableError:
        return False


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = re.fullmatch(r"[A-Za-z0-9_./][A-Za-z0-9_./%+-]*", text) is not None and _reads_as_itself(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


def _number(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = repr(value) if math.isfinite(value) else (".inf" if value > 0 else "-.inf")
    # PyYAML takes 1e-05 for text and would mark it as a number by a tag, which no plan may have.
    tag = dumper.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # not in the stubs
    return dumper.represent_scalar(tag, text)


_PlanDumper.add_representer(str, _text)
_PlanDumper.add_representer(float, _number)

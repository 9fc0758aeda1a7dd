"""Owns the comparison of two plans: what differs, and whether the new one only adds cells.

Does not decide what to do about it.

Free to change in a started sweep, since they do not alter what a cell measures or how it is judged: `name`,
`deadline`, `cooldown`, `retries`, `order`, `after_wall`, `sentinel`. `batches`, `contexts`, `variants` and `exclude`
may change as long as every old cell stays. `interleave` and everything in `Settings`, the time limit and the
watchdog's thresholds included, has to stay the same for the old cells.
"""

import json
from typing import Any

from orchestrator.plan.model import Plan
from orchestrator.plan.render import plan_data
from orchestrator.plan.yaml import shown

_NOTHING = "(left out)"


def plan_difference(old: Plan, new: Plan) -> list[str]:
    """What differs, a line each: `watchdog.swap_growth.soft: 1% -> 2%`; empty where the plans are equal."""
    before, after = _flat(plan_data(old)), _flat(plan_data(new))
    keys = list(dict.fromkeys((*before, *after)))
    return [
        f"{key}: {_shown(before, key)} -> {_shown(after, key)}"
        for key in keys
        if key not in before or key not in after or _shown(before, key) != _shown(after, key)
    ]


def only_adds_cells(old: Plan, new: Plan) -> bool:
    """Whether every cell of `old` is in `new` with the same settings; true for equal plans too."""
    if old.interleave != new.interleave or not set(old.cells()) <= set(new.cells()):
        return False
    return all(old.settings(name) == new.settings(name) for name in {cell.variant for cell in old.cells()})


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        path = f"{prefix}{shown(key)}"
        if key == "variants" and not prefix:
            for variant in item:
                flat[f"{path}.{variant['name']}"] = {k: v for k, v in variant.items() if k != "name"}
        elif isinstance(item, dict) and item:
            flat |= _flat(item, f"{path}.")
        else:
            flat[path] = item
    return flat


def _shown(flat: dict[str, Any], key: str) -> str:
    if key not in flat:
        return _NOTHING
    value = flat[key]
    return value if isinstance(value, str) else json.dumps(value)

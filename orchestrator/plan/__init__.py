"""Owns the plan: YAML text -> Plan, with every error at once. Import plans from here.

Does not run anything. `loading` reads, `model` says which keys there are, `checks` which contradict each other,
`render` writes a plan back, `change` compares two, `view` shows the dry run, `schema` describes the file to editors.
"""

from orchestrator.errors import PlanError
from orchestrator.plan.change import only_adds_cells, plan_difference
from orchestrator.plan.limits import held_against, resolve_limits
from orchestrator.plan.loading import load_plan, load_watchdog, parse_plan, plan_from_options, rename_plan
from orchestrator.plan.model import Cooldown, Plan, Settings, Variant, Watchdog
from orchestrator.plan.quantities import Share
from orchestrator.plan.render import plan_data, plan_digest, plan_to_yaml
from orchestrator.plan.schema import plan_json_schema
from orchestrator.plan.source import ModelRef, Place, Synthetic
from orchestrator.plan.text_types import Deadline

__all__ = [
    "Cooldown",
    "Deadline",
    "ModelRef",
    "Place",
    "Plan",
    "PlanError",
    "Settings",
    "Share",
    "Synthetic",
    "Variant",
    "Watchdog",
    "held_against",
    "load_plan",
    "load_watchdog",
    "only_adds_cells",
    "parse_plan",
    "plan_data",
    "plan_difference",
    "plan_digest",
    "plan_from_options",
    "plan_json_schema",
    "plan_to_yaml",
    "rename_plan",
    "resolve_limits",
]

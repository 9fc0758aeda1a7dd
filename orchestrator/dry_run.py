"""Owns the dry run: the plan of a file, its cells in order, told as text or JSON. Runs nothing and prints nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import schedule
from orchestrator.json_listing import json_listing
from orchestrator.plan import load_plan
from orchestrator.plan.view import plan_json, plan_text

if TYPE_CHECKING:
    from pathlib import Path


def dry_run(plan_file: Path, *, as_json: bool) -> str:
    """What a plan would run, as text or JSON.

    Raises:
        PlanError: the plan is wrong.
    """
    plan = load_plan(plan_file)
    cells = schedule.ordered(plan.cells(), plan.order)
    if not as_json:
        return plan_text(plan, cells)
    document = plan_json(plan, cells)
    return "".join(json_listing(document, "cells", document.pop("cells")))

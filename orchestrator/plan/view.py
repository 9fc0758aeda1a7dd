"""Owns what a dry run shows: the plan, its cells in order, and what would run; as text, and as data.

Does not order cells or predict memory, and prints nothing: the order is that of the cells it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.cells import Cell
from orchestrator.plan.model import Plan, Settings
from orchestrator.plan.quantities import render_duration
from orchestrator.plan.render import plan_data, plan_digest, plan_to_yaml
from worker.repeats import Repeats

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Work:
    """What one cell does at most, warm-up included; tokens are of all rows. Random fill computes no prompt."""

    repetitions: int
    prompt_tokens: int
    generated_tokens: int
    cache_tokens: int


def work_of(cell: Cell, settings: Settings) -> Work:
    """The work of a cell; `cache_tokens` is what its caches hold at the end of a repetition."""
    repetitions = settings.warmup + settings.repeats.most
    prompt = 0 if settings.context_fill == "random" else cell.batch * cell.context * repetitions
    return Work(
        repetitions=repetitions,
        prompt_tokens=prompt,
        generated_tokens=cell.batch * settings.gen_tokens * repetitions,
        cache_tokens=cell.batch * (cell.context + settings.gen_tokens),
    )


def plan_text(plan: Plan, cells: Sequence[Cell]) -> str:
    """The dry run as plain text, one line to a cell, ending in a newline."""
    lines = [
        "Resolved plan",
        *(f"  {line}" for line in plan_to_yaml(plan).splitlines() if not line.startswith("#")),
        "",
        f"Cells, in the order they would run ({len(cells)})",
        *_cell_lines(plan, cells),
        "",
        "What would run",
        *(f"  {line}" for line in _summary(plan, cells)),
    ]
    return "\n".join(lines) + "\n"


def _cell_lines(plan: Plan, cells: Sequence[Cell]) -> list[str]:
    width = max((len(cell.cell_id) for cell in cells), default=0)
    head = f"  {'#':>6}  {'cell':<{width}}  {'batch':>6}  {'context':>8}  {'prompt tokens':>15}"
    head += f"  {'generated':>12}"
    lines = [head]
    for number, cell in enumerate(cells, 1):
        work = work_of(cell, plan.settings(cell.variant))
        lines.append(
            f"  {number:>6}  {cell.cell_id:<{width}}  {cell.batch:>6}  {cell.context:>8}"
            f"  {work.prompt_tokens:>15,}  {work.generated_tokens:>12,}"
        )
    return lines


def _summary(plan: Plan, cells: Sequence[Cell]) -> list[str]:
    excluded = len(plan.contexts) * len(plan.batches) * max(1, len(plan.variants)) - len(cells)
    left_out = f", {excluded} of the grid left out" if excluded else ""
    retries = f"(crashed: {plan.retries.crashed}, failed: {plan.retries.failed})"
    lines = [f"{len(cells)} cells{left_out}; a worker process for each, and one more for each retry {retries}"]
    for variant in dict.fromkeys(cell.variant for cell in cells):
        settings = plan.settings(variant)
        named = "" if variant is None else f"{variant}: "
        lines.append(f"{named}{settings.model_ref}, {_method(settings)}")
        if settings.engine == "faulty":
            lines.append(f"{named}the faulty engine plays faults and measures nothing")
        if settings.worker_memory is not None:
            lines.append(f"{named}each worker is bound to {settings.worker_memory / 1e9:g} GB (Linux, as root)")
    total = sum(plan.settings(cell.variant).cell_time_limit for cell in cells)
    lines.append(f"{render_duration(total)} if every cell took its whole time limit, without retries and pauses")
    if plan.deadline is not None:
        lines.append(f"no cell is started after the deadline: {plan.deadline}")
    return lines


def _method(settings: Settings) -> str:
    kv = f", KV cache in {settings.kv_bits} bits" if settings.kv_bits is not None else ""
    fill = "random context" if settings.context_fill == "random" else f"prefill by {settings.prefill_step_size}"
    logits = ", all logits" if settings.prefill_logits == "all" else ""
    repetitions = f"{settings.warmup} warm-up and {_measured(settings.repeats)} measured repetitions"
    return f"engine {settings.engine}, {fill}{logits}{kv}, {repetitions} of {settings.gen_tokens} tokens"


def _measured(repeats: Repeats) -> str:
    if repeats.until_cv is None:
        return str(repeats.most)
    return f"{repeats.least} to {repeats.most} (until CV {repeats.until_cv:g})"


def plan_json(plan: Plan, cells: Sequence[Cell]) -> dict[str, Any]:
    """The dry run as JSON values: `{"schema": 1, "plan": ..., "digest": ..., "cells": [...]}`."""
    rows = []
    for cell in cells:
        settings = plan.settings(cell.variant)
        work = work_of(cell, settings)
        rows.append(
            {
                "cell_id": cell.cell_id,
                "variant": cell.variant,
                "context": cell.context,
                "batch": cell.batch,
                "model_kind": settings.model_ref.kind,
                "engine": settings.engine,
                "repetitions": work.repetitions,
                "prompt_tokens": work.prompt_tokens,
                "generated_tokens": work.generated_tokens,
                "cache_tokens": work.cache_tokens,
            }
        )
    return {"schema": SCHEMA, "plan": plan_data(plan), "digest": plan_digest(plan), "cells": rows}

"""Owns what a recording says of a wall: when it began, when it was called one, when the worker was dead. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, TypeAlias

from bench.sweeping import event, samples
from bench.tables import markdown, seconds

Lines: TypeAlias = list[dict[str, Any]]
INFLATED = 2.5
KERNEL_OOM = "kernel_oom"


@dataclass(frozen=True, slots=True)
class Wall:
    """One wall. Times in seconds from its beginning, as the scenario defines it; None: it did not come to that.

    `ended`: wallfinder ended it. `by_kernel`: the kernel's OOM killer was there first, as it may be in a bounded group
    whose pages do not reach a slow disk in time; then there is no verdict to time.
    """

    scenario: str
    cause: str | None
    verdict_s: float | None
    dead_s: float | None
    late_max_s: float | None
    steps_during: int
    ended: bool
    by_kernel: bool = False


def measure(scenario: str, lines: Lines, from_s: float | None, cause_on_record: str | None = None) -> Wall:
    """The wall of a recording that began at `from_s`; None: no step or page says that it began.

    `cause_on_record` is what the ledger says ended the cell.
    """
    acted, would, dead = event(lines, "acted"), event(lines, "would_act"), event(lines, "released")
    cause = acted["cause"] if acted else f"(observed: {would['cause']})" if would else None
    seen = samples(lines)
    late_s = max((line["late_s"] for line in seen), default=None)
    by_kernel = acted is None and cause_on_record == KERNEL_OOM
    cause = cause_on_record if by_kernel else cause
    if from_s is None:
        return Wall(scenario, cause, None, None, late_s, 0, ended=acted is not None, by_kernel=by_kernel)
    steps = [len(line["progress"].get("new_step_s", ())) for line in seen if line["monotonic_s"] > from_s]
    return Wall(
        scenario=scenario,
        cause=cause,
        verdict_s=round(acted["at_s"] - from_s, 3) if acted else None,
        dead_s=round(dead["at_s"] - from_s, 3) if dead else None,
        late_max_s=late_s,
        steps_during=sum(steps),
        ended=acted is not None,
        by_kernel=by_kernel,
    )


def first_inflated_s(lines: Lines, after_s: float) -> float | None:
    """When a step had first taken 2.5 times the median of those before `after_s`, finished or not."""
    seen = samples(lines)
    before = [s for line in seen if line["monotonic_s"] < after_s for s in line["progress"].get("new_step_s", ())]
    reference_s = statistics.median(before)
    for line in seen:
        progress = line["progress"]
        worst_s = max(progress["progress_age_s"], *progress.get("new_step_s", [0.0]))
        if line["monotonic_s"] > after_s and worst_s > INFLATED * reference_s:
            return float(line["monotonic_s"])
    return None


def first_swapped_s(lines: Lines, least_bytes: float) -> float | None:
    """When the worker, or its group, first had so much in swap."""
    for line in samples(lines):
        worker = line["worker"]
        if max(worker.get("cgroup_swapped_bytes", 0), worker.get("swapped_bytes", 0)) > least_bytes:
            return float(line["monotonic_s"])
    return None


def table(walls: list[Wall]) -> str:
    """A row per scenario, in Markdown."""
    heading = (
        "watched by",
        "runs",
        "ended",
        "by the kernel",
        "cause",
        "to verdict, s (p50 / p95 / max)",
        "to dead, s",
        "latest tick, s",
    )
    rows = []
    for scenario in dict.fromkeys(wall.scenario for wall in walls):
        of = [wall for wall in walls if wall.scenario == scenario]
        verdicts = [wall.verdict_s for wall in of if wall.verdict_s is not None]
        dead = [wall.dead_s for wall in of if wall.dead_s is not None and not wall.by_kernel]
        late = [wall.late_max_s for wall in of if wall.late_max_s is not None]
        causes = ", ".join(sorted({wall.cause for wall in of if wall.cause}))
        acted, by_kernel = sum(wall.ended for wall in of), sum(wall.by_kernel for wall in of)
        worst = f"{max(late):.2f}" if late else "-"
        rows.append((scenario, len(of), acted, by_kernel, causes or "-", seconds(verdicts), seconds(dead), worst))
    return markdown(heading, rows)

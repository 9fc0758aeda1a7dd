"""The policy by recorded traces: real walls are seen, at the latest when they were, and healthy cells left alone.

How each was recorded is in traces/README.md.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.replay import play
from orchestrator.thinning import thin
from orchestrator.watchdog.limits import Limits

TRACES = Path(__file__).with_name("traces")
# name -> the causes that tell it rightly, and how late in the attempt it may be called a wall, in seconds.
WALLS = {
    "wall_in_mid_decode": ({"swap_growth", "step_inflation", "memory_pressure"}, 0.5),
    "wall_in_the_fill": ({"swap_growth", "memory_pressure", "footprint"}, 0.5),
    "wall_of_a_whole_machine_in_the_fill": ({"swap_growth", "memory_pressure", "footprint"}, 0.5),
    "wall_of_a_whole_machine_in_mid_decode": ({"swap_growth", "step_inflation", "memory_pressure", "stalled"}, 0.5),
}
HEALTHY = sorted(path.name.removesuffix(".jsonl.gz") for path in TRACES.glob("healthy_*.jsonl.gz"))


def trace(name: str) -> tuple[Limits, list[dict[str, Any]]]:
    with gzip.open(TRACES / f"{name}.jsonl.gz") as file:
        lines = [json.loads(line) for line in file]
    known = {field.name for field in dataclasses.fields(Limits)}
    return Limits(**{key: value for key, value in lines[0]["limits"].items() if key in known}), lines


@pytest.mark.parametrize("name", WALLS)
def test_a_real_wall_is_seen_no_later_than_it_was(name: str) -> None:
    causes, later_s = WALLS[name]
    limits, lines = trace(name)
    played = play(lines, limits)

    assert played.acted is not None
    assert played.replayed is not None
    assert played.replayed.cause in causes
    assert played.replayed.after_s <= played.acted.after_s + later_s
    assert played.replayed.evidence["signals"]


@pytest.mark.parametrize("name", WALLS)
def test_nothing_is_called_a_wall_before_it_began(name: str) -> None:
    """Cut off where the first page had left for swap, the same trace is a healthy cell."""
    limits, lines = trace(name)

    def swapped(line: dict[str, Any]) -> int:
        worker = line.get("worker", {})
        return int(worker.get("cgroup_swapped_bytes", worker.get("swapped_bytes", 0)))

    first = next(at for at, line in enumerate(lines) if swapped(line) > 1_000_000)
    assert first > 20
    assert play(lines[:first], limits).replayed is None


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_cell_is_left_alone(name: str) -> None:
    limits, lines = trace(name)
    played = play(lines, limits)

    assert played.samples > 30
    assert played.replayed is None
    assert play(thin(lines), limits).replayed is None


def test_there_is_a_trace_of_each_kind() -> None:
    assert len(HEALTHY) >= 6
    assert all((TRACES / f"{name}.jsonl.gz").exists() for name in WALLS)
    assert all(path.stat().st_size < 100_000 for path in TRACES.iterdir())

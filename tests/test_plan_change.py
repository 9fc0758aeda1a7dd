"""Comparing plans, their digest, and the step to the watchdog's limits."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator.plan import (
    Deadline,
    Place,
    Plan,
    only_adds_cells,
    parse_plan,
    plan_difference,
    plan_digest,
    resolve_limits,
)
from orchestrator.watchdog.limits import Limits

KEYS = {"name": "n", "model": "a/b", "batches": "[1, 2]", "contexts": "[64, 128]"}


def plan(**changes: str) -> Plan:
    text = "".join(f"{key}: {value}\n" for key, value in {**KEYS, **changes}.items())
    return parse_plan(text, "p.yaml", Place(Path("/nowhere")))


def test_the_difference_names_keys_and_values() -> None:
    old = plan(variants="[{name: a}, {name: b, kv_bits: 8}]")
    new = plan(
        batches="[1, 2, 4]", reps="3", deadline='"07:00"', watchdog="{swap_growth: {soft: 2%}}",
        variants="[{name: b, kv_bits: 4}, {name: c}]",
    )  # fmt: skip
    assert set(plan_difference(old, new)) == {
        "batches: [1, 2] -> [1, 2, 4]",
        "reps: 5 -> 3",
        "deadline: null -> 07:00",
        "watchdog.swap_growth.soft: 1% -> 2%",
        "variants.a: {} -> (left out)",
        'variants.b: {"kv_bits": 8} -> {"kv_bits": 4}',
        "variants.c: (left out) -> {}",
    }
    assert plan_difference(old, old) == []


def test_equal_plans_have_equal_digests_and_others_have_not() -> None:
    assert plan_digest(plan(cell_time_limit="90s")) == plan_digest(plan(cell_time_limit="1m30s"))
    assert plan_digest(plan(env="{A: x, B: y}")) == plan_digest(plan(env="{B: y, A: x}"))
    assert plan_digest(plan(reps="4")) != plan_digest(plan())


@pytest.mark.parametrize(
    ("old", "new", "adds"),
    [
        ({}, {}, True),
        ({}, {"batches": "[4, 2, 1]"}, True),
        ({}, {"contexts": "[64, 128, 256]"}, True),
        ({}, {"batches": "[1]"}, False),
        ({}, {"exclude": "[{batches: [2]}]"}, False),
        ({"exclude": "[{batches: [2]}]"}, {}, True),
        ({}, {"variants": "[{name: a}]"}, False),
        ({"variants": "[{name: a}]"}, {"variants": "[{name: b, reps: 3}, {name: a}]"}, True),
        ({"variants": "[{name: a}]"}, {"variants": "[{name: a, reps: 3}]"}, False),
        ({"variants": "[{name: a, reps: 5}]"}, {"variants": "[{name: a}]"}, True),
        ({}, {"reps": "4"}, False),
        ({}, {"watchdog": "{stall: {soft: 5s}}"}, False),
        ({}, {"cell_time_limit": "31m"}, False),
        ({}, {"model": "a/c"}, False),
        (
            {},
            {"name": "m", "deadline": "8h", "cooldown": "{min: 1s}", "retries": "{crashed: 2}",
             "order": "as_written", "after_wall": "run_all"},
            True,
        ),
    ],
)  # fmt: skip
def test_what_only_adds_cells(old: dict[str, str], new: dict[str, str], adds: bool) -> None:
    assert only_adds_cells(plan(**old), plan(**new)) is adds


def test_limits_are_of_the_machines_memory() -> None:
    limits = resolve_limits(plan().settings(None), 48 * 10**9, 0.25)
    assert limits == Limits(
        memory_bytes=48 * 10**9, swap_soft_bytes=480_000_000, swap_hard_bytes=3_840_000_000,
        footprint_bytes=45_600_000_000, expected_step_s=0.25,
    )  # fmt: skip


def test_limits_are_of_the_workers_bound_where_it_has_one() -> None:
    settings = plan(
        worker_memory="400MB",
        cell_time_limit="10s",
        watchdog="{sample_every: 50ms, swap_growth: {soft: 1MB, hard: 30MB},"
        " step_inflation: {soft: 2, hard: 3, sustained: 1s},"
        " stall: {soft: 1s, hard: 2s}, pressure: {level: warning, sustained: 3s}, footprint: {limit: 50%}}",
    ).settings(None)
    assert resolve_limits(settings, 10**9, None) == Limits(
        memory_bytes=400_000_000, sample_every_s=0.05, swap_soft_bytes=1_000_000, swap_hard_bytes=30_000_000,
        inflation_soft=2.0, inflation_hard=3.0, inflation_sustained_s=1.0, stall_soft_s=1.0, stall_hard_s=2.0,
        pressure_level="warning", pressure_sustained_s=3.0, footprint_bytes=200_000_000, time_limit_s=10.0,
    )  # fmt: skip
    assert resolve_limits(settings, 10**8, None).memory_bytes == 10**8


def test_deadlines() -> None:
    evening = datetime(2026, 3, 10, 23, 0).astimezone()
    assert Deadline(clock="07:00").seconds_after(evening) == 8 * 3600
    assert Deadline(clock="23:00").seconds_after(evening) == 24 * 3600
    assert Deadline(clock="23:30").seconds_after(evening.astimezone(UTC)) == 1800
    assert Deadline(duration_s=90.0).seconds_after(evening) == 90.0
    assert plan(deadline="1h30m").deadline == Deadline(duration_s=5400.0)
    assert plan(deadline="7:05").deadline == Deadline(clock="07:05")

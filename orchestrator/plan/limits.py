"""Owns the step from a plan's thresholds (shares, percentages) to the watchdog's limits in bytes and seconds.

Does not act on them: the policy of the watchdog does.
"""

import dataclasses

from orchestrator.plan.model import Settings, Watchdog
from orchestrator.watchdog.limits import Limits


def resolve_limits(
    settings: Settings, memory_bytes: int, expected_step_s: float | None, expected_chunk_s: float | None = None
) -> Limits:
    """The limits of an attempt on a machine with `memory_bytes` of memory.

    With `worker_memory` the memory that counts is that bound, where it is smaller, and all shares are of it.
    `expected_step_s` and `expected_chunk_s` are the decode step and the prefill chunk that smaller cells predict, None
    where there are none.
    """
    bare = Limits(
        memory_bytes=min(memory_bytes, settings.worker_memory or memory_bytes),
        time_limit_s=settings.cell_time_limit,
        expected_step_s=expected_step_s,
        expected_chunk_s=expected_chunk_s,
    )
    return held_against(settings.watchdog, bare)


def held_against(dog: Watchdog, limits: Limits) -> Limits:
    """The limits of the same attempt with the thresholds of `dog`; its memory, time and expectations stay."""
    memory = limits.memory_bytes
    return dataclasses.replace(
        limits,
        sample_every_s=dog.sample_every_s,
        swap_soft_bytes=dog.swap_growth.soft.bytes_of(memory),
        swap_hard_bytes=dog.swap_growth.hard.bytes_of(memory),
        inflation_soft=dog.step_inflation.soft,
        inflation_hard=dog.step_inflation.hard,
        inflation_sustained_s=dog.step_inflation.sustained_s,
        stall_soft_s=dog.stall.soft_s,
        stall_hard_s=dog.stall.hard_s,
        pressure_level=dog.pressure.level,
        pressure_sustained_s=dog.pressure.sustained_s,
        footprint_bytes=dog.footprint.limit.bytes_of(memory),
    )

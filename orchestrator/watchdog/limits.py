"""Owns the resolved thresholds of one attempt, in bytes and seconds. Does not parse plans; pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Every rule is a threshold and a duration.

    `memory_bytes` is the memory that counts: the machine's, or the worker's own bound where it has one.
    `expected_step_s` and `expected_chunk_s` are what smaller completed cells predict for a decode step and for a
    prefill chunk of this cell at its full depth, None where there are none. Soft thresholds act when two signals
    agree for `corroborated_s`; hard ones act alone, sustained.
    """

    memory_bytes: int
    sample_every_s: float = 0.1
    swap_soft_bytes: int = 0
    swap_hard_bytes: int = 0
    inflation_soft: float = 2.5
    inflation_hard: float = 6.0
    inflation_sustained_s: float = 5.0
    stall_soft_s: float = 20.0
    stall_hard_s: float = 60.0
    pressure_level: str = "critical"  # warning | critical
    pressure_sustained_s: float = 5.0
    footprint_bytes: int = 0
    corroborated_s: float = 1.0
    swap_sustained_s: float = 5.0
    footprint_sustained_s: float = 5.0
    time_limit_s: float = 1800.0
    expected_step_s: float | None = None
    expected_chunk_s: float | None = None

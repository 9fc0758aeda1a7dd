"""Owns the conditions around a cell, power and heat, and which of them spoil its numbers. Pure; reads nothing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Conditions:
    """The host at one moment; None where it does not say."""

    power_source: str | None = None
    low_power_mode: bool | None = None
    thermal: str | None = None
    cpu_speed_limit_frac: float | None = None
    throttle_total: int | None = None
    gpu_time_s: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class CellConditions:
    """Before and after a cell."""

    start: Conditions
    end: Conditions

    def reasons(self, measured_s: float) -> tuple[str, ...]:
        """Why the numbers of the cell in between are in doubt."""
        return ()

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)

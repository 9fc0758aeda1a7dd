"""Owns the Cell, one (variant, context, batch) point of the grid. Does not own what happened to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid; `variant` is None where the plan has no variants."""

    variant: str | None
    context: int
    batch: int

    @property
    def cell_id(self) -> str:
        """Stable, readable and sortable: `c04096-b016`, or `VARIANT/c04096-b016`."""
        point = f"c{self.context:05d}-b{self.batch:03d}"
        return point if self.variant is None else f"{self.variant}/{point}"

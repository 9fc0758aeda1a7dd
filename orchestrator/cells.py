"""Owns the Cell, one (variant, context, batch) point of the grid. Does not own what happened to it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid; `variant` is None where the plan has no variants.

    `cell_id` is stable, readable and sortable: `c04096-b016`, or `VARIANT/c04096-b016`. It is kept, since everything
    asks for it.
    """

    variant: str | None
    context: int
    batch: int
    cell_id: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        point = f"c{self.context:05d}-b{self.batch:03d}"
        object.__setattr__(self, "cell_id", point if self.variant is None else f"{self.variant}/{point}")

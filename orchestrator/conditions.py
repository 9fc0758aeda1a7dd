"""Owns the conditions around a cell (power, heat, others on the GPU) and which of them spoil its numbers.

Does not read them (conditions_linux.py, conditions_macos.py). Pure.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HOT = frozenset(("heavy", "trapping", "sleeping"))  # macOS slows down from here on; `moderate` is any long load's
OTHERS_FRAC = 0.05  # of the time between the two readings: what another process may take of the GPU
_KEPT = 0.001  # of that time: less is not worth a line in the record


@dataclass(frozen=True, slots=True)
class Conditions:
    """The host at one moment of the monotonic clock; None where it does not say.

    `power_source` is `mains` or `battery`; `thermal` one of macOS' levels: nominal, moderate, heavy, trapping,
    sleeping; `cpu_speed_limit_frac` the share of its speed that macOS allows the CPU; `throttle_total` counts the
    times that Linux had to slow a core down. `gpu_processes` maps `name:pid` of each process that uses the GPU to its
    GPU time so far in seconds, None where only its presence is known.
    """

    at_s: float = 0.0
    power_source: str | None = None
    low_power_mode: bool | None = None
    thermal: str | None = None
    cpu_speed_limit_frac: float | None = None
    throttle_total: int | None = None
    gpu_processes: dict[str, float | None] | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, without processes, and without what is not known."""
        body = dataclasses.asdict(self)
        del body["at_s"], body["gpu_processes"]
        return {name: value for name, value in body.items() if value is not None}


@dataclass(frozen=True, slots=True)
class CellConditions:
    """Before a cell's worker was started, and after it had ended."""

    start: Conditions
    end: Conditions

    def reasons(self) -> tuple[str, ...]:
        """Why the numbers of the cell in between are in doubt: what is not known is no reason.

        `throttled`: heavy heat or a CPU held below its speed at either end, or a core slowed down in between.
        `on_battery` and `low_power_mode` at either end. `other_gpu_process`: one took over 5 % of the time, or was
        there where only that can be seen.
        """
        both = (self.start, self.end)
        checks = {
            "throttled": any(_is_slowed(one) for one in both) or self._throttled() > 0,
            "on_battery": any(one.power_source == "battery" for one in both),
            "low_power_mode": any(one.low_power_mode for one in both),
            "other_gpu_process": any(share is None or share > OTHERS_FRAC for share in self.gpu_shares().values()),
        }
        return tuple(name for name, applies in checks.items() if applies)

    def gpu_shares(self) -> dict[str, float | None]:
        """Of the time in between, what other processes took of the GPU, by name; None where that cannot be seen."""
        shares: dict[str, float | None] = {}
        for name, share in self._shares():
            held = shares.get(name, 0.0)
            shares[name] = None if share is None or held is None else held + share
        return {name: share for name, share in shares.items() if share is None or share >= _KEPT}

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; of processes their names only."""
        shares = {name: share if share is None else round(share, 4) for name, share in self.gpu_shares().items()}
        return {"start": self.start.to_json(), "end": self.end.to_json(), "gpu_others_frac": shares}

    def _throttled(self) -> int:
        before, after = self.start.throttle_total, self.end.throttle_total
        return 0 if before is None or after is None else after - before

    def _shares(self) -> Iterator[tuple[str, float | None]]:
        elapsed_s = self.end.at_s - self.start.at_s
        before = self.start.gpu_processes or {}
        for key, used_s in (self.end.gpu_processes or {}).items():
            name = key.rpartition(":")[0]
            if used_s is None:
                yield name, None
            elif elapsed_s > 0:
                yield name, max(0.0, used_s - (before.get(key) or 0.0)) / elapsed_s


def _is_slowed(one: Conditions) -> bool:
    return one.thermal in HOT or (one.cpu_speed_limit_frac is not None and one.cpu_speed_limit_frac < 1.0)

"""Owns how a record's evidence is named and told: which figures speak, in what order, in what words.

Does not gather figures (the watchdog does) and does not weigh them (policy.py, verdict.py). Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from orchestrator.quantities import amount, duration, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

Figure: TypeAlias = float | int | str

# What a reader wants to know, most telling first. Of the names in one row only the first that speaks is told.
_TELLING: tuple[tuple[str, ...], ...] = (
    ("swap_growth_bytes", "swap_growth_peak_bytes"),
    ("step_s",),
    ("step_inflation",),
    ("progress_age_s",),
    ("pressure_stall_frac", "pressure_stall_peak_frac", "pressure_level", "pressure_level_peak"),
    ("available_frac", "available_least_frac"),
    ("footprint_bytes", "footprint_peak_bytes"),
    ("compressor_growth_bytes", "compressor_growth_peak_bytes"),
    ("watchdog_late_peak_s",),
    ("oom_kills",),
    ("jetsam_report",),
    ("suspended_s",),
    ("elapsed_s",),
    ("unusable_samples",),
    ("ended_after_done",),
    ("exit_after_done",),
    ("unkillable",),
)
_LEADS: dict[str, tuple[str, ...]] = {
    "stalled": ("progress_age_s",),
    "footprint": ("footprint_bytes",),
    "memory_pressure": ("pressure_stall_frac", "available_frac"),
    "time_limit": ("elapsed_s",),
}
_WORDS = {
    "swap_growth_bytes": "swap",
    "swap_growth_peak_bytes": "swap",
    "step_s": "step",
    "step_inflation": "",
    "progress_age_s": "no progress for",
    "pressure_stall_frac": "stalled on memory",
    "pressure_stall_peak_frac": "stalled on memory",
    "pressure_level_peak": "pressure level",
    "available_frac": "memory available",
    "available_least_frac": "memory available",
    "footprint_peak_bytes": "footprint",
    "compressor_growth_bytes": "compressor",
    "compressor_growth_peak_bytes": "compressor",
    "watchdog_late_peak_s": "watchdog late",
    "suspended_s": "slept",
    "elapsed_s": "ran",
    "ended_after_done": "ended after its result:",
    "exit_after_done": "died after its result:",
    "unkillable": "",
}
# Below these a figure is the usual noise and says nothing.
_FLOORS = {"progress_age_s": 1.0, "step_inflation": 1.5, "pressure_level": 2, "pressure_level_peak": 2}
_CEILINGS = {"available_frac": 0.1, "available_least_frac": 0.1}  # above these likewise
_PEAK_NAMES = {
    "swap_growth": "swap_growth_peak_bytes",
    "pressure_stall_frac": "pressure_stall_peak_frac",
    "pressure_level": "pressure_level_peak",
    "available_frac": "available_least_frac",
    "compressor_growth_bytes": "compressor_growth_peak_bytes",
    "footprint": "footprint_peak_bytes",
    "watchdog_late": "watchdog_late_peak_s",
}


def with_units(memory_evidence: Mapping[str, Figure]) -> dict[str, Figure]:
    """The watchdog's memory evidence under names that end in their unit and say that these are the worst figures.

    They are not those of the moment at which the watchdog acted, which a record holds beside them.
    """
    return {_PEAK_NAMES.get(name, name): value for name, value in memory_evidence.items()}


def figures(evidence: Mapping[str, Figure], cause: str | None = None, most: int = 3) -> str:
    """The figures of a record's evidence that tell most: `swap +0.70 GB, step 2.3 s, 11x`."""
    leads = set(_LEADS.get(cause or "", ()))
    rows = sorted(_TELLING, key=leads.isdisjoint)
    told = [next((name for name in row if _speaks(name, evidence.get(name))), None) for row in rows]
    return ", ".join([figure(name, evidence[name]) for name in told if name is not None][:most])


def figure(name: str, value: Figure) -> str:
    """One figure in words; the unit is read off the end of its name."""
    if name == "unkillable":
        return "unkillable"
    if isinstance(value, str):
        return f"{_label(name, '')} {printable(value)}".strip()
    for unit, worded in _UNITS:
        if name.endswith(unit):
            sign = "+" if value > 0 and "growth" in name else ""
            return f"{_label(name, unit)} {sign}{worded(value)}".strip()
    if name == "step_inflation":
        return f"{value:.0f}x" if value >= 9.95 else f"{value:.1f}x"
    return f"{_label(name, '')} {value:g}".strip()


def _speaks(name: str, value: Figure | None) -> bool:
    if value is None or value == "":
        return False
    return isinstance(value, str) or _FLOORS.get(name, 1e-9) <= value <= _CEILINGS.get(name, math.inf)


def _label(name: str, unit: str) -> str:
    known = _WORDS.get(name)
    return name.removesuffix(unit).replace("_", " ").strip() if known is None else known


# Longest endings first: `_bytes_per_s` also ends in `_s`.
_UNITS = (
    ("_bytes_per_s", lambda value: f"{amount(value)}/s"),
    ("_bytes", amount),
    ("_ms", lambda value: duration(value / 1e3)),
    ("_frac", lambda value: f"{value * 100:.0f} %"),
    ("_s", duration),
)

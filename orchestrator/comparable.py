"""Owns whether what is measured now can stand beside what a run measured before: the same machine, the same versions.

Does not look at anything: facts come in as values. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HOST = (
    "system",
    "machine",
    "chip",
    "memory_bytes",
    "memory_limit_bytes",
    "wired_limit_bytes",
    "python",
    "wallfinder",
)
_PACKAGES = ("mlx", "mlx-lm")  # what computes; the others only bring models and read the machine


def host_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of the machine or its software is another than at the run's start, a line each: `mlx: 0.32.4 -> 0.33.0`.

    Both are what `HostFacts.to_json` gives. What one of them does not know, as of an older version, is no change.
    """
    return list(_changes(before, now))


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    pairs = [(key, before.get(key), now.get(key)) for key in _HOST]
    old, new = (versions if isinstance(versions := facts.get("versions"), dict) else {} for facts in (before, now))
    pairs += [(name, old.get(name), new.get(name)) for name in _PACKAGES]
    for key, was, is_now in pairs:
        if was is not None and is_now is not None and was != is_now:
            yield f"{key}: {was} -> {is_now}"

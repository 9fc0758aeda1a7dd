"""Owns where the conditions are read: the one place that selects the platform."""

from __future__ import annotations

from orchestrator.conditions import Conditions


def read_conditions() -> Conditions:
    """The conditions now."""
    return Conditions()

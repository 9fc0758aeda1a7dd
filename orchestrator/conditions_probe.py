"""Owns where the conditions around a cell are read: the one place that selects the platform. Does not judge them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.conditions import Conditions


def read_conditions() -> Conditions:
    """The conditions now. Some milliseconds on Linux, some dozens on macOS: never while something is measured."""
    if sys.platform == "darwin":
        from orchestrator.conditions_macos import read_macos  # one platform's reader is enough

        return read_macos(time.monotonic())
    else:
        from orchestrator.conditions_linux import read_linux  # one platform's reader is enough

        return read_linux(time.monotonic())

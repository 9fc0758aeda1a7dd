"""Owns when a plan's deadline has passed: a clock time by the wall clock, which goes on while the machine sleeps."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator import plan


class Deadline:
    """A plan's deadline, counted from when this is made; None never passes."""

    def __init__(self, deadline: plan.Deadline | None) -> None:
        self._at: dt.datetime | None = None
        self._at_s: float | None = None
        if deadline is None:
            return
        now = dt.datetime.now(dt.UTC)
        seconds = deadline.seconds_after(now)
        if deadline.clock is None:
            self._at_s = time.monotonic() + seconds
        else:
            self._at = now + dt.timedelta(seconds=seconds)

    def has_passed(self) -> bool:
        """Whether no other cell should be started. The wall clock decides for a clock time, the monotonic one else."""
        if self._at is not None:
            return dt.datetime.now(dt.UTC) >= self._at
        return self._at_s is not None and time.monotonic() >= self._at_s

"""Owns when a plan's deadline is, on the monotonic clock."""

from __future__ import annotations

import datetime
import time

from orchestrator.plan import Deadline


def monotonic_deadline(deadline: Deadline | None) -> float | None:
    """The monotonic time of the deadline in seconds, from now; a clock time means its next occurrence, local time."""
    if deadline is None:
        return None
    if deadline.duration_s is not None:
        return time.monotonic() + deadline.duration_s
    now = datetime.datetime.now().astimezone()
    return time.monotonic() + seconds_until(deadline.clock_time, now)


def seconds_until(clock_time: datetime.time, now: datetime.datetime) -> float:
    """Seconds from `now` until the next time that the clock shows `clock_time`."""
    at = now.replace(hour=clock_time.hour, minute=clock_time.minute, second=0, microsecond=0)
    if at <= now:
        at += datetime.timedelta(days=1)
    return (at - now).total_seconds()

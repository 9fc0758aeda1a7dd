"""Owns the pause between two cells: waits until the host is back near its baseline. Decides by reclaim.py.

Does not say what follows from a host that does not come back.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.reclaim import Baseline, CameBack, Step, came_back, moving, unsettled
from orchestrator.watchdog.probe import Probe, select_probe
from orchestrator.watchdog.sample import HostReading

if TYPE_CHECKING:
    from orchestrator.interrupts import Interrupts
    from orchestrator.plan import Cooldown

_FIRST_LOOK_S = 0.1
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Waited:
    """How long the pause was, what came back in it, and what kept the host unsettled at its end (None: nothing)."""

    seconds: float
    unsettled: str | None
    came_back: CameBack


class CoolDown:
    """Pauses after cells, against the baseline taken before the first."""

    def __init__(self, plan: Cooldown, memory_bytes: int) -> None:
        self._plan, self._memory_bytes = plan, memory_bytes
        self._probe: Probe | None = None
        self._baseline = Baseline(memory_bytes, HostReading())

    def take_baseline(self, refused: frozenset[str] = frozenset()) -> None:
        """Remembers the host as it is now; `refused` are readings that cannot be believed here (crosscheck.py)."""
        _, self._probe = select_probe(refused)
        self._baseline = Baseline(self._memory_bytes, self._read())

    def wait(self, interrupts: Interrupts) -> Waited:
        """Waits `cooldown.min`, then until the host is settled, at most `cooldown.max`; less if asked to stop."""
        started = time.monotonic()
        first = before = self._read()
        seen_at = moved_at = started
        look = _FIRST_LOOK_S
        while True:
            select.select([interrupts.fd], [], [], look)
            look = _LOOK_S
            now, after = time.monotonic(), self._read()
            step = Step(before, after, now - seen_at, now - moved_at)
            if moving(step, self._memory_bytes):
                moved_at = now
            because = unsettled(self._baseline, step)
            elapsed = now - started
            if interrupts.wanted or (because is None and elapsed >= self._plan.min_s):
                return Waited(elapsed, None, came_back(first, after))
            if elapsed >= max(self._plan.max_s, self._plan.min_s):
                return Waited(elapsed, because, came_back(first, after))
            before, seen_at = after, now

    def _read(self) -> HostReading:
        assert self._probe is not None, "the baseline is taken first"
        host, _ = self._probe.read()
        return host

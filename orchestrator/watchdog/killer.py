"""Owns the stop ladder: flag, SIGTERM, SIGKILL to the group, unkillable; and the rule of whom it may signal.

Does not decide that a worker must end (policy.py). The ladder itself is pure: `begin` and `climb` take the
time and say which rung is due; `Killer` is the thin shell that acts.

The flag comes first because a clean exit lets Metal give its wired memory back; a plain SIGKILL has left it
wired until reboot. Once begun the ladder goes on, also if progress resumes: the worker was told to stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FLAG, TERM, KILL, UNKILLABLE = "flag", "term", "kill", "unkillable"
_ORDER = (FLAG, TERM, KILL, UNKILLABLE)
KILL_AGAIN_S = 1.0  # a child forked while the group was signalled escapes the first one


@dataclass(frozen=True, slots=True)
class Graces:
    """How long each rung may take before the next, in seconds.

    Together under 45 s: a Mac whose watchdogd starves for 90 s panics.
    """

    flag_s: float
    term_s: float = 2.0
    kill_s: float = 30.0


def graces(step_s: float | None, footprint_bytes: int | None, wired: bool) -> Graces:
    """The graces of one ladder.

    The flag is seen between two steps, so its grace follows the recent step time. Where a clean exit matters
    (`wired`: a platform whose GPU memory stays wired after a SIGKILL) it also follows what has to be given
    back, at an assumed 10 GB/s. Elsewhere the flag is a courtesy, and half a second of it is enough.
    """
    at_least_s, at_most_s = (1.5, 10.0) if wired else (0.5, 0.5)
    wanted_s = 1.5 * (step_s or 0.0)
    if wired:
        wanted_s += (footprint_bytes or 0) / 10e9
    return Graces(flag_s=min(max(wanted_s, at_least_s), at_most_s))


@dataclass(frozen=True, slots=True)
class Ladder:
    """Where a stop stands: the rung last taken, and when."""

    rung: str
    rung_at_s: float
    graces: Graces


def begin(now_s: float, allowed: Graces, hurry: bool) -> Ladder:
    """The first rung: the flag, or SIGKILL at once where there is no time to ask."""
    return Ladder(KILL if hurry else FLAG, now_s, allowed)


def climb(ladder: Ladder, now_s: float, hurry: bool) -> Ladder:
    """The ladder at `now_s`: the same one, or the next rung where the grace has run out."""
    if hurry and ladder.rung in (FLAG, TERM):
        return Ladder(KILL, now_s, ladder.graces)
    allowed = {FLAG: ladder.graces.flag_s, TERM: ladder.graces.term_s, KILL: ladder.graces.kill_s}
    if ladder.rung == UNKILLABLE or now_s - ladder.rung_at_s < allowed[ladder.rung]:
        return ladder
    return Ladder(_ORDER[_ORDER.index(ladder.rung) + 1], now_s, ladder.graces)


def signal_group(pid: int, number: int) -> bool:
    """Signals the process group `pid` leads; whether there was anybody to signal.

    Never the process alone: a worker leads its group from before its start on, so a number without a group is
    another's, or nobody's. The leader must not have been reaped by now. macOS answers EPERM for a
    group of zombies only, which is nobody to signal as well.
    """
    if pid <= 1:
        raise ValueError(f"{pid} is no worker")
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_cgroup(cgroup_dir: str | None) -> int:
    """SIGKILL to every process in the worker's own cgroup, which holds what it started; how many."""
    if cgroup_dir is None:
        return 0
    try:
        with open(f"{cgroup_dir}/cgroup.procs", encoding="ascii") as file:  # noqa: PTH123 - pathlib costs the watchdog 0.8 MB
            pids = [int(line) for line in file]
    except (OSError, ValueError):
        return 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


class Killer:
    """Walks one worker down the ladder. Nobody reaps the worker while this object acts on it."""

    def __init__(self, pid: int, request_stop: Callable[[], None]) -> None:
        self._pid = pid
        self._request_stop = request_stop
        self._ladder: Ladder | None = None
        self._hurry = False
        self._signalled_at_s = 0.0
        self.rungs: list[tuple[str, float]] = []

    @property
    def is_unkillable(self) -> bool:
        """Whether the worker outlived the whole ladder."""
        return self._ladder is not None and self._ladder.rung == UNKILLABLE

    def start(self, now_s: float, allowed: Graces, *, hurry: bool = False) -> list[str]:
        """Takes the first rung, or jumps to SIGKILL where the ladder stands already and `hurry` is new."""
        if self._ladder is not None:
            self._hurry = self._hurry or hurry
            return self.tick(now_s)
        self._hurry = hurry
        self._ladder = begin(now_s, allowed, hurry)
        return [self._take(self._ladder)]

    def tick(self, now_s: float) -> list[str]:
        """Takes the rung that is due, if one is; its name. Call it only while the worker lives."""
        if self._ladder is None:
            return []
        ladder = climb(self._ladder, now_s, self._hurry)
        if ladder == self._ladder:
            if ladder.rung == KILL and now_s - self._signalled_at_s >= KILL_AGAIN_S:
                self._signalled_at_s = now_s
                signal_group(self._pid, signal.SIGKILL)
            return []
        self._ladder = ladder
        return [self._take(ladder)]

    def _take(self, ladder: Ladder) -> str:
        self._signalled_at_s = ladder.rung_at_s
        if ladder.rung == FLAG:
            self._request_stop()
        elif ladder.rung == TERM:
            signal_group(self._pid, signal.SIGTERM)
            signal_group(self._pid, signal.SIGCONT)  # a stopped worker cannot see the other one
        elif ladder.rung == KILL:
            signal_group(self._pid, signal.SIGKILL)
        self.rungs.append((ladder.rung, ladder.rung_at_s))
        return ladder.rung


def released_rungs(rungs: list[tuple[str, float]]) -> list[list[str | float]]:
    """The rungs as the wire carries them."""
    return [[name, round(at_s, 3)] for name, at_s in rungs]

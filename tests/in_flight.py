"""Finds the processes of a sweep that runs, and the moment of a cell at which a test interferes with them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psutil
from sweeps import wait_until

from orchestrator.errors import WallfinderError
from orchestrator.recordings import recorded_lines

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

    from sweeps import Desk

ROLES = ("orchestrator", "watchdog", "worker")


def progress_of(at: Desk, cell_id: str, name: str = "night", attempt: int = 1) -> Mapping[str, object]:
    """The last progress in an attempt's recording; empty where there is none yet."""
    path = at.runs / name / "cells" / cell_id / f"attempt-{attempt}" / "samples.jsonl"
    with contextlib.suppress(WallfinderError):
        for line in reversed(list(recorded_lines(path))):
            if "progress" in line:
                return dict(line["progress"])
    return {}


def phase_of(at: Desk, cell_id: str, name: str = "night", attempt: int = 1) -> object:
    """Where an attempt is, by its recording; None where that does not say."""
    return progress_of(at, cell_id, name, attempt).get("phase")


def until_standing(at: Desk, sweep: subprocess.Popen[str], cell_id: str, phase: str) -> None:
    """Waits until the first attempt of a cell has stood still in that phase for longer than a step takes."""

    def stands() -> bool:
        assert sweep.poll() is None, sweep.communicate()
        progress = progress_of(at, cell_id)
        age_s = progress.get("progress_age_s", 0.0)
        return progress.get("phase") == phase and isinstance(age_s, float) and age_s > 0.1

    wait_until(stands, limit_s=60.0)


def elders(sweep: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    """The orchestrator and its children, watchdog and worker, by role; those that live."""
    found = {"orchestrator": psutil.Process(sweep.pid)}
    for process in found["orchestrator"].children():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            role = "watchdog" if "wallfinder-watchdog" in line else "worker" if "worker" in line else None
            if role is not None:
                found[role] = process
    return found


def until_three(sweep: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    """The three, once all of them are there."""
    wait_until(lambda: len(elders(sweep)) == 3)
    return elders(sweep)


def stop(process: psutil.Process) -> None:
    """SIGSTOP, and back when it has taken effect."""
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)


def stopped_for(process: psutil.Process, seconds: float) -> None:
    """Keeps a process stopped for that long, and lets it go on."""
    stop(process)
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(seconds)  # the time that is tested: it does not end while it is stopped
    process.resume()


def until_gone(at: Desk, sweep: subprocess.Popen[str], limit_s: float = 10.0) -> None:
    """Waits for the end of a sweep, and then of everything that it started."""
    sweep.communicate(timeout=120)
    wait_until(lambda: not at.left_behind(), limit_s)

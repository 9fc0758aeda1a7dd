"""What the two parents of a worker cost: memory and processor time, flat over a thousand cells."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import pytest
from sweeps import desk

if TYPE_CHECKING:
    from pathlib import Path

CELLS = 1000
WATCHDOG_BYTES = 16e6
ORCHESTRATOR_BYTES = 80e6


@dataclass(frozen=True)
class Reading:
    cells: int
    rss_bytes: int
    descriptors: int


def read(process: psutil.Process, cells: int) -> Reading:
    return Reading(cells, process.memory_info().rss, process.num_fds())


def watchdog_of(orchestrator: psutil.Process) -> psutil.Process | None:
    for child in orchestrator.children():
        with contextlib.suppress(psutil.Error):
            if "orchestrator.watchdog" in " ".join(child.cmdline()):
                return child
    return None


def growth(readings: list[Reading]) -> float:
    """By how much the largest reading of the last tenth is over the largest of the tenth from 20 % on."""
    early = [r.rss_bytes for r in readings if 0.2 <= r.cells / CELLS <= 0.3]
    late = [r.rss_bytes for r in readings if r.cells / CELLS >= 0.9]
    return max(late) - max(early)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_neither_parent_grows_over_a_thousand_cells(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(batches=list(range(1, CELLS + 1)), gen_tokens=3, reps=1, warmup=0)
        with (tmp_path / "progress.txt").open("wb") as progress:
            process = at.start("run", plan, "-o", at.runs, "--plain", stdout=progress, stderr=subprocess.STDOUT)
        orchestrator, watchdog = psutil.Process(process.pid), None
        ours: list[Reading] = []
        dogs: list[Reading] = []
        dog_cpu_s, dog_since, dog_until = 0.0, 0.0, 0.0
        while process.poll() is None:
            with contextlib.suppress(psutil.Error, OSError):
                cells = sum(1 for _ in (at.runs / "night" / "cells").iterdir())
                ours.append(read(orchestrator, cells))
                watchdog = watchdog or watchdog_of(orchestrator)
                if watchdog is not None:
                    dogs.append(read(watchdog, cells))
                    dog_since = dog_since or watchdog.create_time()
                    dog_until, dog_cpu_s = time.time(), sum(watchdog.cpu_times()[:2])
            time.sleep(0.25)  # the readings' period
        assert process.returncode == 0, (tmp_path / "progress.txt").read_text()[-2000:]
        assert len(at.verdicts()) == CELLS

    share = dog_cpu_s / (dog_until - dog_since)
    print(
        f"orchestrator {max(r.rss_bytes for r in ours) / 1e6:.1f} MB, grew {growth(ours) / 1e6:.2f} MB; "
        f"watchdog {max(r.rss_bytes for r in dogs) / 1e6:.1f} MB, grew {growth(dogs) / 1e6:.2f} MB, "
        f"{100 * share:.2f} % of a core"
    )
    assert max(r.rss_bytes for r in ours) <= ORCHESTRATOR_BYTES
    if sys.platform == "linux":  # elsewhere an interpreter alone may take more
        assert max(r.rss_bytes for r in dogs) <= WATCHDOG_BYTES
    assert growth(dogs) <= 0.25e6
    # The ledger's history of 700 more cells is held in memory: about 2 KB each.
    assert growth(ours) <= 3e6
    assert share <= 0.02, "1 % is the goal and what is measured on a quiet machine; twice that on a noisy one"
    # The least of a window is what is held between two cells; the most depends on which moment of a start was read.
    assert min(r.descriptors for r in ours[-40:]) <= min(r.descriptors for r in ours[40:80])
    assert min(r.descriptors for r in dogs[-40:]) <= min(r.descriptors for r in dogs[40:80])

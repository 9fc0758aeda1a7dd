"""Records the traces of tests/test_policy_traces.py: real walls, and healthy cells that could be taken for one.

    python -m bench.record_traces tests/traces

Root on Linux, with swap. A trace is an attempt's recording as it lies in a run directory, compressed.
"""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bench.detection import CELL, PLAN, ROOMY, TIGHT, TIGHT_BYTES, is_decoding, lower_bound, worker_group
from bench.false_kills import kinds
from bench.real_wall import swap_file
from bench.sweeping import Sweeping, end_in_order

if TYPE_CHECKING:
    from collections.abc import Callable

SWAP_BYTES = 2_000_000_000
HEALTHY = {
    "healthy_cache_growth": "cache growth in the window, steps over 50 ms",
    "healthy_busy_neighbours": "a busy loop on every processor",
    "healthy_swapping_neighbour": "a neighbour that swaps in a group of its own",
    "healthy_idle_programs_swapped_out": "idle programs swapped out in bursts",
    "healthy_worker_stopped": "the worker stopped for a second, now and then",
    "healthy_watchdog_stopped": "the watchdog stopped for a second, now and then",
}


def main() -> int:
    """Records every trace into the folder named on the command line."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    end_in_order()
    walls: dict[str, Callable[[Path], Path]] = {"wall_in_mid_decode": _mid_decode, "wall_in_the_fill": _in_the_fill}
    with swap_file(SWAP_BYTES):
        for name, record in walls.items():
            with tempfile.TemporaryDirectory(prefix="wallfinder-bench-") as folder:
                _keep(record(Path(folder)), target / f"{name}.jsonl.gz")
        for name, kind in HEALTHY.items():
            with tempfile.TemporaryDirectory(prefix="wallfinder-bench-") as folder:
                _keep(_healthy(Path(folder), kind), target / f"{name}.jsonl.gz")
    return 0


def _keep(recording: Path, target: Path) -> None:
    with target.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.write(recording.read_bytes())
    print(f"{target}: {target.stat().st_size} bytes", file=sys.stderr)


def _recording(run: Path, cell_id: str) -> Path:
    return run / "cells" / cell_id / "attempt-1" / "samples.jsonl"


def _mid_decode(folder: Path) -> Path:
    with Sweeping(folder, {**PLAN, "worker_memory": ROOMY}, "wall") as sweep:
        sweep.wait_for(lambda: is_decoding(sweep.run), 120)
        lower_bound(worker_group(sweep.process.pid), TIGHT_BYTES)
        return _recording(sweep.wait(180).run, CELL)


def _in_the_fill(folder: Path) -> Path:
    with Sweeping(folder, {**PLAN, "worker_memory": TIGHT}, "wall") as sweep:
        return _recording(sweep.wait(180).run, CELL)


def _healthy(folder: Path, name: str) -> Path:
    kind = next(kind for kind in kinds() if kind.name == name)
    context = kind.plan["contexts"][-1]
    plan = {**kind.plan, "contexts": [context], "batches": [6], "gen_tokens": 40}
    plan.pop("variants", None)
    with Sweeping(folder, plan, "healthy") as sweep, kind.bear(psutil.Process(sweep.process.pid)):
        ended = sweep.wait(300)
    verdicts = [cell["verdict"] for cell in ended.cells()]
    if verdicts != ["completed"]:
        raise RuntimeError(f"{name}: {verdicts}, so this is no trace of a healthy cell{os.linesep}{ended.output}")
    return _recording(ended.run, f"c{context:05}-b006")


if __name__ == "__main__":
    sys.exit(main())

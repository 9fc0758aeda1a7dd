"""A wall that the whole machine feels: from the first overdue step to the verdict and to a dead worker.

    python -m bench.machine_wall --runs 5

Root, on a small machine with swap that may thrash: everything on it will stall for a while. Written for a virtual
machine with 512 MB of memory, 2 GB of swap and two slow processors. Nothing is bounded by a control group.

- decode: a cell decodes in good health; then another program takes memory and keeps touching it, so that worker,
  orchestrator and watchdog have to share what is left. A step is overdue once it has taken 2.5 times the median of
  those before.
- fill: the cache itself is larger than memory. The clock starts with the first 1 % of memory that the worker has in
  swap.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.sweeping import WALL_MODEL, Sweeping, end_in_order, recording, samples
from bench.walls import Wall, first_inflated_s, first_swapped_s, measure, table

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAN: dict[str, Any] = {
    "model": WALL_MODEL,
    "contexts": [4096],
    "context_fill": "random",
    "gen_tokens": 400,
    "reps": 1,
    "warmup": 0,
    "cell_time_limit": "20m",
    "cooldown": {"max": "60s", "on_timeout": "mark"},
}
_HOG = """
import os, sys, time
held = bytearray(int(sys.argv[1]))
for at in range(0, len(held), 4096):
    held[at : at + 16] = os.urandom(16)
print(1, flush=True)
while True:
    for at in range(0, len(held), 4096):
        held[at] = (held[at] + 1) % 256
"""
_LIMIT_S = 1500


def main() -> int:
    """Runs the walls and prints a table."""
    options = _options()
    end_in_order()
    walls: list[Wall] = []
    for scenario in options.scenario or ("decode", "fill"):
        for number in range(options.runs):
            with tempfile.TemporaryDirectory(prefix="wallfinder-bench-") as folder:
                play = _decode if scenario == "decode" else _fill
                walls.append(play(Path(folder), options))
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    for recording_path in Path(folder).rglob("samples.jsonl"):
                        shutil.copy(recording_path, options.keep / f"{scenario}-{number + 1}.jsonl")
            print(f"{scenario} {number + 1}/{options.runs}: {walls[-1]}", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps([asdict(wall) for wall in walls], indent=1))
    print(table(walls))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="walls per scenario (default 5)")
    parser.add_argument("--scenario", action="append", choices=["decode", "fill"], help="only these (default both)")
    parser.add_argument("--decode-batch", type=int, default=6, help="batch that fits (34 MB each, default 6)")
    parser.add_argument("--fill-batch", type=int, default=16, help="batch that does not fit (default 16)")
    parser.add_argument("--hog", type=int, default=250, help="MB that the other program takes (default 250)")
    parser.add_argument("--keep", type=Path, help="folder that gets every wall's recording")
    parser.add_argument("--json", type=Path, help="where every single result goes")
    return parser.parse_args()


def _decode(folder: Path, options: argparse.Namespace) -> Wall:
    cell_id = f"c04096-b{options.decode_batch:03}"
    with Sweeping(folder, {**PLAN, "batches": [options.decode_batch]}, "wall") as sweep:
        sweep.wait_for(lambda: _steps(sweep.run, cell_id) >= 8, _LIMIT_S)
        with _hog(options.hog * 1_000_000) as began_s:
            sweep.wait(_LIMIT_S)
        lines = recording(sweep.run, cell_id)
        return measure("in mid-decode, another program takes memory", lines, first_inflated_s(lines, began_s))


def _fill(folder: Path, options: argparse.Namespace) -> Wall:
    with Sweeping(folder, {**PLAN, "batches": [options.fill_batch]}, "wall") as sweep:
        sweep.wait(_LIMIT_S)
        lines = recording(sweep.run, f"c04096-b{options.fill_batch:03}")
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return measure("in the fill", lines, first_swapped_s(lines, 0.01 * memory_bytes))


def _steps(run: Path, cell_id: str) -> int:
    seen = samples(recording(run, cell_id))
    return int(seen[-1]["progress"]["total_steps"]) if seen and seen[-1]["progress"]["phase"] == "decode" else 0


@contextlib.contextmanager
def _hog(size_bytes: int) -> Iterator[float]:
    """Another program that takes memory and keeps touching it; when it began, on the monotonic clock."""
    began_s = time.monotonic()
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", _HOG, str(size_bytes)], stdout=subprocess.DEVNULL) as hog:
        try:
            yield began_s
        finally:
            hog.kill()


if __name__ == "__main__":
    sys.exit(main())

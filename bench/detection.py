"""How long a real wall goes on: from the first inflated step to the verdict and to a dead worker.

    python -m bench.detection --runs 20 --rival-runs 3

Root on Linux. The wall: a healthy decode of batch 16 (1 GB allowed, 0.7 GB needed) whose memory bound is lowered in
mid-decode, so that it goes on in swap; or, as configs/wall-linux.yaml has it, a bound that is met while the context
is filled. A step is inflated once it has taken 2.5 times the median of the steps before the bound was lowered,
finished or not. In the fill the clock starts with the first sample that shows 1 % of the bound in swap.

Rivals watch the same workload with wallfinder in `mode: observe`, which ends nothing, until --limit seconds after the
bound was lowered.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
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

from bench.real_wall import NoWallError, swap_file
from bench.sweeping import WALL_MODEL, Ended, Sweeping, end_in_order, recording, samples
from bench.walls import Wall, first_inflated_s, first_swapped_s, measure, table
from orchestrator.cgroup import WorkerCgroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SWAP_BYTES = 2_000_000_000
CELL = "c04096-b016"
PLAN: dict[str, Any] = {
    "model": WALL_MODEL,
    "batches": [16],
    "contexts": [4096],
    "context_fill": "random",
    "gen_tokens": 2000,
    "reps": 1,
    "warmup": 0,
    "cooldown": {"max": "30s", "on_timeout": "mark"},
}
ROOMY, TIGHT, TIGHT_BYTES = "1GB", "400MB", 400_000_000
INSIDE_ROOMY_BYTES, INSIDE_TIGHT_BYTES = 1_200_000_000, 480_000_000  # with orchestrator and watchdog in it
RIVALS: dict[str, list[str]] = {
    "nobody": [],
    "earlyoom": ["earlyoom", "-r", "0"],
    "nohang": ["nohang", "--monitor", "--config", "/etc/nohang/nohang.conf"],
}


def main() -> int:
    """Runs what was asked for and prints a table."""
    options = _options()
    end_in_order()
    walls: list[Wall] = []
    try:
        with swap_file(SWAP_BYTES):
            for scenario, runs, play in _programme(options):
                for number in range(runs):
                    with tempfile.TemporaryDirectory(prefix="wallfinder-bench-") as folder:
                        walls.append(play(Path(folder)))
                    print(f"{scenario} {number + 1}/{runs}: {walls[-1]}", file=sys.stderr, flush=True)
    except NoWallError as reason:
        print(f"no wall can be made here: {reason}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps([asdict(wall) for wall in walls], indent=1))
    print(table(walls))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="walls per scenario of wallfinder's (default 20)")
    parser.add_argument("--rival-runs", type=int, default=3, help="walls per rival (default 3)")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a rival gets (default 120)")
    parser.add_argument("--json", type=Path, help="where every single result goes")
    return parser.parse_args()


def _programme(options: argparse.Namespace) -> Iterator[tuple[str, int, Callable[[Path], Wall]]]:
    yield "wallfinder, in mid-decode", options.runs, _mid_decode
    yield "wallfinder, itself in the group that thrashes", options.runs, _inside
    yield "wallfinder, in the fill", options.runs, _in_the_fill
    for name, command in RIVALS.items():
        if command and shutil.which(command[0]) is None:
            print(f"{command[0]} is not installed: left out", file=sys.stderr)
            continue
        yield name, options.rival_runs, functools.partial(_rival, name, command, options.limit)


def _mid_decode(folder: Path) -> Wall:
    with Sweeping(folder, {**PLAN, "worker_memory": ROOMY}, "wall") as sweep:
        sweep.wait_for(lambda: is_decoding(sweep.run), 120)
        lowered_s = lower_bound(worker_group(sweep.process.pid), TIGHT_BYTES)
        return _measured("wallfinder, in mid-decode", sweep.wait(180), lowered_s)


def _inside(folder: Path) -> Wall:
    group = WorkerCgroup.create(INSIDE_ROOMY_BYTES, f"{os.getpid()}-inside")
    try:
        with Sweeping(folder, PLAN, "wall", before=lambda: group.add(os.getpid())) as sweep:
            sweep.wait_for(lambda: is_decoding(sweep.run), 120)
            lowered_s = lower_bound(Path(group.path), INSIDE_TIGHT_BYTES)
            return _measured("wallfinder, itself in the group that thrashes", sweep.wait(180), lowered_s)
    finally:
        group.remove()


def _in_the_fill(folder: Path) -> Wall:
    with Sweeping(folder, {**PLAN, "worker_memory": TIGHT}, "wall") as sweep:
        ended = sweep.wait(180)
        lines = recording(ended.run, CELL)
        began_s = first_swapped_s(lines, 0.01 * TIGHT_BYTES)
        return measure("wallfinder, in the fill", lines, began_s, ended.cells()[0]["cause"])


def _rival(name: str, command: list[str], limit_s: float, folder: Path) -> Wall:
    plan = {**PLAN, "worker_memory": ROOMY, "watchdog": {"mode": "observe"}, "retries": {"crashed": 0}}
    with _running(command, folder / "rival.log"), Sweeping(folder, plan, "wall") as sweep:
        sweep.wait_for(lambda: is_decoding(sweep.run), 120)
        lowered_s = lower_bound(worker_group(sweep.process.pid), TIGHT_BYTES)
        with contextlib.suppress(subprocess.TimeoutExpired):
            sweep.wait(limit_s)
        lines = recording(sweep.run, CELL)
        return measure(name, lines, first_inflated_s(lines, lowered_s))


@contextlib.contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    if not command:
        yield
        return
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield
        finally:
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} did not stay: {log.read_text()}")
            process.terminate()


def is_decoding(run: Path) -> bool:
    """Whether batch 16 has made twenty steps."""
    seen = samples(recording(run, CELL))
    return bool(seen) and seen[-1]["progress"]["phase"] == "decode" and seen[-1]["progress"]["step"] >= 20


def _measured(scenario: str, ended: Ended, lowered_s: float) -> Wall:
    lines = recording(ended.run, CELL)
    return measure(scenario, lines, first_inflated_s(lines, lowered_s), ended.cells()[0]["cause"])


def worker_group(owner: int) -> Path:
    """The control group of the worker that the sweep `owner` runs now."""
    found = [folder for folder in Path("/sys/fs/cgroup").rglob(f"wallfinder-{owner}-*") if folder.is_dir()]
    if len(found) != 1:
        raise RuntimeError(f"groups of the sweep {owner}: {found}")
    return found[0]


def lower_bound(group: Path, limit_bytes: int) -> float:
    """Lowers a bound, as often as the kernel refuses because pages do not leave fast enough; when it began."""
    began_s = time.monotonic()
    file = next(path for path in (group / "memory.limit_in_bytes", group / "memory.max") if path.exists())
    with contextlib.suppress(OSError):  # the group is gone: the worker was ended meanwhile
        while int(file.read_text()) > limit_bytes + 4096 and time.monotonic() < began_s + 60:
            with contextlib.suppress(OSError):
                file.write_text(str(limit_bytes))
    return began_s


if __name__ == "__main__":
    sys.exit(main())

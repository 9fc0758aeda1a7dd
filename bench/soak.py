"""A thousand tiny cells with random faults: does anything grow, is anything lost, does anything stay behind?

    python -m bench.soak --cells 1000

The test engine plays the faults, drawn with a fixed seed; what becomes of each is known beforehand. Resident memory,
descriptors and threads of orchestrator and watchdog are read while the sweep runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench.sweeping import Ended, Sweeping, end_in_order
from bench.tables import markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK = "WALLFINDER_SOAK"
# fault -> (how often, what becomes of the cell)
FAULTS: dict[str, tuple[int, str]] = {
    "": (300, "completed"),
    "slow:3": (60, "completed"),
    "garbage": (50, "completed"),
    "flood:2": (40, "completed"),
    "grandchild": (60, "completed"),
    "grandchild_session": (60, "completed"),
    "stderr_after_done": (40, "completed"),
    "segfault": (50, "crashed"),
    "segfault@load": (30, "crashed"),
    "exit": (40, "crashed"),
    "torn": (40, "crashed"),
    "early_death": (40, "crashed"),
    "sigkill": (40, "crashed"),
    "abort:timeout": (30, "crashed"),
    "abort:oom": (30, "hit_the_wall"),
    "abort:buffer": (20, "hit_the_wall"),
    "memory_error": (30, "hit_the_wall"),
    "error": (30, "hit_the_wall"),
    "hang": (4, "timed_out"),
    "hang_gil": (3, "timed_out"),
    "spin@prefill": (3, "timed_out"),
}
_STALL = {"stall": {"soft": "1s", "hard": "3s"}}


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds at one moment of the sweep."""

    cells: int
    who: str
    rss_bytes: int
    descriptors: int
    threads: int


def main() -> int:
    """Runs the sweep and prints two tables; exit status 1 where a verdict is wrong or something stayed behind."""
    options = _options()
    end_in_order()
    plan, expected = make_plan(options.cells, options.seed)
    os.environ[MARK] = uuid.uuid4().hex  # inherited by all that the sweep starts
    with tempfile.TemporaryDirectory(prefix="wallfinder-bench-") as folder:
        with Sweeping(Path(folder), plan, "soak") as sweep:
            seen = watch(sweep, options.cells)
            ended = sweep.wait(60)
        wrong = wrong_verdicts(ended, expected)
    left = left_behind()
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in seen], indent=1))
    print(table(seen))
    print(f"\n{options.cells} cells; another verdict than the fault's: {len(wrong)}; left behind: {len(left)}")
    for line in (*wrong[:20], *left):
        print(f"- {line}")
    return int(bool(wrong or left))


def make_plan(cells: int, seed: int) -> tuple[dict[str, Any], dict[str, str]]:
    """A plan of so many cells (a multiple of ten), and what is to become of each."""
    contexts = [64 + n for n in range(cells // 10)]
    kinds, weights = list(FAULTS), [often for often, _ in FAULTS.values()]
    drawn = random.Random(seed).choices(kinds, weights, k=10 * len(contexts))
    ids = [f"c{context:05}-b{batch:03}" for context in contexts for batch in range(1, 11)]
    faults = dict(zip(ids, drawn, strict=True))
    plan: dict[str, Any] = {
        "model": {"synthetic": {"model_type": "llama", "hidden_size": 64}},
        "engine": "faulty",
        "batches": list(range(1, 11)),
        "contexts": contexts,
        "order": "as_written",
        "gen_tokens": 4,
        "reps": 1,
        "warmup": 0,
        "after_wall": "run_all",
        "retries": {"crashed": 0, "failed": 0},
        "watchdog": _STALL,
        "faults": {cell_id: fault for cell_id, fault in faults.items() if fault},
    }
    return plan, {cell_id: FAULTS[fault][1] for cell_id, fault in faults.items()}


def watch(sweep: Sweeping, cells: int) -> list[Footprint]:
    """Reads both processes every second until the sweep is over."""
    seen: list[Footprint] = []
    orchestrator, journal = psutil.Process(sweep.process.pid), sweep.run / "journal.jsonl"
    told = 0
    while sweep.process.poll() is None:
        done = journal.read_bytes().count(b'"cell.ended"') if journal.exists() else 0
        with contextlib.suppress(psutil.Error):
            for who, process in (("orchestrator", orchestrator), ("watchdog", _watchdog(orchestrator))):
                if process is not None:
                    with process.oneshot():
                        size = process.memory_info().rss
                        seen.append(Footprint(done, who, size, process.num_fds(), process.num_threads()))
        if done >= told + 100:
            told = done
            print(f"{done} of {cells}", file=sys.stderr, flush=True)
        time.sleep(1.0)
    return seen


def _watchdog(orchestrator: psutil.Process) -> psutil.Process | None:
    for child in orchestrator.children():
        if "wallfinder-watchdog" in child.cmdline():
            return child
    return None


def wrong_verdicts(ended: Ended, expected: dict[str, str]) -> list[str]:
    """The cells that have another verdict than their fault's, or none, or two that count."""
    cells = ended.cells()
    found = Counter(cell["cell_id"] for cell in cells)
    twice = [f"{cell_id} is listed {count} times" for cell_id, count in found.items() if count != 1]
    wrong = []
    for cell in cells:
        cell_id, verdict = cell["cell_id"], expected[cell["cell_id"]]
        if cell["verdict"] != verdict or cell["attempts"] != 1:
            wrong.append(f"{cell_id}: {cell['verdict']} ({cell['cause']}), not {verdict}: {cell['detail']}")
    missing = [f"{cell_id}: not there" for cell_id in expected.keys() - found.keys()]
    return [*twice, *wrong, *missing]


def left_behind() -> list[str]:
    """Living processes that the sweep started, by a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            marked = process.environ().get(MARK) == os.environ[MARK]
            if marked and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {subprocess.list2cmdline(process.cmdline())[:120]}")
    return found


def table(seen: Sequence[Footprint]) -> str:
    """What both processes hold early (from a tenth of the cells to three tenths) and late (the last fifth)."""
    last = max(one.cells for one in seen)
    figures = (("resident, MB", 1e6, "rss_bytes"), ("descriptors", 1, "descriptors"), ("threads", 1, "threads"))
    rows = []
    for who in ("orchestrator", "watchdog"):
        own = [one for one in seen if one.who == who]
        for name, unit, key in figures:
            early = [getattr(one, key) / unit for one in own if 0.1 * last <= one.cells <= 0.3 * last]
            late = [getattr(one, key) / unit for one in own if one.cells >= 0.8 * last]
            before, after = statistics.median(early), statistics.median(late)
            rows.append((f"{who}, {name}", f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"))
    return markdown(("what", "early", "late", "grown"), rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000, help="how many (a multiple of ten, default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (default 1)")
    parser.add_argument("--json", type=Path, help="where every reading goes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""What a sweep costs: twelve smoke cells by wallfinder, and the same twelve by a loop of mlx_lm.benchmark, in turn.

    python -m bench.sweep_cost --rounds 6

Either way a cell is a process of its own with one warm-up and equally many measured repetitions of equally many tokens,
of the same model folder. The model is tiny, as in a smoke sweep, so that the fixed costs of a cell are what shows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.models import write_llama
from bench.sweeping import Ended, Sweeping, end_in_order, event, recording, samples
from bench.tables import bootstrap, markdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BATCHES, CONTEXTS, TOKENS = (1, 2, 4), (64, 128, 256, 512), 16
BEFORE, IMPORTS, READY = "before the first cell", "worker: Python and its imports", "worker: load, calibration, warm-up"
MEASURED, RECORD = "worker: measured repetitions", "worker's exit, its record"
PAUSE, BETWEEN, AFTER = "pause until the host has settled", "between cells, else", "after the last cell"
SHARES = (BEFORE, IMPORTS, READY, MEASURED, RECORD, PAUSE, BETWEEN, AFTER)


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of either way, and how often each is measured."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    reps: int

    def cells(self) -> list[tuple[int, int]]:
        """(context, batch) of each."""
        return [(context, batch) for context in self.contexts for batch in self.batches]


@dataclass(frozen=True, slots=True)
class Swept:
    """One sweep of wallfinder: from its command to its end, and where that went, by SHARES; seconds."""

    wall_s: float
    shares_s: dict[str, float]
    tokens: int


@dataclass(frozen=True, slots=True)
class Looped:
    """One loop of mlx_lm.benchmark: from its first command to the last one's end, and what its trials say of that."""

    wall_s: float
    trials_s: list[float]


@dataclass(frozen=True, slots=True)
class Round:
    """Both ways, one after the other; the other one first in the next round."""

    swept: Swept
    looped: Looped


def main() -> int:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="how often each way runs (default 6)")
    parser.add_argument("--reps", type=int, default=3, help="measured repetitions of a cell (default 3)")
    parser.add_argument("--contexts", type=int, default=len(CONTEXTS), help="how many of the contexts (default all)")
    parser.add_argument("--json", type=Path, help="where every single result goes")
    options = parser.parse_args()
    end_in_order()
    grid = Grid(BATCHES, CONTEXTS[: options.contexts], options.reps)
    with tempfile.TemporaryDirectory(prefix="wallfinder-bench-") as name:
        folder = Path(name)
        model = write_llama(folder / "model", hidden_size=64, layers=2)
        rounds = [measure(folder, model, grid, number) for number in range(options.rounds)]
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(one) for one in rounds], indent=1))
    print(table(rounds, len(grid.cells())))
    return 0


def measure(folder: Path, model: Path, grid: Grid, number: int) -> Round:
    """One round; the two ways take turns at being first."""
    if number % 2:
        looped = loop(model, grid)
        return Round(sweep(folder, model, grid, number), looped)
    swept = sweep(folder, model, grid, number)
    return Round(swept, loop(model, grid))


def sweep(folder: Path, model: Path, grid: Grid, number: int) -> Swept:
    """Wallfinder's way. Raises RuntimeError where a cell was not completed."""
    plan = {
        "model": str(model),
        "batches": list(grid.batches),
        "contexts": list(grid.contexts),
        "gen_tokens": TOKENS,
        "reps": grid.reps,
        "warmup": 1,
    }
    began_at, began_s = time.time(), time.perf_counter()
    with Sweeping(folder, plan, f"sweep-{number}") as sweeping:
        ended = sweeping.wait(600)
    wall_s = time.perf_counter() - began_s
    if ended.exit_code != 0 or {cell["verdict"] for cell in ended.cells()} != {"completed"}:
        raise RuntimeError(f"the sweep was not completed:\n{ended.output}")
    lines = (ended.run / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    journal = [json.loads(line) for line in lines]
    results = {
        one["record"]["cell_id"]: _result(ended, one["record"]["cell_id"]) for one in _named(journal, "cell.ended")
    }
    workers = {cell_id: worker_s(recording(ended.run, cell_id), result) for cell_id, result in results.items()}
    tokens = sum(rep["generated_tokens"] for result in results.values() for rep in result["reps"])
    return Swept(wall_s, shares(journal, workers, began_at, wall_s), tokens)


def loop(model: Path, grid: Grid) -> Looped:
    """The shell loop's way. Raises RuntimeError where a command failed."""
    trials: list[float] = []
    began_s = time.perf_counter()
    for context, batch in grid.cells():
        sizes = ["-p", str(context), "-g", str(TOKENS), "-b", str(batch), "-n", str(grid.reps)]
        done = subprocess.run(
            [sys.executable, "-m", "mlx_lm.benchmark", "--model", str(model), *sizes],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        found = [float(text) for text in re.findall(r"total_time=([0-9.]+)", done.stdout)]
        if done.returncode != 0 or len(found) != grid.reps:
            raise RuntimeError(f"mlx_lm.benchmark failed:\n{done.stdout}{done.stderr}")
        trials += found
    return Looped(time.perf_counter() - began_s, trials)


def worker_s(lines: list[dict[str, Any]], result: Mapping[str, Any]) -> dict[str, float]:
    """Where a worker's time went up to its last repetition, by IMPORTS, READY and MEASURED; seconds.

    The imports end between the last sample that saw the worker start and the first that saw more; half-way is right to
    a twentieth of a second.
    """
    watched = event(lines, "watch")
    seen = samples(lines)
    starting = [one["monotonic_s"] for one in seen if one["progress"]["phase"] == "starting"]
    later = [one["monotonic_s"] for one in seen if one["progress"]["phase"] != "starting"]
    first_s, last_s = result["reps"][0]["started_s"], result["reps"][-1]["ended_s"]
    began_s = watched["at_s"] if watched else first_s
    imported_s = (max(starting, default=began_s) + min([*later, first_s])) / 2
    return {IMPORTS: imported_s - began_s, READY: first_s - imported_s, MEASURED: last_s - first_s}


def shares(
    journal: Sequence[Mapping[str, Any]], workers: Mapping[str, Mapping[str, float]], began_at: float, wall_s: float
) -> dict[str, float]:
    """Where a sweep's time went, by SHARES, which add up to `wall_s`. `began_at` is when its command was given, as a
    Unix time."""
    started = {one["cell_id"]: _stamp(one) for one in _named(journal, "cell.started")}
    ended = {one["record"]["cell_id"]: _stamp(one) for one in _named(journal, "cell.ended")}
    found = {name: sum(worker[name] for worker in workers.values()) for name in (IMPORTS, READY, MEASURED)}
    in_cells_s = sum(ended[cell_id] - started[cell_id] for cell_id in ended)
    found[BEFORE] = min(started.values()) - began_at
    found[RECORD] = in_cells_s - sum(found[name] for name in (IMPORTS, READY, MEASURED))
    found[PAUSE] = sum(one["waited_s"] for one in _named(journal, "host.settled"))
    found[BETWEEN] = max(ended.values()) - min(started.values()) - in_cells_s - found[PAUSE]
    found[AFTER] = began_at + wall_s - max(ended.values())
    return {name: found[name] for name in SHARES}


def table(rounds: Sequence[Round], cells: int) -> str:
    """The ratio with its interval, and where wallfinder's time went, in Markdown."""
    ratios = [one.swept.wall_s / one.looped.wall_s for one in rounds]
    low, high = bootstrap(ratios)
    swept_s, looped_s = [one.swept.wall_s for one in rounds], [one.looped.wall_s for one in rounds]
    trials_s = statistics.median(sum(one.looped.trials_s) for one in rounds)
    rows = [
        (f"wallfinder, {cells} cells, median", f"{statistics.median(swept_s):.1f} s"),
        (f"loop of mlx_lm.benchmark, {cells} cells, median", f"{statistics.median(looped_s):.1f} s"),
        ("wallfinder / loop, median of rounds", f"{statistics.median(ratios):.3f}"),
        ("95 % interval (bootstrap)", f"{low:.3f} to {high:.3f}, {len(ratios)} rounds"),
        ("the loop's trials, of its time", f"{trials_s:.1f} s"),
    ]
    parts = {name: statistics.median(one.swept.shares_s[name] for one in rounds) for name in SHARES}
    whole_s = sum(parts.values())
    where = [(name, f"{s:.2f} s", f"{s / cells:.3f} s", f"{100 * s / whole_s:.1f} %") for name, s in parts.items()]
    heading = ("where wallfinder's time goes", "a sweep", "a cell", "share")
    return markdown(("what", "seen"), rows) + "\n\n" + markdown(heading, where)


def _result(ended: Ended, cell_id: str) -> dict[str, Any]:
    path = ended.run / "cells" / cell_id / "attempt-1" / "result.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _named(journal: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [one for one in journal if one["event"] == name]


def _stamp(line: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(line["at"]).timestamp()


if __name__ == "__main__":
    sys.exit(main())

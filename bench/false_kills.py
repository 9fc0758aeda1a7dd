"""Healthy cells that have something to bear: how many of them the watchdog ends. None is the goal.

    python -m bench.false_kills

Linux; the swapping neighbours take root and swap. Half of the cells make steps of 50 ms and more, so that they could be
taken for a wall at all; the others are as small as they come.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench.disturbances import busy_neighbours, idle_programs_swapped_out, stopped_for_a_second, swapping_neighbour
from bench.real_wall import NoWallError, swap_file
from bench.sweeping import WALL_MODEL, Sweeping, end_in_order
from bench.tables import markdown

if TYPE_CHECKING:
    from collections.abc import Callable

SWAP_BYTES = 1_000_000_000
TINY: dict[str, Any] = {
    "synthetic": {
        **WALL_MODEL["synthetic"],
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 256,
    }
}
_COMMON: dict[str, Any] = {
    "reps": 2,
    "warmup": 0,
    "retries": {"crashed": 0},
    "cooldown": {"max": "1s", "on_timeout": "mark"},
}
_BOUNDARIES = [n * 256 - 5 for n in range(1, 17)]
SLOW = {**_COMMON, "model": WALL_MODEL, "context_fill": "random", "gen_tokens": 12, "batches": [4, 6]}
SMALL = {**_COMMON, "model": TINY, "gen_tokens": 24, "batches": [1, 2, 3, 4]}
_BOTH = {"variants": [{"name": "batched"}, {"name": "lockstep", "engine": "lockstep"}]}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of cells: the plan, and what they have to bear (given the sweep's process)."""

    name: str
    plan: dict[str, Any]
    bear: Callable[[psutil.Process], contextlib.AbstractContextManager[object]]
    takes_swap: bool = False


def _slow(contexts: int) -> dict[str, Any]:
    return {**SLOW, "contexts": [3600 + 32 * n for n in range(contexts)]}


def kinds() -> list[Kind]:
    """All of them: 308 cells."""

    def alone(_: psutil.Process) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def plain(make: Callable[[], contextlib.AbstractContextManager[object]]) -> Callable[..., Any]:
        return lambda _: make()

    worker = functools.partial(stopped_for_a_second, mark="-m worker")
    watchdog = functools.partial(stopped_for_a_second, mark="wallfinder-watchdog")
    growing, swapper, burst = _BOUNDARIES[8:16], plain(swapping_neighbour), plain(idle_programs_swapped_out)
    return [
        Kind("alone", _slow(10), alone),
        Kind("cache growth in the window, tiny", {**SMALL, **_BOTH, "contexts": _BOUNDARIES[:8]}, alone),
        Kind("cache growth in the window, steps over 50 ms", {**SLOW, **_BOTH, "contexts": growing}, alone),
        Kind("a busy loop on every processor", _slow(24), plain(busy_neighbours)),
        Kind("a neighbour that swaps in a group of its own", _slow(24), swapper, takes_swap=True),
        Kind("idle programs swapped out in bursts", _slow(12), burst, takes_swap=True),
        Kind("the worker stopped for a second, now and then", _slow(24), worker),
        Kind("the watchdog stopped for a second, now and then", _slow(12), watchdog),
    ]


def main() -> int:
    """Runs every kind and prints a table; exit status 1 where a healthy cell was ended."""
    options = _options()
    end_in_order()
    found: dict[str, Counter[str]] = {}
    try:
        with contextlib.ExitStack() as held:
            held.enter_context(swap_file(SWAP_BYTES))
            _play(options, found)
    except NoWallError as reason:
        print(f"without neighbours that swap: {reason}", file=sys.stderr)
        _play(options, found, swap=False)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print(table(found))
    return int(any(set(verdicts) != {"completed"} for verdicts in found.values()))


def _play(options: argparse.Namespace, found: dict[str, Counter[str]], *, swap: bool = True) -> None:
    for kind in kinds():
        if (kind.takes_swap and not swap) or (options.only and options.only not in kind.name):
            continue
        plan = dict(kind.plan)
        if options.contexts:
            plan["contexts"] = plan["contexts"][: options.contexts]
        with tempfile.TemporaryDirectory(prefix="wallfinder-bench-") as folder:
            found[kind.name] = run(kind, plan, Path(folder))
        print(f"{kind.name}: {dict(found[kind.name])}", file=sys.stderr, flush=True)


def run(kind: Kind, plan: dict[str, Any], folder: Path) -> Counter[str]:
    """The verdicts of a kind's cells, with their causes."""
    cells = len(plan["contexts"]) * len(plan["batches"]) * len(plan.get("variants", [0]))
    with Sweeping(folder, plan, "healthy") as sweep, kind.bear(psutil.Process(sweep.process.pid)):
        ended = sweep.wait(60 + 60 * cells)
    verdicts = Counter(f"{c['verdict']}: {c['cause']}" if c["cause"] else str(c["verdict"]) for c in ended.cells())
    if verdicts.total() != cells:
        raise RuntimeError(f"{cells} cells, but {verdicts}:\n{ended.output}")
    return verdicts


def table(found: dict[str, Counter[str]]) -> str:
    """A row per kind, in Markdown."""
    rows: list[tuple[object, ...]] = []
    for name, verdicts in found.items():
        others = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items() if verdict != "completed")
        rows.append((name, verdicts.total(), verdicts["completed"], others or "0"))
    total = sum((verdicts for verdicts in found.values()), Counter[str]())
    rows.append(("**all**", total.total(), total["completed"], total.total() - total["completed"]))
    return markdown(("what the cells have to bear", "cells", "completed", "ended"), rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="only kinds that have this in their name")
    parser.add_argument("--contexts", type=int, help="only so many contexts of each kind")
    parser.add_argument("--json", type=Path, help="where the counts go")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

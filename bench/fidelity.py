"""Whether a cell's number is mlx-lm's number: generation_tps of a cell, of a bare loop and of batch_generate, in turn.

    python -m bench.fidelity --sessions 3 --rounds 15

Three processes with the same model, batch, context and tokens take turns, repetition by repetition; while one works,
the others stand still. The cell is a whole one: a worker as a sweep would start it, and its watchdog, both stopped
(SIGSTOP) between their turns. The bare loop drives the same generator and reads a clock after each step, no more.
`batch_generate` has both batch sizes set to the batch, as the cell's generator has. All three make the same tokens, or
the benchmark fails.

Two figures are compared. Ours is batch * (tokens - 1) / window: the steps after the first tokens. The window of
`batch_generate`, whose last step also takes the finished rows out of its batch, is read by a clock behind each step.
mlx-lm's own `generation_tps` is batch * tokens / (all its time but that in prompt chunks), so it holds the last prompt
token and the wait for the first tokens too; a cell's is made of the same parts: its window, and prefill but its chunks.

Ratios are those of neighbours, the repetitions of one round. A machine that does other work slows some steps of any
way: the quick quarter of steps (the first quartile of a repetition's) shows less of that. A session starts the
processes anew. What the cell's loop adds to a step is measured by itself as well, around steps that do nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench.models import write_llama
from bench.sweeping import end_in_order, worker_spec
from bench.tables import bootstrap, markdown, quantile
from orchestrator.child import Child
from orchestrator.flight_recorder import FlightRecorder
from orchestrator.strays import attempt_tag
from orchestrator.watchdog import wire
from orchestrator.watchdog.limits import Limits
from orchestrator.watching import WatchdogLink
from worker.backstops import KernelTimer
from worker.measure import RepEnd, measure_rep
from worker.mlx_runtime import MlxMemory
from worker.progress import Progress
from worker.protocol import ModelSource, RepResult, decode
from worker.telemetry import Phase, TelemetryPage, create_page_fd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BATCHES, CONTEXT, TOKENS = (1, 4, 16), 64, 49
CELL, BARE, MLX_LM = "cell", "bare", "mlx-lm"
_LIMIT_S = 120.0
_SPARE_REPS = 1_000_000  # a worker that has no more to do would end


@dataclass(frozen=True, slots=True)
class Rep:
    """One repetition. `step_s`: the steps after the first tokens; `generation_s`: what mlx-lm divides by."""

    step_s: list[float]
    generation_s: float | None
    tokens: int
    digest: str


@dataclass(frozen=True, slots=True)
class Batch:
    """All rounds of one batch: a repetition of each way per round."""

    batch: int
    rounds: list[dict[str, Rep]]


class Way(Protocol):
    """One way to decode, in a process of its own that stands still between its turns."""

    def turn(self) -> Rep:
        """One repetition."""

    def close(self) -> None:
        """Ends the process."""


def main() -> int:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="default 1 4 16")
    parser.add_argument("--sessions", type=int, default=3, help="how often the processes start anew (default 3)")
    parser.add_argument("--rounds", type=int, default=15, help="repetitions of each way in a session (default 15)")
    parser.add_argument("--hidden-size", type=int, default=128, help="of the model (default 128)")
    parser.add_argument("--json", type=Path, help="where every single result goes")
    options = parser.parse_args()
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="wallfinder-bench-") as name:
        model = write_llama(Path(name) / "model", options.hidden_size, layers=4)
        sessions = [(batch, Path(name) / f"{batch}-{n}") for n in range(options.sessions) for batch in options.batches]
        measured = merged([measure(model, batch, options.rounds, folder) for batch, folder in sessions])
    added_s = added_per_step_s()
    if options.json:
        found = {"added_per_step_s": added_s, "batches": [dataclasses.asdict(one) for one in measured]}
        options.json.write_text(json.dumps(found, indent=1))
    print(table(measured))
    print(f"\nThe loop around a step, alone: {1e6 * added_s:.1f} µs.")
    return 0


def merged(sessions: Sequence[Batch]) -> list[Batch]:
    """Per batch the rounds of all its sessions."""
    batches = dict.fromkeys(one.batch for one in sessions)
    return [Batch(batch, [each for one in sessions if one.batch == batch for each in one.rounds]) for batch in batches]


def measure(model: Path, batch: int, rounds: int, folder: Path) -> Batch:
    """One session: the rounds of one batch, after one that is not counted. Every order of the ways comes in turn.

    Raises:
        RuntimeError: a process ended early, or two ways made different tokens.
    """
    with contextlib.ExitStack() as open_ways:
        ways: dict[str, Way] = {
            CELL: open_ways.enter_context(contextlib.closing(_Cell(model, batch, folder))),
            BARE: open_ways.enter_context(contextlib.closing(_Loop(BARE, model, batch))),
            MLX_LM: open_ways.enter_context(contextlib.closing(_Loop(MLX_LM, model, batch))),
        }
        orders = itertools.cycle(itertools.permutations(ways))
        seen = [{name: ways[name].turn() for name in next(orders)} for _ in range(rounds + 1)]
    made = {(rep.tokens, rep.digest) for one in seen for rep in one.values()}
    if len(made) != 1:
        raise RuntimeError(f"batch {batch}: not the same tokens: {sorted(made)}")
    return Batch(batch, seen[1:])


def table(measured: Sequence[Batch]) -> str:
    """Ratios with their intervals, in Markdown."""
    rates = [statistics.median(tps(one.batch, each[CELL]) for each in one.rounds) for one in measured]
    rows = [("cell, tok/s", *(f"{rate:.1f}" for rate in rates))]
    found = [ratios(one) for one in measured]
    rows += [(name, *(_interval(one[name]) for one in found)) for name in found[0]]
    return markdown((f"{len(measured[0].rounds)} rounds", *(f"batch {one.batch}" for one in measured)), rows)


def ratios(one: Batch) -> dict[str, list[float]]:
    """Ratios of the repetitions of a round. Last those of the bare loop to itself, a round before: the noise."""
    ours = [{name: tps(one.batch, rep) for name, rep in each.items()} for each in one.rounds]
    quick = [{name: 1 / quantile(rep.step_s, 0.25) for name, rep in each.items()} for each in one.rounds]
    theirs = [{name: mlx_lm_tps(rep) for name, rep in each.items() if rep.generation_s} for each in one.rounds]
    return {
        "cell / bare loop": [each[CELL] / each[BARE] for each in ours],
        "cell / bare loop, quick quarter of steps": [each[CELL] / each[BARE] for each in quick],
        "cell / batch_generate": [each[CELL] / each[MLX_LM] for each in ours],
        "cell / batch_generate, quick quarter of steps": [each[CELL] / each[MLX_LM] for each in quick],
        "cell / batch_generate, by mlx-lm's formula": [each[CELL] / each[MLX_LM] for each in theirs],
        "bare loop / itself": [after[BARE] / before[BARE] for before, after in itertools.pairwise(ours)],
        "bare loop / itself, quick quarter of steps": [b[BARE] / a[BARE] for a, b in itertools.pairwise(quick)],
    }


def tps(batch: int, rep: Rep) -> float:
    """generation_tps as docs/measurement.md defines it."""
    return (rep.tokens - batch) / sum(rep.step_s)


def mlx_lm_tps(rep: Rep) -> float:
    """generation_tps as mlx-lm's BatchStats defines it."""
    return rep.tokens / rep.generation_s if rep.generation_s else float("nan")


def rep_of(result: RepResult) -> Rep:
    """What a worker's result says. The last of its chunks only launches the last prompt token: mlx-lm counts it in."""
    window_s = sum(result.step_s)
    first_s = result.prefill_s - sum(result.chunk_s[:-1])
    return Rep(result.step_s, window_s + first_s, result.generated_tokens, result.tokens_digest)


def added_per_step_s() -> float:
    """What the measuring loop itself takes per step: steps that do nothing, with the real page, timer and counters."""
    page_fd = create_page_fd()
    page = TelemetryPage(page_fd)
    page.lay(1)
    page.open_as_worker()
    progress = Progress(page, KernelTimer(_LIMIT_S))
    spec = worker_spec(ModelSource(), 1, CONTEXT, 2001)
    try:
        reps = [measure_rep(spec, rep, _Idle(), [[0]], MlxMemory(), progress) for rep in range(25)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.close(page_fd)
    return statistics.median(statistics.fmean(rep.step_s) for rep in reps)


def _interval(found: Sequence[float]) -> str:
    low, high = bootstrap(found)
    return f"{statistics.median(found):.3f} ({low:.3f} to {high:.3f})"


class _Idle:
    """An engine that does nothing, at once."""

    launches_ahead = True

    def prefill(self, prompts: list[list[int]], _chunk_done: Callable[[], None]) -> int:
        return len(prompts)

    def step(self) -> int:
        return 1

    def finish(self) -> RepEnd:
        return RepEnd(finite_logits=True, constant_logits=False, kv_cache_bytes=0, filled_tokens=0)


class _Loop:
    """A rival (loops.py)."""

    def __init__(self, name: str, model: Path, batch: int) -> None:
        sizes = [str(size) for size in (batch, CONTEXT, TOKENS)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.loops", name, str(model), *sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
        )

    def turn(self) -> Rep:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a loop ended before its time")
        return Rep(**json.loads(line))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class _Cell:
    """A worker and its watchdog, stopped but for their turns."""

    def __init__(self, model: Path, batch: int, folder: Path) -> None:
        folder.mkdir()
        with contextlib.ExitStack() as undo:
            page_fd = create_page_fd()
            undo.callback(os.close, page_fd)
            self._page = TelemetryPage(page_fd)
            self._page.lay(1)
            self._link = WatchdogLink(page_fd)
            undo.callback(self._link.kill)
            self._recorder = FlightRecorder(folder / "samples.jsonl")
            undo.callback(self._recorder.close)
            with (folder / "worker.log").open("wb") as log:
                self._child = Child(page_fd, log.fileno(), {}, attempt_tag(1))
            undo.callback(self._end_worker)
            self._link.send(wire.Watch(1, self._child.pid, Limits(memory_bytes=1 << 40), observe=True))
            self._child.send(worker_spec(ModelSource(path=str(model)), batch, CONTEXT, TOKENS, reps=_SPARE_REPS))
            self._undo = undo.pop_all()
        self._buffer = b""
        self._stopped_late = True  # the first repetition holds the start

    def turn(self) -> Rep:
        while True:
            spoilt = self._stopped_late
            result = self._next()
            if not spoilt:
                return rep_of(result)

    def close(self) -> None:
        self._undo.close()

    def _next(self) -> RepResult:
        self._signal(signal.SIGCONT)
        while True:
            readable, _, _ = select.select([self._child.result_fd, self._link.fd], [], [], _LIMIT_S)
            if not readable:
                raise RuntimeError("the worker stands still")
            if self._link.fd in readable:
                for message in self._link.receive():
                    if isinstance(message, wire.Samples):
                        self._recorder.samples(message.samples)
            if self._child.result_fd in readable:
                for result in self._receive():
                    self._pause(result.rep)
                    return result

    def _receive(self) -> list[RepResult]:
        data = os.read(self._child.result_fd, 1 << 16)
        if not data:
            raise RuntimeError("the worker ended before its time")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [message for message in map(decode, lines) if isinstance(message, RepResult)]

    def _pause(self, rep: int) -> None:
        """Stops the worker, which begins the next repetition by itself, and sees whether it came further than that."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        seen = self._page.read()
        self._stopped_late = seen is None or (seen.rep > rep and (seen.phase != Phase.PREFILL or seen.chunk > 0))

    def _signal(self, number: signal.Signals) -> None:
        for pid in (self._link.ready.pid, self._child.pid):
            os.kill(pid, number)

    def _end_worker(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.reap()


if __name__ == "__main__":
    sys.exit(main())

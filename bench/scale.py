"""What a plan of ten thousand cells costs: time and memory of `plan`, `status` and `resume` with nothing left to do.

    python -m bench.scale --runs 7

The run directory is made here: a plan of so many cells, and a journal in which each of them has ended. Each command is
a process of its own; the least time is the machine's, the median what a person waits beside other work.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bench.sweeping import end_in_order
from bench.tables import markdown
from orchestrator import run_directory
from orchestrator.conditions import CellConditions, Conditions
from orchestrator.plan import load_plan, plan_digest, plan_to_yaml
from orchestrator.records import CellRecord, Metrics, PhaseMemory, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.cells import Cell
    from orchestrator.plan import Plan

GOAL_S, GOAL_BYTES = 1.0, 150_000_000
_NAME = "ten-thousand"
_CALM = Conditions(0.0, "mains", low_power_mode=False, thermal="nominal", cpu_speed_limit_frac=1.0)
_AT = "2026-01-01T00:00:00.000Z"
_BOOT = "00000000-0000-4000-8000-000000000000"
_MEMORY_BYTES = 48 << 30
_PER_CONTEXT = 100  # cells: 4 variants of 25 batch sizes

# Starts the command from a process of its own, since the kernel counts what a starter holds to the command's peak.
_STARTER = """
import json, os, sys, time
nowhere = os.open(os.devnull, os.O_RDWR)
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
to = [(os.POSIX_SPAWN_DUP2, nowhere, 0), (os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, nowhere, 2)]
since = time.monotonic()
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ, file_actions=to)
_, status, usage = os.wait4(pid, 0)
took = time.monotonic() - since
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps({"took_s": took, "cpu_s": usage.ru_utime + usage.ru_stime, "rss_bytes": usage.ru_maxrss * unit,
                  "exit_code": os.waitstatus_to_exitcode(status)}))
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a command: wall time, time of processors, peak of resident memory, and what it gave out."""

    command: str
    took_s: float
    cpu_s: float
    rss_bytes: int
    exit_code: int
    output_bytes: int


def main() -> int:
    """Measures and prints a table; exit status 1 where a command failed."""
    options = _options()
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="wallfinder-bench-") as folder:
        plan_file, run = make_run(Path(folder), options.cells)
        calls = measure(plan_file, run, options.runs)
    if options.json:
        options.json.write_text(json.dumps([asdict(call) for call in calls], indent=1))
    print(table(calls))
    return int(any(call.exit_code for call in calls))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10_000, help="cells, in hundreds (default 10000)")
    parser.add_argument("--runs", type=int, default=7, help="calls of each command (default 7)")
    parser.add_argument("--json", type=Path, help="where every single result goes")
    return parser.parse_args()


# -- the run directory


def make_run(folder: Path, cells: int) -> tuple[Path, Path]:
    """A plan file of so many cells, and a run directory in which each of them has ended."""
    plan_file = folder / f"{_NAME}.yaml"
    plan_file.write_text(yaml.safe_dump(_plan_body(max(1, cells // _PER_CONTEXT))), encoding="utf-8")
    plan = load_plan(plan_file)
    run = run_directory.create(folder / "runs", plan.name, plan_to_yaml(plan), {"boot_id": _BOOT})
    lines = (json.dumps(event, separators=(",", ":")) for event in journal(plan))
    (run.path / run_directory.JOURNAL).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return plan_file, run.path


def _plan_body(contexts: int) -> dict[str, Any]:
    return {
        "model": {"synthetic": {"model_type": "llama", "hidden_size": 64}},
        "variants": [
            {"name": "kv16"},
            {"name": "kv8", "kv_bits": 8},
            {"name": "kv4", "kv_bits": 4},
            {"name": "short", "gen_tokens": 16},
        ],
        "batches": list(range(1, _PER_CONTEXT // 4 + 1)),
        "contexts": [256 + 64 * number for number in range(contexts)],
    }


def journal(plan: Plan) -> Iterator[dict[str, Any]]:
    """The events of a sweep that answered every cell of the plan; what a cell became is drawn with a fixed seed."""
    draw = random.Random(0)
    host = {"boot_id": _BOOT, "memory_bytes": _MEMORY_BYTES}
    yield {"event": "sweep.started", "at": _AT, "schema": 1, "plan_digest": plan_digest(plan), "pid": 1, "host": host}
    for cell in plan.cells():
        yield {"event": "cell.started", "at": _AT, "cell_id": cell.cell_id, "attempt": 1, "boot_id": _BOOT}
        yield {"event": "cell.ended", "at": _AT, "record": _record(cell, draw).to_journal()}
        yield {"event": "host.settled", "at": _AT, "after": cell.cell_id, "waited_s": 0.101, "available_bytes": 1 << 34}
    yield {"event": "sweep.ended", "at": _AT, "state": "complete", "exit_code": 0, "reason": "every cell answered"}


def _record(cell: Cell, draw: random.Random) -> CellRecord:
    """A record as a sweep writes it: of twenty cells one hit the wall, one ran out of time, two are noisy."""
    step_s = 0.02 * (1 + cell.batch / 8) * draw.uniform(0.98, 1.02)
    cache_bytes = 131_072 * cell.batch * (cell.context + 64)
    completed = CellRecord(
        cell_id=cell.cell_id,
        variant=cell.variant,
        context=cell.context,
        batch=cell.batch,
        attempt=1,
        verdict=Verdict.COMPLETED,
        evidence={"footprint_peak_bytes": 5_000_000_000 + cache_bytes, "available_least_frac": draw.uniform(0.2, 0.9)},
        valid=True,
        metrics=Metrics(
            reps=5,
            generation_tps=cell.batch / step_s,
            generation_tps_per_stream=1 / step_s,
            tpot_ms=1e3 * step_s,
            prompt_tps=1100 * draw.uniform(0.9, 1.1),
            ttft_s=cell.batch * cell.context / 1100,
            robust_cv=draw.uniform(0.001, 0.03),
            iqr_tps=draw.uniform(0.001, 0.03) * cell.batch / step_s,
            generation_tps_low=0.99 * cell.batch / step_s,
            generation_tps_high=1.01 * cell.batch / step_s,
            generation_tps_mlxlm=1.02 * cell.batch / step_s,
            rep_tps=tuple(draw.uniform(0.98, 1.02) * cell.batch / step_s for _ in range(5)),
            drift_frac=draw.uniform(-0.02, 0.02),
            drift_p=draw.uniform(0.1, 1.0),
            warmup_frac=draw.uniform(0.0, 0.02),
            step_s=step_s,
            step_p95_s=1.1 * step_s,
            peak_memory_bytes=5_000_000_000 + cache_bytes,
            peak_phase=draw.choice(("prefill", "decode")),
            load_peak_bytes=4_600_000_000,
            prefill_peak_bytes=4_900_000_000 + cache_bytes,
            decode_peak_bytes=5_000_000_000 + cache_bytes,
            phases={
                phase: PhaseMemory(5_000_000_000 + cache_bytes, 4_800_000_000 + cache_bytes, 10**8, 6 * 10**9)
                for phase in ("load", "prefill", "decode")
            },
            peak_terms=dict.fromkeys(
                ("weights_bytes", "kv_bytes", "logits_bytes", "activations_bytes", "rest_bytes"), 10**9
            ),
            peak_term="weights",
            weight_bytes=4_600_000_000,
            kv_cache_bytes=cache_bytes,
            cache_bytes_per_token=131_072.0,
            cache_classes=("KVCache",),
            load_s=draw.uniform(1, 2),
        ),
        peak_footprint_bytes=5_200_000_000 + cache_bytes,
        swap_growth_bytes=0,
        memory_bytes=_MEMORY_BYTES,
        phase="done",
        rep=4,
        step=63,
        exit_status=0,
        watchdog_late_max_s=draw.uniform(0.0001, 0.01),
        conditions=CellConditions(_CALM, _CALM).to_json(),
        started_at=_AT,
        ended_at=_AT,
        duration_s=draw.uniform(10, 200),
        boot_id=_BOOT,
    )
    return _as_drawn(completed, draw.randrange(20), draw)


def _as_drawn(record: CellRecord, drawn: int, draw: random.Random) -> CellRecord:
    if drawn == 0:
        grown_bytes = draw.randrange(1 << 29, 1 << 32)
        figures: dict[str, float | int | str] = {
            "rule": "slow and memory",
            "signals": "swap_growth+step_inflation",
            "swap_growth_bytes": grown_bytes,
            "swap_soft_bytes": 515_000_000,
            "step_s": draw.uniform(1, 3),
            "step_inflation": draw.uniform(2.5, 20),
        }
        return replace(
            record,
            verdict=Verdict.HIT_THE_WALL,
            cause="swap_growth",
            detail="Decode steps became slow while memory was swapped out.",
            remedy="a smaller batch, or a shorter context",
            evidence={**record.evidence, **figures},
            valid=None,
            memory_wall=True,
            metrics=replace(record.metrics, reps=draw.randrange(3)),
            swap_growth_bytes=grown_bytes,
            phase="decode",
            exit_status=-9,
            signal="SIGKILL",
            rungs=(("flag", 1.0), ("SIGTERM", 1.5), ("SIGKILL", 2.5)),
        )
    if drawn == 1:
        return replace(
            record,
            verdict=Verdict.TIMED_OUT,
            cause="stalled",
            detail="Nothing moved any more.",
            evidence={**record.evidence, "progress_age_s": draw.uniform(60, 62)},
            valid=None,
            metrics=Metrics(),
        )
    return replace(record, valid=False, invalid_reasons=("noisy",)) if drawn < 4 else record


# -- the commands


def measure(plan_file: Path, run: Path, runs: int) -> list[Call]:
    """Calls every command so many times, in turn, and once more before, which is not counted."""
    commands = {
        "plan": ("plan", plan_file),
        "plan --json": ("plan", plan_file, "--json"),
        "status": ("status", run),
        "status --json": ("status", run, "--json"),
        "resume": ("resume", run, "--plain"),
    }
    turns = [(name, arguments) for _ in range(runs + 1) for name, arguments in commands.items()]
    calls = [call(name, [str(one) for one in arguments], run.parent) for name, arguments in turns]
    return calls[len(commands) :]


def call(name: str, arguments: Sequence[str], folder: Path) -> Call:
    """Runs one command to its end; what it gives out goes to a file."""
    output = folder / "output"
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _STARTER,
        str(output),
        sys.executable,
        "-m",
        "orchestrator",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Call(command=name, output_bytes=output.stat().st_size, **json.loads(done.stdout))


def table(calls: Sequence[Call]) -> str:
    """A row per command, in Markdown: the goal, and what was seen."""
    rows = []
    for name in dict.fromkeys(one.command for one in calls):
        of_name = [one for one in calls if one.command == name]
        took_s = [one.took_s for one in of_name]
        cpu_s = min(one.cpu_s for one in of_name)
        rss_bytes = max(one.rss_bytes for one in of_name)
        failed = sum(one.exit_code != 0 for one in of_name)
        rows.append(
            (
                f"{name}{f' ({failed} failed)' if failed else ''}",
                f"{GOAL_S:g} s, {GOAL_BYTES / 1e6:.0f} MB",
                f"{min(took_s):.2f} / {statistics.median(took_s):.2f}",
                f"{cpu_s:.2f}",
                f"{rss_bytes / 1e6:.0f}",
                f"{of_name[-1].output_bytes / 1e6:.1f}",
            )
        )
    heading = ("command", "goal", "time, s (best / median)", "of processors, s", "resident at most, MB", "output, MB")
    return markdown(heading, rows)


if __name__ == "__main__":
    sys.exit(main())

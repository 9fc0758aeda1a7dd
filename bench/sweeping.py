"""Owns the start of real sweeps for the benchmarks: a plan, a folder, a process, and what it left on the disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import yaml

from orchestrator.cells import Cell
from orchestrator.errors import WallfinderError
from orchestrator.recordings import recorded_lines
from worker.protocol import ModelSource, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# A real model of MLX: small, and its KV cache (8,192 bytes per token, float32) is what fills memory.
WALL_MODEL: dict[str, Any] = {
    "synthetic": {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 1024,
        "rms_norm_eps": 1e-5,
        "dtype": "float32",
    }
}


def end_in_order() -> None:
    """Has Ctrl-C and SIGTERM end a benchmark by way of its clean-up, also one that a script runs in the background."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def worker_spec(model: ModelSource, batch: int, context: int, gen_tokens: int, **changes: Any) -> WorkerSpec:
    """What a worker that a benchmark starts itself is told: a plan's defaults, one warm-up, and these changes."""
    plain: dict[str, Any] = {
        "cell_id": Cell(None, context, batch).cell_id,
        "attempt": 1,
        "serial": 1,
        "reps": 1,
        "warmup": 1,
        "seed": 0,
        "engine": "batched",
        "context_fill": "prefill",
        "prefill_step_size": 2048,
        "prefill_logits": "last",
        "kv_bits": None,
        "kv_group_size": 64,
        "wired_limit": "default",
        "backstop_s": 600.0,
    }
    return WorkerSpec(model=model, batch=batch, context=context, gen_tokens=gen_tokens, **{**plain, **changes})


@dataclass(frozen=True, slots=True)
class Ended:
    """A sweep that is over."""

    run: Path
    exit_code: int
    output: str

    def cells(self) -> list[dict[str, Any]]:
        """The cells of `status --json`."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", "status", str(self.run), "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        return list(json.loads(done.stdout)["cells"])


class Sweeping:
    """A sweep that runs. Use it as a context manager: it leaves no process behind."""

    def __init__(self, folder: Path, plan: dict[str, Any], name: str, before: Callable[[], None] | None = None) -> None:
        """Starts it; `before` is called in the new process before the program is, as `preexec_fn` is."""
        self.run = folder / "runs" / name
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, **plan}), encoding="utf-8")
        self._log = (folder / f"{name}.log").open("w+")
        command = [sys.executable, "-m", "orchestrator", "run", str(path), "-o", str(folder / "runs"), "--plain"]
        self.process = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=before,  # noqa: PLW1509 - no thread is running here
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number, limit_s in ((signal.SIGINT, 60.0), (signal.SIGKILL, 60.0)):
            if self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(limit_s)
        self._log.close()

    def wait(self, limit_s: float) -> Ended:
        """Waits for its end. Raises subprocess.TimeoutExpired."""
        code = self.process.wait(limit_s)
        self._log.seek(0)
        return Ended(self.run, code, self._log.read())

    def wait_for(self, what: Callable[[], bool], limit_s: float) -> None:
        """Polls until `what` is true. Raises RuntimeError where the sweep ends first, or time runs out."""
        end_s = time.monotonic() + limit_s
        while not what():
            if self.process.poll() is not None or time.monotonic() > end_s:
                self._log.seek(0)
                raise RuntimeError(f"the sweep did not come so far:\n{self._log.read()}")
            time.sleep(0.05)


def recording(run: Path, cell_id: str, attempt: int = 1) -> list[dict[str, Any]]:
    """The recording of an attempt so far; empty where there is none yet."""
    path = run / "cells" / cell_id / f"attempt-{attempt}" / "samples.jsonl"
    with contextlib.suppress(WallfinderError):
        return list(recorded_lines(path))
    return []


def samples(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples of a recording that say where the worker is."""
    return [line for line in lines if "event" not in line and line.get("progress")]


def event(lines: list[dict[str, Any]], *names: str) -> dict[str, Any] | None:
    """The first event of one of these names."""
    return next((line for line in lines if line.get("event") in names), None)

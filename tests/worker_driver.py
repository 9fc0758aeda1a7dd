"""Owns a small honest stand-in for the orchestrator in tests: starts real workers on real pipes.

Does not judge anything; tests do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from worker.protocol import ModelSource, WorkerSpec, decode, encode_spec
from worker.telemetry import TelemetryPage, create_page_fd

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from worker.protocol import Message

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 60.0


def make_spec(**changes: Any) -> WorkerSpec:
    """A tiny cell for the faulty engine, with changes."""
    values: dict[str, Any] = {
        "cell_id": "c00008-b002",
        "attempt": 1,
        "serial": 7,
        "model": ModelSource(config_json="{}"),
        "batch": 2,
        "context": 8,
        "gen_tokens": 6,
        "reps": 2,
        "warmup": 1,
        "seed": 0,
        "engine": "faulty",
        "context_fill": "prefill",
        "prefill_step_size": 4,
        "prefill_logits": "last",
        "kv_bits": None,
        "kv_group_size": 64,
        "wired_limit": "off",
        "backstop_s": 50.0,
    }
    return WorkerSpec(**{**values, **changes})


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Polls until `condition` holds; fails the test when it never does."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass
class Ended:
    """A worker that is gone: exit status as subprocess gives it, messages, output, and what was torn."""

    status: int
    messages: list[Message]
    torn: bytes
    output: bytes

    @property
    def last(self) -> Message | None:
        """The last whole message."""
        return self.messages[-1] if self.messages else None


@dataclass
class Driver:
    """One running worker. Use as a context manager: it leaves nothing behind."""

    spec: WorkerSpec
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    send_spec: bool = True

    def __enter__(self) -> Self:
        self.page_fd = create_page_fd()
        self.page = TelemetryPage(self.page_fd)
        self.page.lay(self.spec.serial)
        control_read, self.control = os.pipe()
        result_read, result_write = os.pipe()
        self.result = result_read
        self.log = self.folder / "worker.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "worker", "--page-fd", str(self.page_fd)),
                    *("--control-fd", str(control_read), "--result-fd", str(result_write)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(self.page_fd, control_read, result_write),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.env},
            )
        os.close(control_read)
        os.close(result_write)
        if self.send_spec:
            os.write(self.control, encode_spec(self.spec))
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for fd in (self.page_fd, self.control, self.result):
            with contextlib.suppress(OSError):
                os.close(fd)

    def cut_lifeline(self) -> None:
        """What the worker sees when the orchestrator is gone."""
        os.close(self.control)

    def wait(self, deadline_s: float = DEADLINE_S) -> Ended:
        """Waits for the worker's own end, without waiting for the pipe's: a grandchild may hold it."""
        status = self.process.wait(deadline_s)
        os.set_blocking(self.result, False)
        data = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.result, 65536):
                data += piece
        *lines, torn = data.split(b"\n")
        return Ended(status, [decode(line) for line in lines], torn, self.log.read_bytes())

"""Drives the real command line in processes of their own, and finds what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

MARK = "WALLFINDER_TEST_MARK"

# A plan that costs no model: the test engine plays the cells.
FAULTY_PLAN: dict[str, Any] = {
    "model": {"synthetic": {"model_type": "llama", "hidden_size": 64}},
    "engine": "faulty",
    "batches": [1, 2, 4],
    "contexts": [64],
    "gen_tokens": 8,
    "reps": 2,
    "order": "as_written",
    "after_wall": "run_all",
    "retries": {"crashed": 0, "failed": 0},
}


def wait_until(what: Callable[[], object], limit_s: float = 30.0) -> None:
    """Polls until `what` is true; fails after a limit that only a defect reaches."""
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.02)  # the poll's period, not a synchronisation


@dataclass
class Desk:
    """One output folder, and every process that was started for it."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def plan(self, name: str = "night", **keys: Any) -> Path:
        """Writes a plan of the test engine with these keys changed (None takes a key away)."""
        body = {k: v for k, v in {**FAULTY_PLAN, **keys}.items() if v is not None}
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(body), encoding="utf-8")
        return path

    def start(
        self,
        *arguments: str | Path,
        stdout: Any = subprocess.PIPE,
        stderr: Any = subprocess.PIPE,
        under: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        """Starts a command; where its output goes may be said, and by which other command it is started (`nice`)."""
        process = subprocess.Popen(
            [*under, sys.executable, "-m", "orchestrator", *map(str, arguments)],
            stdout=stdout,
            stderr=stderr,
            text=True,
            env={**os.environ, MARK: self.mark},
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def call(self, *arguments: str | Path, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run(self, plan: Path, *more: str) -> subprocess.CompletedProcess[str]:
        return self.call("run", plan, "-o", self.runs, *more)

    def resume(self, name: str = "night", *more: str) -> subprocess.CompletedProcess[str]:
        return self.call("resume", self.runs / name, *more)

    def status(self, name: str = "night") -> dict[str, Any]:
        """The document of `status --json`."""
        done = self.call("status", self.runs / name, "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["schema"] == 1
        return dict(document)

    def verdicts(self, name: str = "night") -> dict[str, tuple[str | None, str | None]]:
        """Verdict and cause by cell; fails where a cell is listed twice."""
        cells = self.status(name)["cells"]
        found = {cell["cell_id"]: (cell["verdict"], cell["cause"]) for cell in cells}
        assert len(found) == len(cells)
        return found

    def journal(self, name: str = "night") -> list[dict[str, Any]]:
        """The journal's events; every line has to parse."""
        lines = (self.runs / name / "journal.jsonl").read_bytes().split(b"\n")
        assert lines[-1] == b""
        return [json.loads(line) for line in lines[:-1]]

    def left_behind(self) -> list[psutil.Process]:
        """Living processes that descend from this desk's commands (by a mark in their environment)."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                dead = process.status() == psutil.STATUS_ZOMBIE
                if not dead and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def command_lines(self) -> list[str]:
        """The command lines of what `left_behind` finds."""
        lines = []
        for process in self.left_behind():
            with contextlib.suppress(psutil.NoSuchProcess):
                lines.append(" ".join(process.cmdline()))
        return lines

    def clear(self) -> None:
        """Ends whatever is left."""
        for process in self.left_behind():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@contextlib.contextmanager
def desk(folder: Path) -> Iterator[Desk]:
    """A desk; anything still alive at the end fails the test, and is ended."""
    held = Desk(folder)
    try:
        yield held
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not held.left_behind(), limit_s=5.0)
        alive = held.command_lines()
        assert not alive, f"left behind: {alive}"
    finally:
        held.clear()

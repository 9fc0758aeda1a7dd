"""What watching costs the cell: generation_tps of one worker's repetitions, watched and not, in turn.

    python -m bench.overhead --pairs 150

One worker, so that no two processes are compared: the watchdog is stopped (SIGSTOP) for every other repetition. Watched
repetitions bear all that a sweep does: a watchdog at 10 Hz, and its samples taken in and written to a file here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.sweeping import WALL_MODEL, end_in_order, worker_spec
from bench.tables import bootstrap, markdown, quantile
from orchestrator.child import Child
from orchestrator.flight_recorder import FlightRecorder
from orchestrator.strays import attempt_tag
from orchestrator.watchdog import wire
from orchestrator.watchdog.limits import Limits
from orchestrator.watching import WatchdogLink
from worker.protocol import Message, ModelSource, RepResult, WorkerSpec, decode
from worker.telemetry import TelemetryPage, create_page_fd

BATCH, CONTEXT, TOKENS = 4, 512, 48


@dataclass
class Measured:
    """Tokens per second of the repetitions by whether they were watched, and what the watchdog itself took."""

    watched: list[float] = field(default_factory=list)
    unwatched: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    watched_s: float = 0.0
    rss_bytes: int = 0


def main() -> int:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=150, help="repetitions of either kind (default 150, at most 499)")
    parser.add_argument("--json", type=Path, help="where every single result goes")
    options = parser.parse_args()
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="wallfinder-bench-") as folder:
        measured = measure(options.pairs, Path(folder))
    if options.json:
        options.json.write_text(json.dumps(measured.__dict__, indent=1))
    print(table(measured))
    return 0


def table(measured: Measured) -> str:
    """The ratio with its interval, and what the watchdog took, in Markdown."""
    ratios = [a / b for a, b in zip(measured.watched, measured.unwatched, strict=True)]
    low, high = bootstrap(ratios)
    late_ms = [1e3 * late_s for late_s in measured.late_s]
    rows = [
        ("generation_tps, watched / not, median of pairs", f"{statistics.median(ratios):.4f}"),
        ("95 % interval (bootstrap)", f"{low:.4f} to {high:.4f}, {len(ratios)} pairs"),
        ("watchdog, share of one core", f"{100 * measured.cpu_s / measured.watched_s:.2f} %"),
        ("watchdog, resident", f"{measured.rss_bytes / 1e6:.1f} MB"),
        ("tick lateness p50 / p99", f"{quantile(late_ms, 0.5):.2f} / {quantile(late_ms, 0.99):.2f} ms"),
    ]
    return markdown(("what", "seen"), rows)


def measure(pairs: int, folder: Path) -> Measured:
    """Runs one worker of 2 x pairs repetitions, and two more that are not counted."""
    page_fd = create_page_fd()
    page = TelemetryPage(page_fd)
    page.lay(1)
    link = WatchdogLink(page_fd)
    recorder = FlightRecorder(folder / "samples.jsonl")
    with (folder / "worker.log").open("wb") as log:
        child = Child(page_fd, log.fileno(), {}, attempt_tag(1))
    try:
        link.send(wire.Watch(1, child.pid, Limits(memory_bytes=1 << 40)))
        child.send(_spec(2 * pairs + 2))
        return _Turns(child, link, recorder).run()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(link.ready.pid, signal.SIGCONT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.reap()
        link.kill()
        recorder.close()
        os.close(page_fd)


class _Turns:
    """Takes the worker's repetitions in and stops the watchdog for every other one."""

    def __init__(self, child: Child, link: WatchdogLink, recorder: FlightRecorder) -> None:
        self._child, self._link, self._recorder = child, link, recorder
        self._watchdog = psutil.Process(link.ready.pid)
        self._measured = Measured()
        self._rep, self._since_s = 0, time.monotonic()
        self._cpu_before_s = self._cpu_s()

    def run(self) -> Measured:
        """Until the worker is done."""
        buffer = b""
        while not self._child.notice.died():
            readable, _, _ = select.select([self._child.result_fd, self._link.fd, *self._notice()], [], [], 60)
            if self._link.fd in readable:
                self._take_samples()
            if self._child.result_fd in readable:
                with contextlib.suppress(BlockingIOError):
                    data = os.read(self._child.result_fd, 1 << 16)
                    if not data:
                        break
                    *lines, buffer = (buffer + data).split(b"\n")
                    for line in lines:
                        self._take(decode(line))
        return self._measured

    def _notice(self) -> list[int]:
        return [fd for fd in (self._child.notice.fd,) if fd is not None]

    def _take_samples(self) -> None:
        for message in self._link.receive():
            if isinstance(message, wire.Samples):
                self._recorder.samples(message.samples)
                if self._is_watched() and self._rep > 1:
                    # The first tick after it was stopped is as late as it was stopped.
                    ticks = [one for one in message.samples if one["monotonic_s"] > self._since_s + 0.3]
                    self._measured.late_s += [one["late_s"] for one in ticks]

    def _take(self, message: Message) -> None:
        if not isinstance(message, RepResult):
            return
        now = time.monotonic()
        if self._rep >= 2:  # the first of either kind compiles and allocates
            rate = BATCH * (TOKENS - 1) / sum(message.step_s)
            (self._measured.watched if self._is_watched() else self._measured.unwatched).append(rate)
            if self._is_watched():
                self._measured.watched_s += now - self._since_s
                self._measured.cpu_s += self._cpu_s() - self._cpu_before_s
                self._measured.rss_bytes = max(self._measured.rss_bytes, self._watchdog.memory_info().rss)
        self._rep += 1
        self._watchdog.send_signal(signal.SIGCONT if self._is_watched() else signal.SIGSTOP)
        self._since_s, self._cpu_before_s = time.monotonic(), self._cpu_s()

    def _is_watched(self) -> bool:
        return self._rep % 2 == 0

    def _cpu_s(self) -> float:
        times: Any = self._watchdog.cpu_times()
        with contextlib.suppress(OSError):  # to the nanosecond, where the kernel counts so finely
            return int(Path(f"/proc/{self._watchdog.pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
        return float(times.user + times.system)


def _spec(reps: int) -> WorkerSpec:
    config = {key: value for key, value in WALL_MODEL["synthetic"].items() if key != "dtype"}
    model = ModelSource(config_json=json.dumps(config))
    return worker_spec(model, BATCH, CONTEXT, TOKENS, reps=reps, context_fill="random", prefill_step_size=512)


if __name__ == "__main__":
    sys.exit(main())

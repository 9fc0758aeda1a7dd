"""Owns what a healthy cell has to bear: busy neighbours, swapping neighbours, a second's stop. Each cleans up."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import psutil

from orchestrator.cgroup import WorkerCgroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BUSY = "while True: pass"
_TOUCHING = """
import os, sys, time
held = bytearray(int(sys.argv[1]))
for at in range(0, len(held), 4096):
    held[at : at + 16] = os.urandom(16)
print(1, flush=True)
while sys.argv[2] == "touch":
    for at in range(0, len(held), 4096):
        held[at] = (held[at] + 1) % 256
time.sleep(86400)
"""
SWAPPER_BYTES, SWAPPER_BOUND_BYTES = 300_000_000, 150_000_000


@contextlib.contextmanager
def busy_neighbours() -> Iterator[None]:
    """A busy loop on every processor."""
    count = os.cpu_count() or 1
    loops = [subprocess.Popen([sys.executable, "-I", "-S", "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def swapping_neighbour() -> Iterator[None]:
    """A program that touches 300 MB over and over in a group of its own that may hold 150 MB. Takes root and swap."""
    with _program_in_a_group("touch", SWAPPER_BOUND_BYTES):
        yield


@contextlib.contextmanager
def idle_programs_swapped_out(every_s: float = 4.0) -> Iterator[None]:
    """A program that holds 300 MB and sleeps; every few seconds the kernel pushes some of it out in one burst."""
    with _program_in_a_group("idle", 2 * SWAPPER_BYTES) as group:
        sizes = iter(range(SWAPPER_BYTES, 20_000_000, -15_000_000))

        def squeeze() -> None:
            for name in ("memory.limit_in_bytes", "memory.max"):
                with contextlib.suppress(OSError, StopIteration), open(f"{group.path}/{name}", "r+") as file:  # noqa: PTH123 - not to be made
                    file.write(str(next(sizes)))

        with _now_and_then(every_s, squeeze):
            yield


@contextlib.contextmanager
def _program_in_a_group(what: str, bound_bytes: int) -> Iterator[WorkerCgroup]:
    group = WorkerCgroup.create(bound_bytes, f"{os.getpid()}-neighbour")
    try:
        command = [sys.executable, "-I", "-S", "-c", _TOUCHING, str(SWAPPER_BYTES), what]
        with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=lambda: group.add(os.getpid())) as program:  # noqa: PLW1509 - no thread is running here
            try:
                assert program.stdout is not None
                program.stdout.readline()
                yield group
            finally:
                program.kill()
    finally:
        group.remove()


@contextlib.contextmanager
def stopped_for_a_second(sweep: psutil.Process, mark: str, seed: int = 0) -> Iterator[list[int]]:
    """SIGSTOP for one second to each process of the sweep that has `mark` in its command line, at a random moment.

    Gives the list of those that were stopped, which grows. A process is stopped again every few seconds of its life.
    """
    draw = random.Random(seed)
    stopped: list[int] = []
    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(draw.uniform(0.5, 2.5)):
            with contextlib.suppress(psutil.Error):
                for process in sweep.children(recursive=True):
                    if mark not in " ".join(process.cmdline()):
                        continue
                    process.send_signal(signal.SIGSTOP)
                    stopped.append(process.pid)
                    ended.wait(1.0)
                    process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        ended.set()
        thread.join(10)


@contextlib.contextmanager
def _now_and_then(every_s: float, act: Callable[[], None]) -> Iterator[None]:
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every_s):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)

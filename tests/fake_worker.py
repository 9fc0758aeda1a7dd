"""Plays a worker: writes a real telemetry page and behaves as its part says.

Runs as a program, with the standard library only.

Arguments: the project's root, the descriptor of the page, the part, and the part's own arguments.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

sys.path.append(sys.argv[1])

from worker.telemetry import Phase, TelemetryPage

PAGE = TelemetryPage(int(sys.argv[2]))


def steps(count: int, seconds: float, *, heed: bool = True) -> None:
    """Decode steps of one length; a flag is heeded between two of them."""
    for _ in range(count):
        if heed and PAGE.stop_requested:
            sys.exit(0)
        began = time.monotonic_ns()
        time.sleep(seconds)
        PAGE.step(time.monotonic_ns() - began)


def finish(count: str = "20") -> None:
    """Ends by itself."""
    steps(int(count), 0.01)
    PAGE.enter(Phase.DONE)


def wait() -> None:
    """Decodes until it is asked to stop."""
    while True:
        steps(1, 0.01)


def slow() -> None:
    """Decodes quickly, then six times slower."""
    steps(20, 0.02)
    while True:
        steps(1, 0.2)


def deaf() -> None:
    """Never looks at the flag."""
    while True:
        steps(1, 0.01, heed=False)


def stubborn() -> None:
    """Ignores SIGTERM, and hangs in C while it holds the interpreter's lock."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("ready")
    ctypes.PyDLL(None).sleep(3600)


def parent() -> None:
    """Starts a child in its group that ignores SIGTERM, says its pid, and decodes on."""
    say(str(child(new_session=False)))
    wait()


def short_lived_parent() -> None:
    """Starts such a child and ends."""
    say(str(child(new_session=False)))


def parent_of_deserter() -> None:
    """Starts a child that leaves the group, says its pid, and decodes on."""
    say(str(child(new_session=True)))
    wait()


def swell(megabytes: str) -> None:
    """Waits for a line, then touches memory over and over, a step per round."""
    sys.stdin.readline()
    PAGE.enter(Phase.PREFILL, chunks=1)
    memory = bytearray(int(megabytes) << 20)
    for at in range(0, len(memory), 4096):
        memory[at] = 1
    PAGE.mark()
    PAGE.enter(Phase.DECODE)
    while not PAGE.stop_requested:
        began = time.monotonic_ns()
        for at in range(0, len(memory), 4096):
            memory[at] = (memory[at] + 1) % 251
        PAGE.step(time.monotonic_ns() - began)


def child(*, new_session: bool) -> int:
    """A process that ignores SIGTERM and stays."""
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(3600)"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], start_new_session=new_session, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process.pid


def say(text: str) -> None:
    """A line on standard output."""
    print(text, flush=True)


if __name__ == "__main__":
    PAGE.open_as_worker()
    PAGE.enter(Phase.DECODE)
    globals()[sys.argv[3]](*sys.argv[4:])
    os._exit(0)

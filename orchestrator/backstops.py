"""Owns the proof that this kernel's backstops work here: each is tried on canary processes.

Does not set them up, for a worker (worker/backstops.py does) or for the watchdog (watchdog/residency.py does, and says
what became of them).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cgroup import WorkerCgroup
from orchestrator.errors import HostUnfit
from orchestrator.watchdog.exit_notice import ExitNotice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERIFIED = "verified"
_LIMIT_S = 10.0  # only a backstop that does not work takes as long
_CANARY_S = 12  # a canary that nobody waits for any more ends by itself
_NOT_HERE = "absent: this platform has none"
_TIMER = (
    "import ctypes, signal; signal.signal(signal.SIGALRM, signal.SIG_DFL);"
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM});"
    f"signal.setitimer(signal.ITIMER_REAL, 0.05); ctypes.PyDLL(None).sleep({_CANARY_S})"  # PyDLL keeps Python's lock
)
_OOM_SCORE = (
    "f = open('/proc/self/oom_score_adj', 'r+'); f.write('1000'); f.flush(); f.seek(0); print(f.read().strip())"
)
_SLEEPER = f"print(1, flush=True); import time; time.sleep({_CANARY_S})"
_ORPHAN = f"import ctypes, time; print(ctypes.CDLL(None).prctl(1, 9, 0, 0, 0), flush=True); time.sleep({_CANARY_S})"
_PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-S', '-c', {_ORPHAN!r}])"
_CANARY_BYTES = 1 << 28


def verify_backstops() -> dict[str, str]:
    """What became of each: `verified`, or `absent: ` and why. Takes some tenths of a second; leaves nothing behind.

    `interval_timer`: a timer with the default action ends a process that holds the interpreter's lock in C.
    `exit_notice`: a death is told without reaping. `parent_death`: a process dies with its parent (Linux).
    `oom_score_adj`: a process can make itself the kernel's first choice (Linux). `worker_cgroup`: a bounded control
    group can be made (Linux), `oom_group`: which the kernel ends whole (v2). `jetsam_limit`: not used.
    """
    trials: dict[str, Callable[[], str]] = {
        "interval_timer": _interval_timer,
        "exit_notice": _exit_notice,
        "parent_death": _parent_death,
        "oom_score_adj": _oom_score,
    }
    with ThreadPoolExecutor(len(trials)) as pool:
        futures = {name: pool.submit(_tried, trial) for name, trial in trials.items()}
        found = {name: future.result() for name, future in futures.items()}
    found |= _worker_cgroup()
    return found | {"jetsam_limit": "absent: a private interface of macOS, not used"}


def _tried(trial: Callable[[], str]) -> str:
    try:
        return trial()
    except (OSError, subprocess.SubprocessError) as error:
        return f"absent: {error}"


@contextlib.contextmanager
def _canary(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process, and leader of a group, that is gone when the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process
        finally:
            if process.returncode is None:  # once it is reaped its number may be somebody else's
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    """What the canary says next; empty at its end, or where it says nothing in time."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], _LIMIT_S)
    return process.stdout.readline().strip() if readable else b""


def _interval_timer() -> str:
    with _canary(_TIMER) as canary:
        try:
            status = canary.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            return "absent: a process in C outlived its timer"
    return VERIFIED if status == -signal.SIGALRM else f"absent: the timer's canary ended with {status}"


def _exit_notice() -> str:
    with _canary(_SLEEPER) as canary:
        notice = ExitNotice(canary.pid)
        try:
            if notice.fd is None:
                return "absent: no pidfd on this kernel; deaths are seen by polling"
            if not _line(canary) or notice.died():
                return "absent: the canary did not live"
            canary.send_signal(signal.SIGKILL)
            told, _, _ = select.select([notice.fd], [], [], _LIMIT_S)
        finally:
            notice.close()
    return VERIFIED if told else "absent: a death was not told"


def _parent_death() -> str:
    if sys.platform == "darwin":
        return _NOT_HERE
    else:
        with _canary(_PARENT) as parent:
            if _line(parent) != b"0":
                return "absent: PR_SET_PDEATHSIG is refused"
            parent.send_signal(signal.SIGKILL)
            # The orphan holds the pipe's other end until it dies.
            return VERIFIED if _closes(parent) else "absent: an orphan outlived its parent"


def _closes(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    end_s = time.monotonic() + _LIMIT_S
    while (left_s := end_s - time.monotonic()) > 0:
        readable, _, _ = select.select([process.stdout], [], [], left_s)
        if readable and not os.read(process.stdout.fileno(), 4096):
            return True
    return False


def _oom_score() -> str:
    if not Path("/proc/self/oom_score_adj").exists():
        return _NOT_HERE
    with _canary(_OOM_SCORE) as canary:
        return VERIFIED if _line(canary) == b"1000" else "absent: the score cannot be raised"


def _worker_cgroup() -> dict[str, str]:
    if sys.platform == "darwin":
        return dict.fromkeys(("worker_cgroup", "oom_group"), _NOT_HERE)
    else:
        try:
            group = WorkerCgroup.create(_CANARY_BYTES, f"{os.getpid()}-canary")
        except HostUnfit:  # whose words name folders of this machine, which host.json does not keep
            return dict.fromkeys(("worker_cgroup", "oom_group"), "absent: not permitted, or no memory controller")
        try:
            holds = group.limit_bytes == _CANARY_BYTES
            whole = (Path(group.path) / "memory.oom.group").exists()
        finally:
            group.remove()
        return {
            "worker_cgroup": VERIFIED if holds else "absent: the kernel holds another bound",
            "oom_group": VERIFIED if whole else "absent: cgroup version 1, or a kernel before 4.19",
        }

"""Owns a worker process from spawn to reaping: its pipes, its group, and the notice of its death.

Does not judge and does not kill. A dead worker stays a zombie until `reap`, so that its pid and its group's
number cannot be given to anybody else while the watchdog may still send signals.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from orchestrator.watchdog.exit_notice import ExitNotice
from orchestrator.watchdog.strays import TAG
from worker.protocol import WorkerSpec, encode_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

# Workers never talk to a hub, whatever a plan's `env` says. What is taken out may be put back by a plan that names it:
# that Metal switch wedges the GPU when a worker dies (ml-explore/mlx#3830).
_FORCED_ENV = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
_SCRUBBED_ENV = ("MLX_METAL_FAST_SYNCH", "PYTHONSTARTUP", "PYTHONINSPECT")

# A repetition of 4096 steps is over 64 KB of results, which is what a pipe holds by itself: a worker whose orchestrator
# is stopped (Ctrl-Z) or late would stand still in its write, and be taken for one that hangs.
_RESULT_PIPE_BYTES = 1 << 20


class Child:
    """One worker process, leader of its own session and group.

    `result_fd` is the reading end of its private result pipe, non-blocking.
    """

    def __init__(self, page_fd: int, log_fd: int, env: Mapping[str, str], tag: str) -> None:
        """Spawns the worker; it waits for its spec. `tag` marks it and all that it starts (strays.py).

        Raises:
            OSError: no process or descriptor could be had.
        """
        with contextlib.ExitStack() as undo:
            self.result_fd, result_write = _pipe(undo)
            control_read, self._control_fd = _pipe(undo)
            os.set_blocking(self.result_fd, False)
            _widen(self.result_fd)
            command = [sys.executable, "-P", "-m", "worker"]
            fds = {"--page-fd": page_fd, "--control-fd": control_read, "--result-fd": result_write}
            self._process = subprocess.Popen(
                [*command, *(word for name, fd in fds.items() for word in (name, str(fd)))],
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                pass_fds=tuple(fds.values()),
                start_new_session=True,
                env={**_worker_env(env), TAG: tag},
            )
            self.pid = self._process.pid
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.notice = ExitNotice(self.pid)
            undo.pop_all()
        os.close(result_write)
        os.close(control_read)

    def send(self, spec: WorkerSpec) -> None:
        """Lets the worker begin. A worker that is dead already is no error: its death is the result."""
        line = encode_spec(spec)
        try:
            while line:
                line = line[os.write(self._control_fd, line) :]
        except BrokenPipeError:
            pass

    def reap(self) -> int:
        """Collects the dead worker and gives everything back.

        Returns:
            its exit status; negative for the signal that ended it.
        """
        status = self._process.wait()
        self.release()
        return status

    def release(self) -> None:
        """Gives the descriptors back without waiting for the process (an unkillable worker is never reaped)."""
        self.notice.close()
        os.close(self.result_fd)
        os.close(self._control_fd)


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe that `undo` closes, unless it is told that all went well."""
    ends = os.pipe()
    for fd in ends:
        undo.callback(os.close, fd)
    return ends


def _widen(fd: int) -> None:
    """Lets a pipe hold more, where the platform has such a thing (Linux) and lends the memory."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _RESULT_PIPE_BYTES)


def _worker_env(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in _SCRUBBED_ENV}
    return {**kept, **extra, **_FORCED_ENV}

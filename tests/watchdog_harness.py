"""Runs a real watchdog process beside real worker processes, and leaves none of them behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from orchestrator.watchdog import wire
from orchestrator.watchdog.exit_notice import ExitNotice
from orchestrator.watchdog.launch import spawn_watchdog
from orchestrator.watchdog.limits import Limits
from worker.telemetry import TelemetryPage, create_page_fd

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
FAKE_WORKER = Path(__file__).with_name("fake_worker.py")
LIMITS = Limits(memory_bytes=24 * 10**9, sample_every_s=0.02)
M = TypeVar("M", bound=wire.WireMessage)


def wait_until(what: Callable[[], object], limit_s: float = 30.0) -> None:
    """Polls until `what` is true; fails after a limit that only a defect reaches."""
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.01)  # the poll's period, not a synchronisation


def state_of(pid: int) -> str | None:
    """The one-letter state of a process, None where there is none. Linux only."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return None


def is_gone(pid: int) -> bool:
    """Whether nothing of the process is left but, at most, a zombie that its adopter has not reaped yet."""
    return state_of(pid) in (None, "Z", "X")


def wait_for_death(pid: int, limit_s: float = 30.0) -> None:
    """Waits until a child is dead, without reaping it."""
    notice = ExitNotice(pid)
    try:
        wait_until(notice.died, limit_s)
    finally:
        notice.close()


@dataclass
class Harness:
    """One watchdog and the workers it was told of. Use it as a context manager."""

    messages: list[wire.WireMessage] = field(default_factory=list)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    serial: int = 0
    wired: bool = False

    def __enter__(self) -> Self:
        self.page_fd = create_page_fd()
        self.page = TelemetryPage(self.page_fd)
        self.process, self.socket = spawn_watchdog(self.page_fd, wired=self.wired)
        self._buffer = b""
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        for process in (self.process, *self.workers):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
            for pipe in (worker.stdout, worker.stdin):
                if pipe is not None:
                    pipe.close()
        os.close(self.page_fd)

    def start(self, play: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a worker that plays one of the parts of fake_worker.py."""
        self.serial += 1
        self.page.lay(self.serial)
        worker = subprocess.Popen(
            [sys.executable, "-I", "-S", str(FAKE_WORKER), str(ROOT), str(self.page_fd), play, *arguments],
            pass_fds=(self.page_fd,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.workers.append(worker)
        return worker

    def watch(self, worker: subprocess.Popen[bytes], limits: Limits = LIMITS, cgroup: str | None = None) -> None:
        """Tells the watchdog of a worker."""
        self.say(wire.Watch(self.serial, worker.pid, limits, cgroup))

    def say(self, message: wire.WireMessage) -> None:
        """Sends a message to the watchdog."""
        self.socket.sendall(wire.encode(message))

    def hear(self, kind: type[M], limit_s: float = 30.0) -> M:
        """The next message of a kind; those before it are kept in `messages`."""
        deadline = time.monotonic() + limit_s
        while True:
            while b"\n" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\n")
                message = wire.decode(line)
                self.messages.append(message)
                if isinstance(message, kind):
                    return message
            left = deadline - time.monotonic()
            assert left > 0, f"no {kind.type} within {limit_s} s; heard {self.messages}"
            if select.select([self.socket], [], [], left)[0]:
                data = self.socket.recv(1 << 16)
                assert data, "the watchdog closed its end"
                self._buffer += data

    def release(self, worker: subprocess.Popen[bytes]) -> wire.Released:
        """Waits for the worker's death without reaping it, says so, and reaps it once it is released."""
        wait_for_death(worker.pid, 600.0)
        self.say(wire.Exited(self.serial))
        released = self.hear(wire.Released)
        worker.wait()
        return released

    def of(self, kind: type[M]) -> list[M]:
        """The messages of one kind heard so far."""
        return [message for message in self.messages if isinstance(message, kind)]

    def samples(self) -> list[dict[str, object]]:
        """All samples heard so far."""
        return [sample for batch in self.of(wire.Samples) for sample in batch.samples]

    def status(self, key: str) -> int:
        """A number of the watchdog's /proc/PID/status."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1])
        raise KeyError(key)

    def cpu_s(self) -> float:
        """Processor time the watchdog has used, to the nanosecond where the kernel counts that finely."""
        with contextlib.suppress(FileNotFoundError):
            return int(Path(f"/proc/{self.process.pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

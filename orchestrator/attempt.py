"""Owns one attempt: spawn the worker, hand it to the watchdog, collect what both say, reap.

Does not decide what became of the cell (verdict.py) and writes only the attempt's own folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.child import Child
from orchestrator.errors import HostUnfit
from orchestrator.flight_recorder import FlightRecorder
from orchestrator.jetsam import report_since
from orchestrator.run_directory import RECORDING
from orchestrator.strays import attempt_tag, end_attempt
from orchestrator.watchdog import wire
from orchestrator.watching import WatchdogGone, WatchdogLink
from orchestrator.worker_log import WorkerLog
from worker import protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from orchestrator.interrupts import Interrupts
    from orchestrator.watchdog.limits import Limits
    from worker.telemetry import Telemetry, TelemetryPage

_TICK_S = 0.25
_EXIT_AFTER_LAST_MESSAGE_S = 10.0  # a library's clean-up may hang at exit: the result stands, the process does not
_SILENT_WATCHDOG_S = 60.0
_RELEASE_S = 20.0
_UNKILLABLE_S = 45.0  # as long as the watchdog's own ladder may take
_MAX_LINE_BYTES = 64 * 1024 * 1024
_READS_AT_ONCE = 16


class Bound(Protocol):
    """A memory bound that a worker can be put under."""

    @property
    def path(self) -> str:
        """The control group's folder."""

    def add(self, pid: int) -> None:
        """Puts a process under the bound."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to run and how to watch it; `observe`: without ending it for memory or slowness."""

    spec: protocol.WorkerSpec
    limits: Limits
    env: Mapping[str, str]
    folder: Path
    bound: Bound | None = None
    observe: bool = False


@dataclass(slots=True)
class Outcome:
    """What is known when an attempt is over.

    `exit_status` is None where the worker could not be ended. `acted` is why the watchdog began to end it, also where
    it died before it could say more; `asked_cause` why we asked it to.
    """

    exit_status: int | None = None
    hello: protocol.Hello | None = None
    model: protocol.ModelFacts | None = None
    reps: list[protocol.RepResult] = field(default_factory=list)
    final: protocol.Done | protocol.Stopped | protocol.Failure | None = None
    torn: bool = False
    released: wire.Released | None = None
    watchdog_died: bool = False
    acted: wire.Acted | None = None
    asked_cause: str | None = None
    telemetry: Telemetry | None = None
    log_tail: str = ""
    jetsam_report: str | None = None
    strays: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What the screen may show of a running attempt."""

    telemetry: Telemetry | None
    footprint_bytes: int | None
    swap_growth_bytes: int | None
    elapsed_s: float


class Attempt:
    """Runs one order to its end. One instance per attempt."""

    def __init__(
        self, order: Order, page: TelemetryPage, page_fd: int, watchdog: WatchdogLink, interrupts: Interrupts
    ) -> None:
        self._order, self._page, self._watchdog, self._interrupts = order, page, watchdog, interrupts
        self._page_fd = page_fd
        self._tag = attempt_tag(order.spec.serial)
        self._outcome = Outcome()
        self._line = bytearray()
        self._asked = 0  # how many interrupts were passed on
        self._gone_quiet_at: float | None = None
        self._footprint_bytes: int | None = None
        self._swap_first_bytes: int | None = None
        self._swap_bytes: int | None = None
        self._killed_at: float | None = None
        self._watched = False
        self._came = False
        self._unkillable = False

    def run(self, show: Callable[[Glimpse], None]) -> Outcome:
        """The whole attempt. `show` is called about four times a second.

        Raises:
            HostUnfit: no process, descriptor or file could be had; nothing was started.
        """
        started, started_at_s = time.monotonic(), time.time()
        self._page.lay(self._order.spec.serial)
        with contextlib.ExitStack() as opened:
            try:
                log = WorkerLog(self._order.folder / "worker.log")
                opened.callback(self._close_log, log)
                self._recorder = FlightRecorder(self._order.folder / RECORDING)
                opened.callback(self._recorder.close)
                child = Child(self._page_fd, log.fd, self._order.env, self._tag)
            except OSError as error:
                cell_id = self._order.spec.cell_id
                raise HostUnfit(
                    f"a worker for {cell_id} could not be started: {error}; mend that, then resume"
                ) from error
            try:
                self._start(child)
                self._wait(child, log, lambda: show(self._glimpse(started)))
            finally:
                self._finish(child)
        self._outcome.telemetry = self._page.read()
        if sys.platform == "darwin" and self._outcome.exit_status == -signal.SIGKILL:
            self._outcome.jetsam_report = report_since(started_at_s)
        self._outcome.duration_s = time.monotonic() - started
        return self._outcome

    def _close_log(self, log: WorkerLog) -> None:
        with contextlib.suppress(OSError):  # a full disk must not cost the verdict
            self._outcome.log_tail = log.tail()
            log.close()

    # -- stages

    def _start(self, child: Child) -> None:
        if self._order.bound is not None:
            self._order.bound.add(child.pid)
        cgroup = self._order.bound.path if self._order.bound is not None else None
        order, recording = self._order, str((self._order.folder / RECORDING).absolute())
        limits = dataclasses.asdict(order.limits)
        self._recorder.event("watch", time.monotonic(), limits=limits, observe=order.observe)
        watch = wire.Watch(order.spec.serial, child.pid, order.limits, cgroup, order.observe, recording, self._tag)
        self._tell(watch, child)
        self._watched = True
        self._watchdog.heard_at_s = time.monotonic()
        child.send(self._order.spec)

    def _wait(self, child: Child, log: WorkerLog, show: Callable[[], None]) -> None:
        """Until the worker is dead, or cannot be killed."""
        with selectors.DefaultSelector() as selector:
            for fd in (child.result_fd, self._watchdog.fd, self._interrupts.fd, child.notice.fd):
                if fd is not None:
                    selector.register(fd, selectors.EVENT_READ)
            listening = True
            shown_at = 0.0
            while not child.notice.died() and not self._unkillable:
                ready = {key.fd for key, _ in selector.select(_TICK_S)}
                if child.result_fd in ready and not self._read_results(child):
                    selector.unregister(child.result_fd)
                if listening and not self._hear(child):
                    selector.unregister(self._watchdog.fd)
                    listening = False
                self._pass_on_interrupts(child)
                self._end_a_worker_that_is_done(child)
                self._give_up_a_worker_that_does_not_die()
                if time.monotonic() - shown_at >= _TICK_S:
                    shown_at = time.monotonic()
                    with contextlib.suppress(OSError):
                        log.trim()
                    show()

    def _finish(self, child: Child) -> None:
        """Collects the rest and reaps. The group is emptied while the dead leader still pins its number."""
        while self._read_results(child) and len(self._line) < _MAX_LINE_BYTES and self._came:
            pass
        self._outcome.torn = self._outcome.torn or bool(self._line)
        if not child.notice.died():  # unkillable, or our own failure on the way: nothing may outlive it
            self._kill(child)
        if not self._dies(child):
            child.release()
            return
        self._await_release(child)
        if self._outcome.watchdog_died:
            self._watchdog.kill()  # or it may wake up later, and signal a number that is somebody else's by then
        self._kill(child)
        self._outcome.exit_status = child.reap()
        self._outcome.strays = end_attempt(self._tag)

    def _dies(self, child: Child) -> bool:
        """Waits for the worker's death: not at all for one that was given up already."""
        deadline = time.monotonic() + (0.0 if self._unkillable else _UNKILLABLE_S)
        while not child.notice.died():
            if time.monotonic() >= deadline:
                self._unkillable = True
                return False
            select.select([fd for fd in (child.notice.fd,) if fd is not None], [], [], _TICK_S)
        return True

    def _await_release(self, child: Child) -> None:
        if self._outcome.watchdog_died or not self._watched:
            return
        self._tell(wire.Exited(self._order.spec.serial), child)
        deadline = time.monotonic() + _RELEASE_S
        # No selector of the kernel's here: it takes a descriptor, and there may be none left.
        while self._outcome.released is None and not self._outcome.watchdog_died:
            left = deadline - time.monotonic()
            select.select([self._watchdog.fd], [], [], max(0.0, left))
            if not self._hear(child) or (left <= 0 and self._outcome.released is None):
                self._outcome.watchdog_died = True

    # -- what comes in

    def _read_results(self, child: Child) -> bool:
        """Takes in some of what the worker has written; `_came` says whether there was any. False at the end.

        A bounded amount, so that a worker that writes without end keeps nobody from stopping it.
        """
        self._came = False
        for _ in range(_READS_AT_ONCE):
            try:
                data = os.read(child.result_fd, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._came = True
            self._line += data
            if b"\n" in data:
                *lines, rest = bytes(self._line).split(b"\n")
                self._line = bytearray(rest)
                for line in lines:
                    self._take(line)
            elif len(self._line) > _MAX_LINE_BYTES:
                self._line.clear()  # what follows will not parse, and says that the stream is torn
        return True

    def _take(self, line: bytes) -> None:
        try:
            message = protocol.decode(line)
        except protocol.ProtocolError:
            self._outcome.torn = True
            return
        match message:
            case protocol.Hello():
                self._outcome.hello = message
            case protocol.ModelFacts():
                self._outcome.model = message
            case protocol.RepResult():
                self._outcome.reps.append(message)
            case protocol.Done() | protocol.Stopped() | protocol.Failure():
                self._outcome.final = message
                self._gone_quiet_at = time.monotonic()

    def _hear(self, child: Child) -> bool:
        """Takes in what the watchdog has said. False where it is gone or silent: then the worker is killed."""
        if self._outcome.watchdog_died:
            return False
        try:
            for message in self._watchdog.receive():
                self._heed(message)
        except WatchdogGone:
            self._lose_watchdog(child)
            return False
        if time.monotonic() - self._watchdog.heard_at_s > _SILENT_WATCHDOG_S:
            self._lose_watchdog(child)
            return False
        return True

    def _heed(self, message: wire.WireMessage) -> None:
        if getattr(message, "serial", None) != self._order.spec.serial:
            return
        match message:
            case wire.Samples():
                self._note_for_screen(message.samples)
                self._recorder.samples(message.samples)
            case wire.Acted():
                self._outcome.acted = self._outcome.acted if message.observed else message
                name = "would_act" if message.observed else "acted"
                self._recorder.event(name, message.at_s, cause=message.cause, evidence=message.evidence)
            case wire.Rung():
                self._unkillable = self._unkillable or message.name == "unkillable"
                self._recorder.event("rung", message.at_s, name=message.name)
            case wire.Released():
                self._outcome.released = message
                self._unkillable = self._unkillable or message.unkillable
                self._recorder.event("released", time.monotonic())
            case _:
                pass

    # -- what goes out

    def _pass_on_interrupts(self, child: Child) -> None:
        self._interrupts.drain()
        wanted = min(self._interrupts.count, 2)
        if wanted > self._asked:
            self._asked = wanted
            self._stop(child, "interrupted", hurry=self._interrupts.hurry)

    def _end_a_worker_that_is_done(self, child: Child) -> None:
        quiet_since = self._gone_quiet_at
        if quiet_since is not None and time.monotonic() - quiet_since > _EXIT_AFTER_LAST_MESSAGE_S:
            self._gone_quiet_at = None
            self._stop(child, "exit_hang", hurry=False)

    def _give_up_a_worker_that_does_not_die(self) -> None:
        if self._killed_at is not None and time.monotonic() - self._killed_at > _UNKILLABLE_S:
            self._unkillable = True

    def _stop(self, child: Child, cause: str, *, hurry: bool) -> None:
        self._outcome.asked_cause = self._outcome.asked_cause or cause
        self._tell(wire.StopWorker(self._order.spec.serial, cause, hurry), child)

    def _tell(self, message: wire.WireMessage, child: Child) -> None:
        if self._outcome.watchdog_died:
            return
        try:
            self._watchdog.send(message)
        except WatchdogGone:
            self._lose_watchdog(child)

    def _lose_watchdog(self, child: Child) -> None:
        """Nothing runs unwatched."""
        self._outcome.watchdog_died = True
        self._kill(child)

    def _kill(self, child: Child) -> None:
        # Safe until reap: the leader, alive or zombie, pins the group's number. macOS says EPERM where all are zombies.
        self._killed_at = self._killed_at or time.monotonic()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)

    def _glimpse(self, started: float) -> Glimpse:
        growth = None
        if self._swap_bytes is not None and self._swap_first_bytes is not None:
            growth = self._swap_bytes - self._swap_first_bytes
        return Glimpse(self._page.read(), self._footprint_bytes, growth, time.monotonic() - started)

    def _note_for_screen(self, samples: Sequence[Mapping[str, Any]]) -> None:
        for sample in samples:
            footprint = (sample.get("worker") or {}).get("footprint_bytes")
            swap = (sample.get("host") or {}).get("swap_used_bytes")
            self._footprint_bytes = footprint if footprint is not None else self._footprint_bytes
            self._swap_bytes = swap if swap is not None else self._swap_bytes
            if self._swap_first_bytes is None:
                self._swap_first_bytes = swap

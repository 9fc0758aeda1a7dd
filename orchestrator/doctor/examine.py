"""Owns the doctor's look at a machine: reads, and tries the watchdog on a canary. Does not judge (checks.py)."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from orchestrator.backstops import VERIFIED, verify_backstops
from orchestrator.cgroup import controller_version
from orchestrator.crosscheck import look
from orchestrator.doctor.checks import (
    Check,
    Ground,
    WatchdogFacts,
    check_backstops,
    check_memory,
    check_platform,
    check_pressure,
    check_readings,
    check_versions,
    check_watchdog,
)
from orchestrator.errors import HostUnfit
from orchestrator.host import read_host
from orchestrator.watchdog import wire
from orchestrator.watchdog.exit_notice import ExitNotice
from orchestrator.watchdog.limits import Limits
from orchestrator.watchdog.probe import select_probe
from orchestrator.watching import WatchdogGone, WatchdogLink
from worker.telemetry import TelemetryPage, create_page_fd

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT_S = 20.0
_STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(30)"
_Message = TypeVar("_Message", bound=wire.WireMessage)


def examine() -> list[Check]:
    """Looks at everything; takes a second or two, and leaves nothing behind."""
    facts = read_host(verify_backstops())
    name, _ = select_probe()
    host, compared, names = look()
    watchdog = try_watchdog(names, facts.usable_memory_bytes)
    return list(
        itertools.chain(
            check_platform(facts, read_ground(watchdog)),
            check_versions(facts),
            check_memory(facts, host),
            check_pressure(facts, host),
            check_readings(name, compared, names),
            check_backstops(facts.backstops),
            check_watchdog(watchdog, facts.system),
        )
    )


def read_ground(watchdog: WatchdogFacts) -> Ground:
    """The control groups' version, the limit of locked memory, and whether the watchdog is bound by it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = None if soft == resource.RLIM_INFINITY else soft
    return Ground(controller_version(), limit, locked=watchdog.backstops.get("memory_lock") == VERIFIED)


def try_watchdog(names: frozenset[str], memory_bytes: int) -> WatchdogFacts:
    """Starts a watchdog and has it end a process that ignores SIGTERM."""
    page_fd = create_page_fd()
    try:
        try:
            link = WatchdogLink(page_fd, names)
        except HostUnfit as error:
            return WatchdogFacts({}, None, trouble=str(error))
        try:
            return WatchdogFacts(link.ready.backstops, _kill_canary(link, TelemetryPage(page_fd), memory_bytes))
        except (WatchdogGone, OSError) as error:
            return WatchdogFacts({}, None, trouble=f"went away while it was tried: {error!r}")
        finally:
            link.close()
    finally:
        os.close(page_fd)


def _kill_canary(link: WatchdogLink, page: TelemetryPage, memory_bytes: int) -> float | None:
    """How long the watchdog took to end a canary, in seconds; None where it did not."""
    page.lay(1)
    with _stubborn() as canary:
        notice = ExitNotice(canary.pid)
        try:
            link.send(wire.Watch(1, canary.pid, Limits(memory_bytes)))
            if _hear(link, wire.Samples) is None:
                return None
            began_s = time.monotonic()
            link.send(wire.StopWorker(1, "interrupted", hurry=True))
            while not notice.died():
                if time.monotonic() - began_s > _LIMIT_S:
                    return None
                time.sleep(0.002)
            killed_s = time.monotonic() - began_s
            link.send(wire.Exited(1))
            return killed_s if _hear(link, wire.Released) is not None else None
        finally:
            notice.close()


@contextlib.contextmanager
def _stubborn() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _STUBBORN],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            process.stdout.readline()
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _hear(link: WatchdogLink, kind: type[_Message]) -> _Message | None:
    """The next message of a kind; None where there is none in time."""
    end_s = time.monotonic() + _LIMIT_S
    while (left_s := end_s - time.monotonic()) > 0:
        select.select([link.fd], [], [], left_s)
        for message in link.receive():
            if isinstance(message, kind):
                return message
    return None

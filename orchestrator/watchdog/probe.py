"""Owns the Probe protocol and the one place that selects a platform.

Does not read anything itself; every platform's module imports everywhere, so its parsing is tested
everywhere.
"""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from typing import Protocol

from orchestrator.watchdog.sample import HostReading, WorkerReading


class Probe(Protocol):
    """Reads one machine and, while one is watched, one worker."""

    def watch(self, pid: int, cgroup_dir: str | None) -> None:
        """Opens what `read` needs. A source that cannot be opened is a reading that stays None."""

    def read(self) -> tuple[HostReading, WorkerReading]:
        """The readings of now. Opens nothing, waits for nothing; what failed is None."""

    def forget(self) -> None:
        """Closes what belongs to the worker."""


class RefusingProbe:
    """A probe without the readings that cannot be believed here: they are None, as where there are none."""

    def __init__(self, probe: Probe, names: frozenset[str]) -> None:
        self._probe = probe
        self._host = dict.fromkeys((f.name for f in fields(HostReading) if f.name in names), None)
        self._worker = dict.fromkeys((f.name for f in fields(WorkerReading) if f.name in names), None)

    def watch(self, pid: int, cgroup_dir: str | None) -> None:
        """See Probe."""
        self._probe.watch(pid, cgroup_dir)

    def read(self) -> tuple[HostReading, WorkerReading]:
        """See Probe."""
        host, worker = self._probe.read()
        return replace(host, **self._host), replace(worker, **self._worker)

    def forget(self) -> None:
        """See Probe."""
        self._probe.forget()


def select_probe(refused: frozenset[str] = frozenset()) -> tuple[str, Probe]:
    """The name and the probe of this platform, without the readings named in `refused` (crosscheck.py).

    Raises:
        OSError: the platform has neither /proc nor the macOS libraries.
    """
    probe: Probe
    if sys.platform == "darwin":
        from orchestrator.watchdog.probe_macos import MacProbe  # late: only what this platform needs is resident

        name, probe = "macos", MacProbe()
    else:
        from orchestrator.watchdog.probe_linux import LinuxProbe  # late: see above

        name, probe = "linux", LinuxProbe()
    return name, RefusingProbe(probe, refused) if refused else probe

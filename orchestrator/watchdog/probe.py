"""Owns the Probe protocol and the one place that selects a platform.

Does not read anything itself; every platform's module imports everywhere, so its parsing is tested
everywhere.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orchestrator.watchdog.sample import HostReading, WorkerReading


class Probe(Protocol):
    """Reads one machine and, while one is watched, one worker."""

    def watch(self, pid: int, cgroup_dir: str | None) -> None:
        """Opens what `read` needs. A source that cannot be opened is a reading that stays None."""

    def read(self) -> tuple[HostReading, WorkerReading]:
        """The readings of now. Opens nothing, waits for nothing; what failed is None."""

    def forget(self) -> None:
        """Closes what belongs to the worker."""


class HostProbe(Protocol):
    """Reads one machine."""

    def read_host(self) -> HostReading:
        """The readings of now; what failed is None."""


def host_probe() -> HostProbe:
    """The probe of this platform for whoever wants the machine alone.

    Raises:
        OSError: as `select_probe`.
    """
    if sys.platform == "darwin":
        from orchestrator.watchdog.probe_macos import MacProbe  # late: see select_probe

        return MacProbe()
    else:
        from orchestrator.watchdog.probe_linux import LinuxProbe  # late: see select_probe

        return LinuxProbe()


def select_probe() -> tuple[str, Probe]:
    """The name and the probe of this platform.

    Raises:
        OSError: the platform has neither /proc nor the macOS libraries.
    """
    if sys.platform == "darwin":
        from orchestrator.watchdog.probe_macos import MacProbe  # late: only what this platform needs is resident

        return "macos", MacProbe()
    else:
        from orchestrator.watchdog.probe_linux import LinuxProbe  # late: see above

        return "linux", LinuxProbe()

"""Owns the facts about the machine that a result depends on. No names, no paths, nothing secret.

Does not watch anything (the watchdog does) and never imports MLX: versions come from package metadata.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from orchestrator import __version__

_PACKAGES = ("mlx", "mlx-lm", "numpy", "transformers", "psutil", "huggingface-hub")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine at the start of a sweep. Memory in bytes; None where this platform does not tell."""

    boot_id: str
    system: str
    release: str
    machine: str
    chip: str
    memory_bytes: int
    memory_limit_bytes: int | None
    swap_total_bytes: int | None
    swap_used_bytes: int | None
    cores_physical: int | None
    cores_logical: int | None
    python: str
    wallfinder: str = __version__
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def usable_memory_bytes(self) -> int:
        """The memory that counts: the machine's, or that of the container we are in."""
        return min(self.memory_bytes, self.memory_limit_bytes or self.memory_bytes)

    def to_json(self) -> dict[str, Any]:
        """The facts as plain JSON values."""
        return asdict(self)


def read_host() -> HostFacts:
    """Reads the facts of this machine."""
    swap = _swap()
    return HostFacts(
        boot_id=boot_id(),
        system=platform.system(),
        release=platform.mac_ver()[0] or platform.release(),
        machine=platform.machine(),
        chip=_chip(),
        memory_bytes=psutil.virtual_memory().total,
        memory_limit_bytes=_container_limit(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")),
        swap_total_bytes=swap[0],
        swap_used_bytes=swap[1],
        cores_physical=psutil.cpu_count(logical=False),
        cores_logical=psutil.cpu_count(),
        python=platform.python_version(),
        versions=_versions(),
    )


def boot_id() -> str:
    """Names this boot of the machine; another value means that it went down in between. Empty if unknown."""
    if sys.platform == "darwin":
        return _sysctl_text("kern.bootsessionuuid")
    else:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return ""


def _swap() -> tuple[int | None, int | None]:
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError):  # psutil raises RuntimeError where a new macOS changed a structure
        return None, None
    return swap.total, swap.used


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _chip() -> str:
    if sys.platform == "darwin":
        return _sysctl_text("machdep.cpu.brand_string")
    else:
        return _chip_in_cpuinfo(Path("/proc/cpuinfo")) or platform.processor()


def _chip_in_cpuinfo(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() in ("model name", "Model")), "")


def _container_limit(cgroup_root: Path, membership: Path) -> int | None:
    """The least memory limit of our own control group and those above it; None where there is none."""
    try:
        lines = membership.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = cgroup_root / "memory" if controllers else cgroup_root
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        folder = base / path.lstrip("/")
        for candidate in (folder, *folder.parents):
            if not candidate.is_relative_to(base):
                break
            limits += _limit_in(candidate / name)
    return min(limits, default=None)


def _limit_in(path: Path) -> list[int]:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return []
    # v1 says "no limit" by a number near 2**63, v2 by the word "max".
    return [int(text)] if text.isdigit() and int(text) < 1 << 60 else []


def _sysctl_text(name: str) -> str:
    """A string from macOS' sysctl; empty where it is not to be had."""
    library = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    size = ctypes.c_size_t(0)
    if library.sysctlbyname(name.encode(), None, ctypes.byref(size), None, 0) != 0:
        return ""
    buffer = ctypes.create_string_buffer(size.value)
    if library.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, 0) != 0:
        return ""
    return os.fsdecode(buffer.value)

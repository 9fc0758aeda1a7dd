"""Owns the facts about the machine that a result depends on. No names, no paths, nothing secret.

Does not watch anything (the watchdog does) and never imports MLX: versions come from package metadata.
"""

from __future__ import annotations

import contextlib
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
from orchestrator.conditions_probe import read_conditions
from orchestrator.host_neighbours import large_processes, model_servers, other_processes
from orchestrator.watchdog.probe_macos import parse_uint

if sys.platform == "darwin":
    from orchestrator.conditions_macos import read_gpu

_PACKAGES = ("mlx", "mlx-lm", "numpy", "transformers", "psutil", "huggingface-hub")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine at the start of a sweep. Memory in bytes; None where this platform does not tell.

    `wired_limit_bytes`: what a person set as the GPU's share (macOS; 0: the system's default). `backstops`: what the
    kernel was seen to do for us (backstops.py); empty where nobody tried. `cores_performance` and `cores_efficiency`
    are physical cores, None where all are of one kind or nobody tells. `large_processes`: other
    programs at the start, by name; `model_servers`: those among the others with a known name. `power_source`,
    `low_power_mode` and `thermal` are as in conditions.py; each cell has its own.
    """

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
    wired_limit_bytes: int | None = None
    backstops: dict[str, str] = field(default_factory=dict)
    cores_performance: int | None = None
    cores_efficiency: int | None = None
    gpu_name: str | None = None
    gpu_cores: int | None = None
    os_build: str = ""
    kernel_version: str = ""
    power_source: str | None = None
    low_power_mode: bool | None = None
    thermal: str | None = None
    large_processes: list[str] = field(default_factory=list)
    model_servers: list[str] = field(default_factory=list)

    @property
    def usable_memory_bytes(self) -> int:
        """The memory that counts: the machine's, or that of the container we are in."""
        return min(self.memory_bytes, self.memory_limit_bytes or self.memory_bytes)

    def to_json(self) -> dict[str, Any]:
        """The facts as plain JSON values."""
        return asdict(self)


def read_host(backstops: dict[str, str] | None = None) -> HostFacts:
    """Reads the facts of this machine; the backstops are what the caller found of them."""
    swap = _swap()
    cores, gpu, now, others = _cores_by_kind(), _gpu(), read_conditions(), other_processes()
    return HostFacts(
        boot_id=boot_id(),
        system=platform.system(),
        release=platform.mac_ver()[0] or platform.release(),
        machine=platform.machine(),
        chip=_chip(),
        memory_bytes=_memory(),
        memory_limit_bytes=_container_limit(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")),
        swap_total_bytes=swap[0],
        swap_used_bytes=swap[1],
        cores_physical=psutil.cpu_count(logical=False),
        cores_logical=psutil.cpu_count(),
        python=platform.python_version(),
        versions=_versions(),
        wired_limit_bytes=_wired_limit(),
        backstops=backstops or {},
        cores_performance=cores[0],
        cores_efficiency=cores[1],
        gpu_name=gpu[0],
        gpu_cores=gpu[1],
        os_build=_os_build(),
        kernel_version=platform.version(),
        power_source=now.power_source,
        low_power_mode=now.low_power_mode,
        thermal=now.thermal,
        large_processes=large_processes(others, _memory()),
        model_servers=model_servers(others),
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


def _memory() -> int:
    try:
        return psutil.virtual_memory().total
    except (OSError, RuntimeError):  # psutil raises RuntimeError where a new macOS changed a structure
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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
        return _value_in(Path("/proc/cpuinfo"), ("model name", "Model")) or platform.processor()


def _value_in(path: Path, keys: tuple[str, ...]) -> str:
    """The value of the first line `key: value` with one of the keys; empty where there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() in keys), "")


def _cores_by_kind() -> tuple[int | None, int | None]:
    """Performance and efficiency cores."""
    if sys.platform == "darwin":
        performance, efficiency = (_sysctl_bytes(f"hw.perflevel{level}.physicalcpu") for level in (0, 1))
        return parse_uint(performance), parse_uint(efficiency)
    else:
        return cores_by_kind_in(Path("/sys/devices/system/cpu"))


def cores_by_kind_in(folder: Path) -> tuple[int | None, int | None]:
    """Physical cores near the greatest capacity (or frequency) and the others; None where there is but one kind.

    Favoured cores of one kind differ by a few percent, kinds by a fifth or more.
    """
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        cores: dict[str, int] = {}
        with contextlib.suppress(OSError):  # no descriptor left, say
            for cpu in folder.glob("cpu[0-9]*"):
                value = _first_line(cpu / name)
                if value.isdigit():
                    cores[_first_line(cpu / "topology/thread_siblings_list") or cpu.name] = int(value)
        fast = sum(value > 0.85 * max(cores.values()) for value in cores.values())
        if fast < len(cores):
            return fast, len(cores) - fast
    return None, None


def _gpu() -> tuple[str | None, int | None]:
    """The GPU's name and how many cores it has."""
    if sys.platform == "darwin":
        return read_gpu()
    else:
        folder = Path("/proc/driver/nvidia/gpus")
        names: list[str] = []
        with contextlib.suppress(OSError):  # as above
            names = [_value_in(path, ("Model",)) for path in sorted(folder.glob("*/information"))]
        return next((name for name in names if name), None), None


def _os_build() -> str:
    if sys.platform == "darwin":
        return _sysctl_text("kern.osversion")
    else:
        try:
            return platform.freedesktop_os_release().get("PRETTY_NAME", "")
        except OSError:
            return ""


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


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


def _wired_limit() -> int | None:
    """`iogpu.wired_limit_mb` in bytes; None off macOS, and where it is not told."""
    if sys.platform == "darwin":
        return wired_limit_in(_sysctl_bytes("iogpu.wired_limit_mb"))
    else:
        return None


def wired_limit_in(data: bytes | None) -> int | None:
    """The bytes of a limit that the kernel holds in MiB, as an integer of four or eight bytes."""
    megabytes = parse_uint(data)
    return None if megabytes is None else megabytes << 20


def _sysctl_bytes(name: str) -> bytes | None:
    """The value of an integer of macOS' sysctl; None where there is none of that name."""
    library = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    buffer, size = ctypes.create_string_buffer(8), ctypes.c_size_t(8)
    failed = library.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, 0)
    return None if failed else buffer.raw[: size.value]


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

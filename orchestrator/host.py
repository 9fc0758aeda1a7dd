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
from orchestrator.watchdog.probe_macos import parse_uint

_LARGE_FRAC, _LARGE_COUNT = 0.02, 20
_PACKAGES = ("mlx", "mlx-lm", "numpy", "transformers", "psutil", "huggingface-hub")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine at the start of a sweep. Memory in bytes; None where this platform does not tell.

    `wired_limit_bytes`: what a person set as the GPU's share (macOS; 0: the system's default). `os_build` names the
    system exactly. `power_source`, `low_power_mode` and `thermal` are as in conditions.py; each cell has its own.
    `large_processes` names other programs that hold over 2 % of memory each, largest first. `backstops`: what the
    kernel was seen to do for us (backstops.py); empty where nobody tried.
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
    os_build: str = ""
    cores_performance: int | None = None
    cores_efficiency: int | None = None
    gpu_cores: int | None = None
    power_source: str | None = None
    low_power_mode: bool | None = None
    thermal: str | None = None
    large_processes: list[str] = field(default_factory=list)
    backstops: dict[str, str] = field(default_factory=dict)

    @property
    def usable_memory_bytes(self) -> int:
        """The memory that counts: the machine's, or that of the container we are in."""
        return min(self.memory_bytes, self.memory_limit_bytes or self.memory_bytes)

    def to_json(self) -> dict[str, Any]:
        """The facts as plain JSON values."""
        return asdict(self)


def read_host(backstops: dict[str, str] | None = None) -> HostFacts:
    """Reads the facts of this machine; the backstops are what the caller found of them."""
    swap, memory_bytes, conditions = _swap(), _memory(), read_conditions()
    performance, efficiency = cores_by_kind()
    return HostFacts(
        boot_id=boot_id(),
        system=platform.system(),
        release=platform.mac_ver()[0] or platform.release(),
        machine=platform.machine(),
        chip=_chip(),
        memory_bytes=memory_bytes,
        memory_limit_bytes=_container_limit(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")),
        swap_total_bytes=swap[0],
        swap_used_bytes=swap[1],
        cores_physical=psutil.cpu_count(logical=False),
        cores_logical=psutil.cpu_count(),
        python=platform.python_version(),
        versions=_versions(),
        wired_limit_bytes=_wired_limit(),
        os_build=_os_build(),
        cores_performance=performance,
        cores_efficiency=efficiency,
        gpu_cores=_gpu_cores(),
        power_source=conditions.power_source,
        low_power_mode=conditions.low_power_mode,
        thermal=conditions.thermal,
        large_processes=large_processes(int(_LARGE_FRAC * memory_bytes)),
        backstops=backstops or {},
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


def _os_build() -> str:
    if sys.platform == "darwin":
        return _sysctl_text("kern.osversion")
    else:
        try:
            name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
        except OSError:
            name = ""
        return f"{name} {platform.version()}".strip()


def cores_by_kind(cpus: Path = Path("/sys/devices/system/cpu")) -> tuple[int | None, int | None]:
    """Performance and efficiency cores; None and None where all are of one kind, or nobody says.

    Linux tells cores apart by their capacity, or else by their highest frequency: the largest is performance.
    """
    if sys.platform == "darwin":
        kinds = (parse_uint(_sysctl_bytes(f"hw.perflevel{level}.physicalcpu")) for level in (0, 1))
        performance, efficiency = kinds
        return performance, efficiency
    else:
        for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
            values = [int(text) for path in cpus.glob(f"cpu[0-9]*/{name}") if (text := _read(path)).isdigit()]
            largest = sum(value > 0.8 * max(values) for value in values)  # single cores boost a little higher
            if values and largest < len(values):
                return largest, len(values) - largest
        return None, None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _gpu_cores() -> int | None:
    if sys.platform == "darwin":
        from orchestrator.conditions_macos import read_gpu_cores  # of no use elsewhere

        return read_gpu_cores()
    else:
        return None


def large_processes(over_bytes: int) -> list[str]:
    """Names of other programs that hold more memory than that, largest first, twenty at most; no arguments, no paths.

    What another user's processes hold is not told everywhere.
    """
    own = {os.getpid(), os.getppid()}
    held: dict[str, int] = {}
    with contextlib.suppress(OSError, RuntimeError, psutil.Error):  # as everywhere: psutil on a newer macOS
        for process in psutil.process_iter(["pid", "name", "memory_info"]):
            memory = process.info["memory_info"]
            if memory is not None and memory.rss > over_bytes and process.info["pid"] not in own:
                name = Path(str(process.info["name"] or "")).name
                held[name] = max(held.get(name, 0), memory.rss)
    return sorted(held, key=lambda name: -held[name])[:_LARGE_COUNT]


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

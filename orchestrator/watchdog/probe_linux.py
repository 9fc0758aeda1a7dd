"""Owns the Linux readings: /proc, pressure stall information, and the worker's cgroup, v1 or v2.

Does not judge them. Descriptors are opened when a worker is watched and read with `pread`. Nothing here takes
the worker's memory lock (as smaps would), so a read returns also while the worker is wedged in a page fault.
"""

from __future__ import annotations

import contextlib
import os

from orchestrator.watchdog.sample import HostReading, WorkerReading

_READ_BYTES = 16384  # /proc/vmstat, the longest of them, has about 5,000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def number_after(text: bytes, key: bytes) -> int | None:
    """The integer that follows `key` at the start of a line, None where there is no such line."""
    at = 0 if text.startswith(key) else text.find(b"\n" + key) + 1
    if at == 0 and not text.startswith(key):
        return None
    words = text[at + len(key) : at + len(key) + 40].split(None, 1)
    try:
        return int(words[0])
    except (IndexError, ValueError):
        return None


def _kib(text: bytes, key: bytes) -> int | None:
    value = number_after(text, key)
    return None if value is None else value * 1024


def _pages(text: bytes, key: bytes) -> int | None:
    value = number_after(text, key)
    return None if value is None else value * _PAGE_BYTES


def stall_seconds(text: bytes) -> float | None:
    """The `some` total of a pressure file in seconds: time in which at least one task waited for memory."""
    line, _, _ = text.partition(b"\n")
    if not line.startswith(b"some "):
        return None
    _, found, total = line.rpartition(b"total=")
    try:
        return int(total) / 1e6 if found else None
    except ValueError:
        return None


def parse_host(meminfo: bytes | None, vmstat: bytes | None, pressure: bytes | None) -> HostReading:
    """The machine from the text of /proc/meminfo, vmstat and pressure/memory; None: not readable."""
    meminfo, vmstat = meminfo or b"", vmstat or b""
    swap_total, swap_free = _kib(meminfo, b"SwapTotal:"), _kib(meminfo, b"SwapFree:")
    return HostReading(
        memory_total_bytes=_kib(meminfo, b"MemTotal:"),
        memory_available_bytes=_kib(meminfo, b"MemAvailable:"),
        swap_used_bytes=None if swap_total is None or swap_free is None else swap_total - swap_free,
        swapin_total_bytes=_pages(vmstat, b"pswpin "),
        swapout_total_bytes=_pages(vmstat, b"pswpout "),
        pressure_stall_total_s=stall_seconds(pressure or b""),
        oom_kill_total=number_after(vmstat, b"oom_kill "),
    )


def parse_stat(stat: bytes | None) -> tuple[str | None, int | None]:
    """State and major faults of /proc/PID/stat. The command's name may hold blanks and brackets."""
    if not stat:
        return None, None
    fields = stat[stat.rfind(b")") + 1 :].split(None, 11)
    try:
        return fields[0].decode("ascii"), int(fields[9])
    except (IndexError, ValueError):
        return None, None


def parse_worker(stat: bytes | None, status: bytes | None, cgroup: CgroupText) -> WorkerReading:
    """The worker from the text of /proc/PID/stat and status, and of its cgroup's files."""
    state, faults = parse_stat(stat)
    resident, swapped = _kib(status or b"", b"VmRSS:"), _kib(status or b"", b"VmSwap:")
    return WorkerReading(
        state=state,
        footprint_bytes=None if resident is None else resident + (swapped or 0),
        resident_bytes=resident,
        swapped_bytes=swapped,
        major_faults_total=faults,
        cgroup_used_bytes=cgroup.used(),
        cgroup_swapped_bytes=cgroup.swapped(),
        cgroup_stall_total_s=stall_seconds(cgroup.text("memory.pressure") or b""),
        cgroup_oom_kill_total=cgroup.oom_kills(),
    )


class CgroupText:
    """The text of a cgroup's memory files by name, whichever version they are of."""

    def __init__(self, texts: dict[str, bytes | None]) -> None:
        self._texts = texts

    def text(self, name: str) -> bytes | None:
        """One file's text, None where there is no such file."""
        return self._texts.get(name)

    def used(self) -> int | None:
        """Memory charged to the cgroup, in bytes."""
        v2 = self._number("memory.current")
        return self._number("memory.usage_in_bytes") if v2 is None else v2

    def swapped(self) -> int | None:
        """Swap charged to the cgroup, in bytes; None where the kernel does not account for it."""
        v2 = self._number("memory.swap.current")
        if v2 is not None:
            return v2
        both, used = self._number("memory.memsw.usage_in_bytes"), self._number("memory.usage_in_bytes")
        return None if both is None or used is None else max(0, both - used)

    def oom_kills(self) -> int | None:
        """How often the kernel killed a process of this cgroup for memory."""
        text = self.text("memory.events") or self.text("memory.oom_control")
        return None if text is None else number_after(text, b"oom_kill ")

    def _number(self, name: str) -> int | None:
        try:
            return int(self.text(name) or b"")
        except ValueError:
            return None


CGROUP_FILES = (
    "memory.current",
    "memory.swap.current",
    "memory.events",
    "memory.pressure",
    "memory.usage_in_bytes",
    "memory.memsw.usage_in_bytes",
    "memory.oom_control",
)


class _Source:
    """One file that is opened once and read many times."""

    def __init__(self, path: str) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def is_open(self) -> bool:
        return self._fd is not None

    def read(self) -> bytes | None:
        if self._fd is None:
            return None
        try:
            return os.pread(self._fd, _READ_BYTES, 0)
        except OSError:  # the process is gone (ESRCH), or pressure accounting is switched off (EOPNOTSUPP)
            return None

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class LinuxProbe:
    """Reads a Linux machine below `proc`; tests hand it a folder of their own."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._meminfo = _Source(f"{proc}/meminfo")
        self._vmstat = _Source(f"{proc}/vmstat")
        self._pressure = _Source(f"{proc}/pressure/memory")
        self._worker: tuple[_Source, _Source] | None = None
        self._cgroup: dict[str, _Source] = {}

    def watch(self, pid: int, cgroup_dir: str | None) -> None:
        """Opens the worker's files and those of its cgroup."""
        self.forget()
        self._worker = (_Source(f"{self._proc}/{pid}/stat"), _Source(f"{self._proc}/{pid}/status"))
        if cgroup_dir is not None:
            sources = {name: _Source(f"{cgroup_dir}/{name}") for name in CGROUP_FILES}
            self._cgroup = {name: source for name, source in sources.items() if source.is_open}

    def read(self) -> tuple[HostReading, WorkerReading]:
        """Both readings; never raises."""
        stat, status = (None, None) if self._worker is None else (s.read() for s in self._worker)
        cgroup = CgroupText({name: source.read() for name, source in self._cgroup.items()})
        return self.read_host(), parse_worker(stat, status, cgroup)

    def read_host(self) -> HostReading:
        """The machine alone."""
        return parse_host(self._meminfo.read(), self._vmstat.read(), self._pressure.read())

    def forget(self) -> None:
        """Closes the worker's files."""
        for source in (*(self._worker or ()), *self._cgroup.values()):
            source.close()
        self._worker, self._cgroup = None, {}

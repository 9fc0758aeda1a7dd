"""Owns the macOS readings: sysctl, host_statistics64 and proc_pid_rusage through ctypes.

Does not judge them. Has not been run on a Mac: the layouts are those of Apple's published headers and are
tested against bytes. It imports everywhere.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.watchdog.exit_notice import ExitNotice
from orchestrator.watchdog.sample import HostReading, WorkerReading

if TYPE_CHECKING:
    from collections.abc import Callable

HOST_VM_INFO64 = 4
VM_INTS = 38  # of revision 1; asking for more or fewer misreads on some systems
RUSAGE_INFO_V4 = 4
RUSAGE_BYTES = 296
SWAP_BYTES = 32

_SWAP = struct.Struct("=QQQII")  # total, avail, used, pagesize, encrypted
_UINT32 = struct.Struct("=I")
_UINT64 = struct.Struct("=Q")
# free, active, inactive, wired; zero_fill .. purges; purgeable, speculative; decompressions, compressions,
# swapins, swapouts; compressor, throttled, external, internal pages; uncompressed pages in the compressor.
_VM = struct.Struct("=4I9Q2I4Q4IQ")
_RESIDENT_AT, _FOOTPRINT_AT, _PEAK_AT, _PAGEINS_AT = 64, 72, 240, 48


@dataclass(frozen=True, slots=True)
class VirtualMemory:
    """What `vm_statistics64` says, in pages; the counters are `decompressions`, `swapins` and `swapouts`."""

    wired: int
    compressor: int
    decompressions: int
    swapins: int
    swapouts: int


def parse_vm_statistics(data: bytes | None) -> VirtualMemory | None:
    """The 38 ints of `vm_statistics64`, revision 1; None where the kernel gave fewer."""
    if data is None or len(data) < _VM.size:
        return None
    fields = _VM.unpack_from(data)
    return VirtualMemory(
        wired=fields[3],
        decompressions=fields[15],
        swapins=fields[17],
        swapouts=fields[18],
        compressor=fields[19],
    )


def parse_swap_used(data: bytes | None, page_bytes: int | None = None) -> int | None:
    """Bytes of swap in use, out of `struct xsw_usage`: total, avail, used (its text has another order).

    None where more is in use than there is, or the structure's page size is not the system's: then it is another one.
    """
    if data is None or len(data) < _SWAP.size:
        return None
    total, _, used, page, _ = _SWAP.unpack_from(data)
    if used > total or (page_bytes is not None and page != page_bytes):
        return None
    return int(used)


def parse_uint(data: bytes | None) -> int | None:
    """An unsigned sysctl of four or eight bytes."""
    if data is None or len(data) not in (4, 8):
        return None
    return int((_UINT32 if len(data) == 4 else _UINT64).unpack(data)[0])


def parse_rusage(data: bytes | None) -> WorkerReading:
    """`rusage_info_v4`. The footprint counts compressed, swapped and Metal memory; resident does not."""
    if data is None or len(data) < RUSAGE_BYTES:
        return WorkerReading()

    def at(offset: int) -> int:
        return int(_UINT64.unpack_from(data, offset)[0])

    return WorkerReading(
        footprint_bytes=at(_FOOTPRINT_AT),
        peak_footprint_bytes=at(_PEAK_AT),
        resident_bytes=at(_RESIDENT_AT),
        major_faults_total=at(_PAGEINS_AT),
    )


class Kernel(Protocol):
    """The three calls this module makes; each gives bytes, or None where the call failed."""

    def sysctl(self, name: str, size: int) -> bytes | None:
        """`sysctlbyname`, at most `size` bytes."""

    def vm_statistics(self) -> bytes | None:
        """`host_statistics64(HOST_VM_INFO64)`."""

    def rusage(self, pid: int) -> bytes | None:
        """`proc_pid_rusage(RUSAGE_INFO_V4)`; works on a zombie, for processes of the same user."""


class SystemKernel:
    """The real calls. Buffers and the host's port are made once; the loop allocates only what it returns."""

    def __init__(self) -> None:
        """Raises OSError where there is no such library."""
        self._system = ctypes.CDLL("/usr/lib/libSystem.B.dylib", use_errno=True)
        self._system.mach_host_self.restype = ctypes.c_uint32
        self._host = ctypes.c_uint32(self._system.mach_host_self())  # asking each time would leak a reference
        self._vm = (ctypes.c_uint32 * 256)()  # larger than any revision
        self._rusage = (ctypes.c_uint8 * 1024)()
        self._value = (ctypes.c_uint8 * 64)()

    def sysctl(self, name: str, size: int) -> bytes | None:
        """See Kernel."""
        length = ctypes.c_size_t(size)
        failed = self._system.sysctlbyname(
            name.encode(), ctypes.byref(self._value), ctypes.byref(length), None, ctypes.c_size_t(0)
        )
        return None if failed else bytes(self._value[: length.value])

    def vm_statistics(self) -> bytes | None:
        """See Kernel."""
        count = ctypes.c_uint32(VM_INTS)
        failed = self._system.host_statistics64(
            self._host, ctypes.c_int(HOST_VM_INFO64), ctypes.byref(self._vm), ctypes.byref(count)
        )
        return None if failed else bytes(self._vm)[: 4 * count.value]

    def rusage(self, pid: int) -> bytes | None:
        """See Kernel."""
        failed = self._system.proc_pid_rusage(
            ctypes.c_int(pid), ctypes.c_int(RUSAGE_INFO_V4), ctypes.byref(self._rusage)
        )
        return None if failed else bytes(self._rusage[:RUSAGE_BYTES])


class Notice(Protocol):
    """See exit_notice.ExitNotice."""

    def died(self) -> bool:
        """Whether the process is dead."""

    def close(self) -> None:
        """Releases what the notice holds."""


class MacProbe:
    """Reads a Mac through `kernel` and `notice_exit`; tests hand it some of their own."""

    def __init__(self, kernel: Kernel | None = None, notice_exit: Callable[[int], Notice] = ExitNotice) -> None:
        self._kernel = SystemKernel() if kernel is None else kernel
        self._notice_exit = notice_exit
        self._total_bytes = parse_uint(self._kernel.sysctl("hw.memsize", 8))
        self._page_bytes = parse_uint(self._kernel.sysctl("hw.pagesize", 8))
        self._pid: int | None = None
        self._exit: Notice | None = None

    def watch(self, pid: int, cgroup_dir: str | None) -> None:  # noqa: ARG002 - the protocol's; no cgroups here
        """Registers for the worker's end."""
        self.forget()
        self._pid, self._exit = pid, self._notice_exit(pid)

    def read(self) -> tuple[HostReading, WorkerReading]:
        """Both readings; never raises."""
        if self._pid is None or self._exit is None:
            return self.read_host(), WorkerReading()
        worker = parse_rusage(self._kernel.rusage(self._pid))
        if not self._exit.died():  # a zombie looks alive to `proc_pid_rusage`
            return self.read_host(), worker
        ended = WorkerReading(
            state="Z",
            footprint_bytes=worker.footprint_bytes,
            peak_footprint_bytes=worker.peak_footprint_bytes,
            resident_bytes=worker.resident_bytes,
            major_faults_total=worker.major_faults_total,
        )
        return self.read_host(), ended

    def read_host(self) -> HostReading:
        """The machine alone."""
        memory = parse_vm_statistics(self._kernel.vm_statistics())
        free = parse_uint(self._kernel.sysctl("kern.memorystatus_level", 4))

        if self._page_bytes is None:
            memory = None  # a count of pages of unknown size says nothing
        size = self._page_bytes or 0
        return HostReading(
            memory_total_bytes=self._total_bytes,
            swap_used_bytes=parse_swap_used(self._kernel.sysctl("vm.swapusage", SWAP_BYTES), self._page_bytes),
            swapin_total_bytes=None if memory is None else memory.swapins * size,
            swapout_total_bytes=None if memory is None else memory.swapouts * size,
            pressure_level=parse_uint(self._kernel.sysctl("kern.memorystatus_vm_pressure_level", 4)),
            memory_free_frac=None if free is None else free / 100,
            compressor_bytes=None if memory is None else memory.compressor * size,
            decompression_total_bytes=None if memory is None else memory.decompressions * size,
            wired_bytes=None if memory is None else memory.wired * size,
        )

    def forget(self) -> None:
        """Drops the registration."""
        if self._exit is not None:
            self._exit.close()
        self._pid, self._exit = None, None

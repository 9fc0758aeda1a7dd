"""Tests of the macOS readings against bytes laid out as Apple's headers say. No Mac has been used."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from watchdog_harness import wait_until

from orchestrator.watchdog.probe_macos import (
    RUSAGE_BYTES,
    MacProbe,
    parse_rusage,
    parse_swap_used,
    parse_uint,
    parse_vm_statistics,
)
from orchestrator.watchdog.sample import HostReading, WorkerReading

PAGE = 16384


def vm_bytes() -> bytes:
    """`vm_statistics64`, revision 1, with every field told apart; written field by field from the header."""
    four = [17490, 468148, 468488, 251554]  # free, active, inactive, wire
    nine = list(range(1000, 1009))  # zero_fill .. purges
    two = [6528, 4916]  # purgeable, speculative
    more = [111_222_333, 99, 39_900_738, 46_009_870]  # decompressions, compressions, swapins, swapouts
    last = [320_058, 0, 55, 66]  # compressor, throttled, external, internal
    out = b"".join(struct.pack("<I", n) for n in four)
    out += b"".join(struct.pack("<Q", n) for n in nine)
    out += b"".join(struct.pack("<I", n) for n in two)
    out += b"".join(struct.pack("<Q", n) for n in more)
    out += b"".join(struct.pack("<I", n) for n in last)
    return out + struct.pack("<Q", 777)


def rusage_bytes(footprint: int, peak: int, resident: int, pageins: int) -> bytes:
    """`rusage_info_v4` in the header's order, every other field numbered."""
    fields = [10_000 + n for n in range(35)]
    fields[4], fields[6], fields[7], fields[28] = pageins, resident, footprint, peak
    return bytes(16) + struct.pack("<35Q", *fields)


class Recorded:
    """A kernel that answers with bytes; a name that is missing is a call that failed."""

    def __init__(self, values: dict[str, bytes], usage: bytes | None = None, memory: bytes | None = None) -> None:
        self.values, self.usage, self.memory = values, usage, memory

    def sysctl(self, name: str, size: int) -> bytes | None:
        value = self.values.get(name)
        return None if value is None or len(value) > size else value

    def vm_statistics(self) -> bytes | None:
        return self.memory

    def rusage(self, pid: int) -> bytes | None:  # noqa: ARG002 - the protocol's
        return self.usage


class Alive:
    """The notice of a process that does not die."""

    def __init__(self, pid: int) -> None:
        self.pid, self.closed = pid, False

    def died(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


SYSCTL = {
    "hw.memsize": struct.pack("<Q", 25_769_803_776),
    "hw.pagesize": struct.pack("<Q", PAGE),
    "kern.memorystatus_vm_pressure_level": struct.pack("<I", 2),
    "kern.memorystatus_level": struct.pack("<I", 71),
    # total = 4096.00M  used = 2743.50M  free = 1352.50M  (encrypted); in the struct, avail comes before used
    "vm.swapusage": struct.pack("<QQQII", 4096 << 20, int(1352.5 * 2**20), int(2743.5 * 2**20), PAGE, 1),
}


def test_layouts_have_the_sizes_and_offsets_of_the_headers() -> None:
    assert len(vm_bytes()) == 152 == 38 * 4
    assert struct.unpack_from("<Q", vm_bytes(), 112) == (39_900_738,)
    assert struct.unpack_from("<I", vm_bytes(), 128) == (320_058,)
    assert len(rusage_bytes(1, 2, 3, 4)) == 296 == RUSAGE_BYTES
    assert struct.unpack_from("<Q", rusage_bytes(1, 2, 3, 4), 72) == (1,)
    assert struct.unpack_from("<Q", rusage_bytes(1, 2, 3, 4), 240) == (2,)


def test_virtual_memory_counters() -> None:
    memory = parse_vm_statistics(vm_bytes())

    assert memory is not None
    assert memory.wired == 251_554
    assert memory.compressor == 320_058
    assert memory.decompressions == 111_222_333
    assert (memory.swapins, memory.swapouts) == (39_900_738, 46_009_870)


def test_newer_revisions_with_more_fields_read_the_same() -> None:
    assert parse_vm_statistics(vm_bytes() + bytes(64)) == parse_vm_statistics(vm_bytes())


@pytest.mark.parametrize("data", [None, b"", vm_bytes()[:96]], ids=["failed", "empty", "revision 0"])
def test_short_statistics_are_none(data: bytes | None) -> None:
    assert parse_vm_statistics(data) is None


def test_swap_used_is_the_third_field() -> None:
    assert parse_swap_used(SYSCTL["vm.swapusage"]) == int(2743.5 * 2**20)
    assert parse_swap_used(b"short") is None
    assert parse_swap_used(bytes(32)) == 0
    assert parse_swap_used(SYSCTL["vm.swapusage"], 16384) == int(2743.5 * 2**20)
    assert parse_swap_used(SYSCTL["vm.swapusage"], 4096) is None  # another structure, or another system's
    assert parse_swap_used(struct.pack("=QQQII", 10, 0, 11, 16384, 0)) is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"\x04\0\0\0", 4), (b"\x04\0\0\0\0\0\0\0", 4), (b"", None), (None, None), (b"\1", None)],
)
def test_unsigned_values_of_both_sizes(data: bytes | None, expected: int | None) -> None:
    assert parse_uint(data) == expected


def test_rusage_gives_the_footprint_and_not_resident_memory() -> None:
    """As one report had it: 108 GB of footprint, of which 106 GB are the GPU's, beside 193 MB resident."""
    worker = parse_rusage(rusage_bytes(108 * 10**9, 110 * 10**9, 193_120_000, 42))

    assert worker.footprint_bytes == 108 * 10**9
    assert worker.peak_footprint_bytes == 110 * 10**9
    assert worker.resident_bytes == 193_120_000
    assert worker.major_faults_total == 42
    assert parse_rusage(rusage_bytes(1, 1, 1, 1)[:200]) == WorkerReading()


def test_probe_puts_the_readings_together() -> None:
    notices: list[Alive] = []

    def notice(pid: int) -> Alive:
        notices.append(Alive(pid))
        return notices[-1]

    probe = MacProbe(Recorded(SYSCTL, rusage_bytes(5, 6, 7, 8), vm_bytes()), notice)
    probe.watch(4711, None)
    host, worker = probe.read()
    probe.forget()

    assert host.memory_total_bytes == 25_769_803_776
    assert host.swap_used_bytes == int(2743.5 * 2**20)
    assert host.swapin_total_bytes == 39_900_738 * PAGE
    assert (host.pressure_level, host.memory_free_frac) == (2, 0.71)
    assert host.compressor_bytes == 320_058 * PAGE
    assert host.wired_bytes == 251_554 * PAGE
    assert host.memory_available_bytes is None
    assert (worker.footprint_bytes, worker.peak_footprint_bytes) == (5, 6)
    assert (worker.state, probe.read()[1]) == (None, WorkerReading())
    assert [(n.pid, n.closed) for n in notices] == [(4711, True)]


def test_zombie_whose_figures_can_still_be_read_is_seen_to_be_dead() -> None:
    probe = MacProbe(Recorded(SYSCTL, rusage_bytes(5, 6, 7, 8)))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        probe.watch(worker.pid, None)
        assert probe.read()[1].state is None
        worker.kill()
        wait_until(lambda: probe.read()[1].state == "Z")
        assert probe.read()[1].footprint_bytes == 5
    probe.forget()


def test_calls_that_fail_are_none_and_never_zero() -> None:
    host, worker = MacProbe(Recorded({})).read()

    assert host == HostReading()
    assert worker == WorkerReading()


def test_pages_of_unknown_size_say_nothing() -> None:
    without = {key: value for key, value in SYSCTL.items() if key != "hw.pagesize"}
    host = MacProbe(Recorded(without, memory=vm_bytes())).read_host()

    assert host.swapin_total_bytes is None
    assert host.pressure_level == 2


@pytest.mark.skipif(sys.platform != "darwin", reason="asks the real kernel of a Mac")
def test_real_mac_agrees_with_psutil() -> None:
    psutil = pytest.importorskip("psutil")
    import os

    probe = MacProbe()
    probe.watch(os.getpid(), None)
    host, worker = probe.read()
    probe.forget()

    assert host.memory_total_bytes == psutil.virtual_memory().total
    assert host.pressure_level in (1, 2, 4)
    assert host.swap_used_bytes == pytest.approx(psutil.swap_memory().used, abs=64 << 20)
    assert worker.footprint_bytes is not None
    assert worker.peak_footprint_bytes is not None
    assert 0 < worker.footprint_bytes <= worker.peak_footprint_bytes

"""Tests of the Linux readings: texts of real kernels, what is missing, and this machine where it is one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from orchestrator.watchdog.probe_linux import (
    CgroupText,
    LinuxProbe,
    number_after,
    parse_host,
    parse_stat,
    parse_worker,
    stall_seconds,
)
from orchestrator.watchdog.sample import HostReading, WorkerReading

if TYPE_CHECKING:
    from pathlib import Path

MEMINFO = b"""MemTotal:       24683656 kB
MemFree:        24450256 kB
MemAvailable:   24369844 kB
SwapCached:           12 kB
SwapTotal:       2097148 kB
SwapFree:        2000000 kB
"""
VMSTAT = b"nr_free_pages 6112564\npswpin 1597604\npswpout 274993\npgmajfault 331103\noom_kill 2\n"
PRESSURE = b"some avg10=4.20 avg60=1.00 avg300=0.01 total=2223600\nfull avg10=0.00 avg60=0.00 total=22060\n"
STAT = (
    b"6111 (a (b) c) D 6105 6105 6105 0 -1 4194304 103 0 77 0 5 3 0 0 20 0 4 0 108965 3133440 418 "
    b"18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n"
)
STATUS = b"Name:\tpython\nState:\tD (disk sleep)\nVmRSS:\t  418000 kB\nVmSwap:\t  245000 kB\n"
V1 = {
    "memory.usage_in_bytes": b"419430400\n",
    "memory.memsw.usage_in_bytes": b"676306944\n",
    "memory.oom_control": b"oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
}
V2 = {
    "memory.current": b"419430400\n",
    "memory.swap.current": b"256876544\n",
    "memory.events": b"low 0\nhigh 0\nmax 512\noom 1\noom_kill 1\noom_group_kill 1\n",
    "memory.pressure": PRESSURE,
}
_PAGE = 4096


def test_host_is_read_in_bytes_and_seconds() -> None:
    host = parse_host(MEMINFO, VMSTAT, PRESSURE)

    assert host.memory_total_bytes == 24683656 * 1024
    assert host.memory_available_bytes == 24369844 * 1024
    assert host.swap_used_bytes == (2097148 - 2000000) * 1024
    assert host.swapin_total_bytes == 1597604 * _PAGE
    assert host.swapout_total_bytes == 274993 * _PAGE
    assert host.pressure_stall_total_s == pytest.approx(2.2236)
    assert host.oom_kill_total == 2


@pytest.mark.parametrize("text", [None, b"", b"garbage", b"some avg10=0.00", b"some total=x\n", b"full total=7\n"])
def test_pressure_that_is_absent_or_odd_is_none(text: bytes | None) -> None:
    assert parse_host(MEMINFO, VMSTAT, text).pressure_stall_total_s is None
    assert stall_seconds(text or b"") is None


def test_nothing_readable_is_all_none() -> None:
    assert parse_host(None, None, None) == HostReading()
    assert parse_worker(None, None, CgroupText({})) == WorkerReading()


def test_no_swap_is_zero_and_not_none() -> None:
    assert parse_host(b"SwapTotal: 0 kB\nSwapFree: 0 kB\n", None, None).swap_used_bytes == 0
    assert parse_host(b"SwapTotal: 0 kB\n", None, None).swap_used_bytes is None


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        (b"oom_kill 3\n", b"oom_kill ", 3),
        (b"oom_kill_disable 0\noom_kill 1\n", b"oom_kill ", 1),
        (b"group_oom_kill 9\n", b"oom_kill ", None),
        (b"a 1\nb", b"b", None),
        (b"a x\n", b"a ", None),
    ],
)
def test_number_after_a_key_at_the_start_of_a_line(text: bytes, key: bytes, expected: int | None) -> None:
    assert number_after(text, key) == expected


def test_command_names_with_brackets_do_not_shift_the_fields() -> None:
    assert parse_stat(STAT) == ("D", 77)


@pytest.mark.parametrize("text", [None, b"", b"12 (a)", b"12 (a) R 1", b"no brackets at all"])
def test_torn_stat_is_none(text: bytes | None) -> None:
    assert parse_stat(text) == (None, None)


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
def test_worker_with_its_cgroup(files: dict[str, bytes | None]) -> None:
    worker = parse_worker(STAT, STATUS, CgroupText(files))

    assert (worker.state, worker.major_faults_total) == ("D", 77)
    assert worker.resident_bytes == 418000 * 1024
    assert worker.swapped_bytes == 245000 * 1024
    assert worker.footprint_bytes == (418000 + 245000) * 1024
    assert worker.cgroup_used_bytes == 419430400
    assert worker.cgroup_swapped_bytes == 256876544
    assert worker.cgroup_oom_kill_total == 1
    assert (worker.cgroup_stall_total_s is not None) == (files is V2)


def test_cgroup_without_swap_accounting() -> None:
    worker = parse_worker(None, None, CgroupText({"memory.usage_in_bytes": b"1000\n"}))

    assert (worker.cgroup_used_bytes, worker.cgroup_swapped_bytes) == (1000, None)


def test_zombie_has_a_state_and_no_memory() -> None:
    worker = parse_worker(STAT.replace(b" D ", b" Z "), b"Name:\tpython\nState:\tZ (zombie)\n", CgroupText({}))

    assert (worker.state, worker.footprint_bytes, worker.swapped_bytes) == ("Z", None, None)


def test_probe_reads_below_the_root_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "group").mkdir()
    (tmp_path / "meminfo").write_bytes(MEMINFO)
    (tmp_path / "7" / "stat").write_bytes(STAT)
    (tmp_path / "7" / "status").write_bytes(STATUS)
    (tmp_path / "group" / "memory.current").write_bytes(b"5\n")
    probe = LinuxProbe(str(tmp_path))
    probe.watch(7, str(tmp_path / "group"))
    host, worker = probe.read()
    probe.forget()

    assert host.memory_total_bytes == 24683656 * 1024
    assert (host.swapin_total_bytes, host.pressure_stall_total_s) == (None, None)
    assert (worker.state, worker.cgroup_used_bytes) == ("D", 5)
    assert probe.read()[1] == WorkerReading()


@pytest.mark.skipif(sys.platform != "linux", reason="reads this machine's /proc")
def test_this_machine_and_a_real_process_that_ends() -> None:
    psutil = pytest.importorskip("psutil")
    probe = LinuxProbe()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        probe.watch(process.pid, None)
        host, worker = probe.read()
        assert host.memory_total_bytes == psutil.virtual_memory().total
        assert host.swap_used_bytes == psutil.swap_memory().used
        assert worker.state in ("R", "S", "D")
        assert worker.resident_bytes is not None
        process.communicate(b"\n")
    assert probe.read()[1].state is None  # reaped: its files are of nobody
    probe.forget()

"""Tests of the doctor: what is made of what it finds, by tables; the canaries and the command for real."""

from __future__ import annotations

import dataclasses
import json
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from sweeps import Desk, desk

from orchestrator import backstops, crosscheck
from orchestrator.backstops import VERIFIED, verify_backstops
from orchestrator.crosscheck import Compared, Reference, compare_readings, is_blinded, refused
from orchestrator.doctor.checks import (
    Check,
    Ground,
    State,
    WatchdogFacts,
    check_backstops,
    check_memory,
    check_platform,
    check_pressure,
    check_readings,
    check_versions,
    check_watchdog,
)
from orchestrator.doctor.examine import read_ground, try_watchdog
from orchestrator.errors import HostUnfit
from orchestrator.host import HostFacts, read_host, wired_limit_in
from orchestrator.watchdog.probe import RefusingProbe
from orchestrator.watchdog.sample import HostReading, WorkerReading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

GB = 1_000_000_000
LINUX = HostReading(
    memory_total_bytes=24 * GB, memory_available_bytes=20 * GB, swap_used_bytes=GB, pressure_stall_total_s=3.0
)
MAC = HostReading(
    memory_total_bytes=48 * GB,
    swap_used_bytes=GB,
    pressure_level=1,
    memory_free_frac=0.6,
    compressor_bytes=2 * GB,
    wired_bytes=5 * GB,
)
OWN = WorkerReading(footprint_bytes=GB // 10, resident_bytes=GB // 20)
MAC_OWN = WorkerReading(footprint_bytes=GB // 10, peak_footprint_bytes=GB // 5, resident_bytes=GB // 20)
LINUX_TRUTH = Reference(24 * GB, 20 * GB + 10**7, None, GB, 8 * GB, GB // 20)
MAC_TRUTH = Reference(48 * GB, 30 * GB, 5 * GB, GB, 4 * GB, GB // 20)
VM_STATISTICS = {
    "wired_bytes", "compressor_bytes", "swapin_total_bytes", "swapout_total_bytes", "decompression_total_bytes"
}  # fmt: skip
RUSAGE = {"footprint_bytes", "peak_footprint_bytes", "resident_bytes"}


def states(checks: Iterable[Check]) -> dict[str, State]:
    return {check.name: check.state for check in checks}


@pytest.mark.parametrize(("host", "own", "truth"), [(LINUX, OWN, LINUX_TRUTH), (MAC, MAC_OWN, MAC_TRUTH)])
def test_readings_that_are_right_are_believed(host: HostReading, own: WorkerReading, truth: Reference) -> None:
    compared = compare_readings(host, own, truth)

    assert refused(compared) == frozenset()
    assert not is_blinded(host, frozenset())
    assert len(compared) >= 5


@pytest.mark.parametrize(
    ("host", "own", "names"),
    [
        (dataclasses.replace(MAC, swap_used_bytes=47 * GB), MAC_OWN, {"swap_used_bytes"}),  # more than there is
        (dataclasses.replace(MAC, swap_used_bytes=3 * GB), MAC_OWN, {"swap_used_bytes"}),  # avail read as used
        (dataclasses.replace(MAC, wired_bytes=5 * GB // 4), MAC_OWN, VM_STATISTICS),  # pages of 4 KiB for 16 KiB
        (dataclasses.replace(MAC, pressure_level=65536), MAC_OWN, {"pressure_level"}),
        (dataclasses.replace(MAC, memory_free_frac=60.0), MAC_OWN, {"memory_free_frac"}),
        (dataclasses.replace(MAC, compressor_bytes=8_000 * GB), MAC_OWN, VM_STATISTICS),
        (MAC, dataclasses.replace(MAC_OWN, footprint_bytes=0), RUSAGE),
        (MAC, dataclasses.replace(MAC_OWN, peak_footprint_bytes=1), RUSAGE),  # a footprint over its own maximum
        (MAC, dataclasses.replace(MAC_OWN, resident_bytes=GB // 20 + 6_000_000), RUSAGE),  # of a process of 50 MB
        (dataclasses.replace(MAC, memory_total_bytes=24 * GB), MAC_OWN, {"memory_total_bytes"}),
    ],
)
def test_a_reading_that_cannot_be_right_is_refused_with_its_structure(
    host: HostReading, own: WorkerReading, names: set[str]
) -> None:
    assert refused(compare_readings(host, own, MAC_TRUTH)) == names


def test_swap_exchanged_is_found_on_a_large_machine_too() -> None:
    large = dataclasses.replace(MAC, memory_total_bytes=128 * GB, swap_used_bytes=2 * GB)
    truth = dataclasses.replace(MAC_TRUTH, total_bytes=128 * GB, swap_used_bytes=GB, swap_total_bytes=3 * GB)
    assert refused(compare_readings(large, MAC_OWN, truth)) == {"swap_used_bytes"}


def test_one_look_that_disagrees_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, right = (LINUX, dataclasses.replace(OWN, resident_bytes=GB)), (LINUX, OWN)
    monkeypatch.setattr(crosscheck, "read_reference", lambda: LINUX_TRUTH)
    for looks, names in (([wrong, wrong, right], set()), ([wrong, wrong, wrong, right], RUSAGE)):
        left = iter(looks)
        monkeypatch.setattr(crosscheck, "read_probe", lambda left=left: next(left))
        assert crosscheck.readings_refused() == names


def test_where_psutil_is_silent_nothing_is_refused() -> None:
    compared = compare_readings(MAC, MAC_OWN, Reference())

    assert refused(compared) == frozenset()
    assert {one.name for one in compared if one.agrees is None} >= {"swap_used_bytes", "wired_bytes"}


def test_a_psutil_that_breaks_on_a_new_system_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("host_statistics64(HOST_VM_INFO64) syscall failed: (ipc/mig) array not large enough")

    monkeypatch.setattr(crosscheck.psutil, "virtual_memory", broken)
    monkeypatch.setattr(crosscheck.psutil, "swap_memory", broken)
    reference = crosscheck.read_reference()

    assert (reference.total_bytes, reference.swap_used_bytes) == (None, None)
    assert reference.own_resident_bytes


class _Probe:
    def watch(self, pid: int, cgroup_dir: str | None) -> None: ...

    def read(self) -> tuple[HostReading, WorkerReading]:
        return MAC, MAC_OWN

    def forget(self) -> None: ...


def test_what_is_refused_reads_as_unknown() -> None:
    host, worker = RefusingProbe(_Probe(), frozenset({"wired_bytes", "footprint_bytes"})).read()

    assert host == dataclasses.replace(MAC, wired_bytes=None)
    assert worker == dataclasses.replace(MAC_OWN, footprint_bytes=None)


def test_a_host_of_which_nothing_can_be_believed_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crosscheck, "read_probe", lambda: (LINUX, OWN))
    monkeypatch.setattr(
        crosscheck, "read_reference", lambda: Reference(24 * GB, 2 * GB, None, 10 * GB, 12 * GB, GB // 20)
    )
    with pytest.raises(HostUnfit, match="wallfinder doctor"):
        crosscheck.readings_refused()

    monkeypatch.setattr(
        crosscheck, "read_reference", lambda: Reference(24 * GB, 20 * GB, None, 10 * GB, 12 * GB, GB // 20)
    )
    assert crosscheck.readings_refused() == {"swap_used_bytes"}


def test_this_machines_readings_agree_with_psutil() -> None:
    host, own = crosscheck.read_probe()
    compared = compare_readings(host, own, crosscheck.read_reference())

    assert refused(compared) == frozenset(), compared
    assert {"memory_total_bytes", "resident_bytes", "footprint_bytes"} <= {one.name for one in compared}


# -- backstops


def test_this_machines_backstops() -> None:
    found = verify_backstops()

    assert found["interval_timer"] == VERIFIED
    assert found["exit_notice"] == VERIFIED
    assert all(text == VERIFIED or text.startswith("absent: ") for text in found.values()), found
    if sys.platform == "linux":
        assert found["parent_death"] == VERIFIED
        assert found["oom_score_adj"] == VERIFIED


def test_a_backstop_that_does_not_work_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backstops, "_LIMIT_S", 0.5)
    monkeypatch.setattr(backstops, "_TIMER", "import time; time.sleep(60)")
    monkeypatch.setattr(backstops, "_OOM_SCORE", "print(0)")
    monkeypatch.setattr(backstops, "_PARENT", backstops._PARENT.replace("prctl(1, 9", "prctl(1, 0"))

    def refuse(limit_bytes: int, name: str) -> None:
        raise HostUnfit("not permitted")

    monkeypatch.setattr(backstops.WorkerCgroup, "create", refuse)
    found = verify_backstops()

    assert found["exit_notice"] == VERIFIED
    assert {name for name, text in found.items() if text.startswith("absent")} == {*found} - {"exit_notice"}


def test_without_a_process_to_be_had_everything_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    found = verify_backstops()

    assert found["interval_timer"].startswith("absent: ")


# -- what is made of it


FACTS = HostFacts(
    boot_id="b", system="Linux", release="6", machine="x", chip="c", memory_bytes=24 * GB, memory_limit_bytes=None,
    swap_total_bytes=2 * GB, swap_used_bytes=0, cores_physical=1, cores_logical=2, python="3.11",
    versions={"mlx": "1", "mlx-lm": "1"},
)  # fmt: skip


def test_what_is_made_of_the_machine() -> None:
    assert states(check_versions(FACTS)) == {"mlx": State.OK, "mlx-lm": State.OK}
    assert states(check_versions(dataclasses.replace(FACTS, versions={"mlx": "1"})))["mlx-lm"] is State.FAIL
    assert states(check_memory(FACTS, LINUX)) == {"memory": State.OK, "swap": State.OK}
    assert states(check_memory(FACTS, dataclasses.replace(LINUX, memory_available_bytes=GB)))["memory"] is State.WARN
    assert states(check_memory(dataclasses.replace(FACTS, swap_total_bytes=0), LINUX))["swap"] is State.WARN
    mac = dataclasses.replace(FACTS, system="Darwin", swap_total_bytes=0, wired_limit_bytes=0)
    assert states(check_memory(mac, MAC)) == {"memory": State.OK, "swap": State.OK, "wired limit": State.OK}
    assert states(check_pressure(FACTS, LINUX)) == {"pressure stall information": State.OK}
    assert states(check_pressure(FACTS, HostReading())) == {"pressure stall information": State.WARN}
    assert states(check_pressure(mac, MAC)) == {}


def test_a_refused_reading_warns_and_a_blind_probe_fails() -> None:
    right, wrong = (
        Compared("swap_used_bytes", GB, "psutil", True),
        Compared("memory_available_bytes", GB, "psutil", False),
    )

    assert (
        states(check_readings("linux", [right, wrong], refused([right, wrong])))["linux memory_available_bytes"]
        is State.WARN
    )
    assert State.FAIL in states(check_readings("linux", [wrong], refused([wrong]))).values()
    assert states(check_readings("linux", [], frozenset()))["linux probe"] is State.FAIL


def test_the_doctor_refuses_what_a_sweep_refuses() -> None:
    odd = dataclasses.replace(MAC_OWN, resident_bytes=GB)
    compared = compare_readings(MAC, odd, MAC_TRUTH)
    found = [check for check in check_readings("macos", compared, refused(compared)) if "footprint" in check.name]
    assert {check.state for check in found} == {State.WARN}  # of the same structure
    # Where swap alone tells of the host and disagrees, that it could be so in principle makes nothing usable.
    swap_only = HostReading(swap_used_bytes=3 * GB)
    compared = compare_readings(swap_only, MAC_OWN, MAC_TRUTH)
    assert State.FAIL in states(check_readings("macos", compared, refused(compared))).values()


def test_a_missing_backstop_is_as_bad_as_what_it_is_for() -> None:
    found = {
        "interval_timer": "absent: outlived",
        "parent_death": "absent: refused",
        "oom_group": "absent: v1",
        "exit_notice": VERIFIED,
        "worker_cgroup": "absent: this platform has none",
    }

    assert states(check_backstops(found)) == {
        "interval_timer": State.FAIL,
        "parent_death": State.WARN,
        "oom_group": State.OK,
        "exit_notice": State.OK,
        "worker_cgroup": State.OK,
    }


def test_a_watchdog_that_cannot_kill_fails() -> None:
    able = WatchdogFacts({"memory_lock": VERIFIED, "memory_lock_partial": VERIFIED, "priority": "absent"}, 0.01)

    assert states(check_watchdog(able, "Linux")) == {
        "watchdog": State.OK,
        "watchdog memory_lock": State.OK,
        "watchdog priority": State.WARN,
    }
    assert states(check_watchdog(WatchdogFacts({}, None), "Linux"))["watchdog"] is State.FAIL
    assert states(check_watchdog(WatchdogFacts({}, None, trouble="did not start"), "Linux"))["watchdog"] is State.FAIL


def test_what_a_mac_cannot_have_is_no_warning_there() -> None:
    absent = dict.fromkeys(("memory_lock", "memory_lock_partial", "oom_score", "parent_death", "priority"), "absent")
    mac = states(check_watchdog(WatchdogFacts(absent, 0.01), "Darwin"))
    assert {name for name, state in mac.items() if state is State.WARN} == {
        "watchdog memory_lock_partial",
        "watchdog priority",
    }
    assert State.WARN in states(check_watchdog(WatchdogFacts({"memory_lock": "absent"}, 0.01), "Linux")).values()


@pytest.mark.parametrize(
    ("changed", "ground", "found"),
    [
        ({}, Ground(1, None), {"platform": "ok", "control groups": "ok", "limit of locked memory": "ok"}),
        ({}, Ground(2, 8_388_608), {"platform": "ok", "control groups": "ok", "limit of locked memory": "warn"}),
        ({}, Ground(2, 1, locked=True), {"platform": "ok", "control groups": "ok", "limit of locked memory": "ok"}),
        ({}, Ground(None, 64 << 20), {"platform": "ok", "control groups": "ok", "limit of locked memory": "ok"}),
        ({"system": "Darwin"}, Ground(None, 1), {"platform": "ok"}),
        ({"system": "FreeBSD"}, Ground(None, 1), {"platform": "fail"}),
    ],
)
def test_what_the_sweep_stands_on(changed: dict[str, str], ground: Ground, found: dict[str, str]) -> None:
    facts = dataclasses.replace(read_host(), **{"system": "Linux", **changed})
    assert {name: state.value for name, state in states(check_platform(facts, ground)).items()} == found


def test_the_ground_is_read_here() -> None:
    ground = read_ground(WatchdogFacts({"memory_lock": VERIFIED}, 0.01))
    assert ground.locked
    assert not read_ground(WatchdogFacts({}, None)).locked
    assert ground.cgroup in (None, 1, 2)
    assert ground.memlock_bytes is None or ground.memlock_bytes >= 0


def test_the_watchdog_ends_a_process_that_ignores_sigterm() -> None:
    facts = try_watchdog(frozenset({"swap_used_bytes"}), 8 * GB)

    assert facts.trouble == ""
    assert facts.killed_s is not None


@pytest.mark.parametrize(
    ("data", "limit_bytes"),
    [
        (struct.pack("=I", 0), 0),
        (struct.pack("=I", 40960), 40960 << 20),
        (struct.pack("=Q", 112), 112 << 20),
        (None, None),
        (b"1", None),
    ],
)
def test_the_gpus_share_that_a_person_set(data: bytes | None, limit_bytes: int | None) -> None:
    assert wired_limit_in(data) == limit_bytes


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as held:
        yield held


def test_the_command_tells_people_and_programs(night: Desk) -> None:
    told = night.call("doctor")
    document = json.loads(night.call("doctor", "--json").stdout)
    by_name = {check["name"]: check for check in document["checks"]}

    assert told.returncode == 0, told.stdout
    assert all(line.split()[0] in ("ok", "warn", "->") for line in told.stdout.splitlines())
    assert document["schema"] == 1
    assert by_name["watchdog"]["state"] == "ok"
    assert by_name["interval_timer"]["state"] == "ok"


def test_a_run_keeps_what_was_verified(night: Desk) -> None:
    night.run(night.plan(batches=[1]))
    host = json.loads((night.runs / "night" / "host.json").read_bytes())
    events = {event["event"]: event for event in night.journal()}

    assert host["backstops"]["interval_timer"] == VERIFIED
    assert events["sweep.started"]["host"]["backstops"] == host["backstops"]
    assert events["watchdog.started"]["refused"] == []
    assert read_host().backstops == {}

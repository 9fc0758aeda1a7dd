"""The facts about the machine, held against what the system says elsewhere."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path

import psutil
import pytest

from orchestrator.host import _container_limit, boot_id, cores_by_kind, large_processes, read_host


def test_the_facts_are_this_machines() -> None:
    host = read_host()
    assert host.memory_bytes == psutil.virtual_memory().total
    assert 0 < host.usable_memory_bytes <= host.memory_bytes
    assert host.versions["mlx-lm"] == importlib.metadata.version("mlx-lm")
    assert host.boot_id == boot_id() != ""
    assert host.chip


def test_no_home_and_no_user_is_told() -> None:
    text = json.dumps(read_host().to_json())
    assert str(Path.home()) not in text
    assert os.uname().nodename not in text


def test_other_large_programs_are_named_and_nothing_else() -> None:
    names = large_processes(1)
    assert names
    assert not any("/" in name or " -" in name for name in names)
    assert len(names) <= 20
    assert large_processes(1 << 60) == []


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS is asked by sysctl")
@pytest.mark.parametrize(
    ("name", "values", "kinds"),
    [
        ("cpu_capacity", [1024, 1024, 400, 400, 400], (2, 3)),
        ("cpufreq/cpuinfo_max_freq", [5_000_000, 4_900_000, 3_600_000], (2, 1)),
        ("cpufreq/cpuinfo_max_freq", [5_000_000, 4_900_000], (None, None)),  # one that boosts higher is no other kind
        ("nothing", [1], (None, None)),
    ],
)
def test_cores_are_told_apart(
    tmp_path: Path, name: str, values: list[int], kinds: tuple[int | None, int | None]
) -> None:
    for number, value in enumerate(values):
        write(tmp_path / f"cpu{number}" / name, f"{value}\n")
    assert cores_by_kind(tmp_path) == kinds


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "4000000000"}, 4_000_000_000),
        ("0::/a\n", {"a/memory.max": "max"}, None),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "300"}, 300),
        ("4:cpu,memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, None),
        (
            "4:memory:/a\n",
            {"memory/memory.limit_in_bytes": "500", "memory/a/memory.limit_in_bytes": "700"},
            500,
        ),
        ("3:cpu:/a\n", {"memory/a/memory.limit_in_bytes": "300"}, None),
    ],
)
def test_the_containers_limit_is_the_least_on_the_way_up(
    tmp_path: Path, membership: str, files: dict[str, str], limit: int | None
) -> None:
    root = tmp_path / "cgroup"
    for name, text in files.items():
        write(root / name, text)
    write(tmp_path / "self", membership)
    assert _container_limit(root, tmp_path / "self") == limit


def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert _container_limit(tmp_path, tmp_path / "absent") is None


def test_a_psutil_that_breaks_on_a_new_system_costs_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_host().memory_bytes

    def broken() -> None:
        raise RuntimeError("host_statistics64(HOST_VM_INFO64) syscall failed: (ipc/mig) array not large enough")

    monkeypatch.setattr("orchestrator.host.psutil.virtual_memory", broken)
    assert read_host().memory_bytes == pytest.approx(expected, rel=0.01)

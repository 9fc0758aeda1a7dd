"""The facts about the machine, held against what the system says elsewhere."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from orchestrator.host import _container_limit, boot_id, cores_by_kind_in, read_host
from orchestrator.host_neighbours import Process, large_processes, model_servers, other_processes, told_name


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


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, (None, None)),
        ({"cpu0/cpu_capacity": "1024", "cpu1/cpu_capacity": "1024"}, (None, None)),
        ({"cpu0/cpu_capacity": "1024", "cpu1/cpu_capacity": "446", "cpu2/cpu_capacity": "446"}, (1, 2)),
        (
            {
                "cpu0/cpufreq/cpuinfo_max_freq": "5600000",
                "cpu0/topology/thread_siblings_list": "0-1",
                "cpu1/cpufreq/cpuinfo_max_freq": "5600000",
                "cpu1/topology/thread_siblings_list": "0-1",
                "cpu2/cpufreq/cpuinfo_max_freq": "5800000",
                "cpu3/cpufreq/cpuinfo_max_freq": "4200000",
            },
            (2, 1),
        ),
        ({"cpu0/cpufreq/cpuinfo_max_freq": "5600000", "cpu1/cpufreq/cpuinfo_max_freq": "5800000"}, (None, None)),
    ],
)
def test_cores_are_of_two_kinds_where_they_differ(
    tmp_path: Path, files: dict[str, str], cores: tuple[int | None, int | None]
) -> None:
    for name, text in files.items():
        write(tmp_path / name, text + "\n")
    assert cores_by_kind_in(tmp_path) == cores


def test_large_processes_are_few_and_the_largest_first() -> None:
    processes = [Process("small", 10), Process("hidden", None), *(Process(f"p{i}", 3000 + i) for i in range(30))]
    found = large_processes(processes, 100_000)
    assert len(found) == 20
    assert found[0] == "p29"
    assert large_processes([Process("edge", 2000)], 100_000) == []
    assert large_processes([Process("big", (1 << 30) + 1)], 1 << 40) == ["big"]


def test_model_servers_are_known_by_name() -> None:
    names = ("ollama", "Ollama Helper", "LM Studio", "llama-server", "python3.12", "collama", "VLLM::EngineCore")
    assert model_servers([Process(name, None) for name in (*names, "ollama")]) == [
        "LM Studio",
        "Ollama Helper",
        "VLLM::EngineCore",
        "llama-server",
        "ollama",
    ]


@pytest.mark.parametrize(
    ("name", "told"), [("/opt/x/tool", "tool"), ("jdoe-agent", "withheld"), ("JDoe", "withheld"), ("python", "python")]
)
def test_a_name_tells_no_folder_and_no_person(name: str, told: str) -> None:
    assert told_name(name, Path("/home/jdoe")) == told


@pytest.mark.skipif(sys.platform == "darwin", reason="a copy of a system's tool may not run on Apple silicon")
def test_our_own_tree_is_not_among_the_others(tmp_path: Path) -> None:
    tool = tmp_path / "wf-neighbour"
    shutil.copy(shutil.which("sleep") or "", tool)
    with subprocess.Popen((tool, "60")) as child:
        ours = {each.name for each in other_processes()}
        told = "from orchestrator.host_neighbours import other_processes; print(*other_processes(), sep='\\n')"
        seen = subprocess.run((sys.executable, "-c", told), capture_output=True, check=True, text=True).stdout
        child.kill()
    assert tool.name in seen
    assert tool.name not in ours

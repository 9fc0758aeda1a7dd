"""Power, heat and company around a cell: what is read, on which platform, and what spoils the numbers."""

from __future__ import annotations

import plistlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import conditions_macos as macos
from orchestrator.conditions import CellConditions, Conditions
from orchestrator.conditions_linux import compute_apps_in, read_linux
from orchestrator.conditions_probe import read_conditions

if TYPE_CHECKING:
    from pathlib import Path

CALM: dict[str, Any] = {
    "power_source": "mains",
    "low_power_mode": False,
    "thermal": "moderate",
    "cpu_speed_limit_frac": 1.0,
    "throttle_total": 7,
    "gpu_processes": {"WindowServer:533": 10.0},
}


def around(start: dict[str, Any], end: dict[str, Any], seconds: float = 100.0) -> CellConditions:
    return CellConditions(
        Conditions(at_s=50.0, **{**CALM, **start}), Conditions(at_s=50.0 + seconds, **{**CALM, **end})
    )


@pytest.mark.parametrize(
    ("start", "end", "reasons"),
    [
        ({}, {}, ()),
        ({}, {"thermal": "heavy"}, ("throttled",)),
        ({"thermal": "trapping"}, {}, ("throttled",)),
        ({}, {"cpu_speed_limit_frac": 0.68}, ("throttled",)),
        ({}, {"throttle_total": 8}, ("throttled",)),
        ({"throttle_total": 8}, {"throttle_total": 8}, ()),
        ({}, {"power_source": "battery"}, ("on_battery",)),
        ({"power_source": "battery"}, {}, ("on_battery",)),
        ({"low_power_mode": True}, {}, ("low_power_mode",)),
        ({}, {"gpu_processes": {"WindowServer:533": 14.9}}, ()),  # under 5 % of 100 s
        ({}, {"gpu_processes": {"WindowServer:533": 15.1}}, ("other_gpu_process",)),
        ({}, {"gpu_processes": {"ollama:7": 6.0}}, ("other_gpu_process",)),  # it came in between
        ({}, {"gpu_processes": {"a:1": 3.0, "a:2": 3.0}}, ("other_gpu_process",)),  # two of one program
        ({}, {"gpu_processes": {"python:9": None}}, ("other_gpu_process",)),
        ({"gpu_processes": {"ollama:7": 90.0}}, {"gpu_processes": {"ollama:7": 90.0}}, ()),  # idle
        ({}, {"power_source": "battery", "low_power_mode": True}, ("on_battery", "low_power_mode")),
    ],
)
def test_what_spoils_a_cell(start: dict[str, Any], end: dict[str, Any], reasons: tuple[str, ...]) -> None:
    assert around(start, end).reasons() == reasons


def test_what_is_not_known_is_no_reason() -> None:
    assert CellConditions(Conditions(), Conditions()).reasons() == ()
    assert CellConditions(Conditions(), Conditions(throttle_total=9)).reasons() == ()


def test_processes_are_written_by_name_only() -> None:
    body = around({}, {"gpu_processes": {"WindowServer:533": 11.0, "ollama:77": 2.0, "idle:5": 0.0}}).to_json()
    assert body["gpu_others_frac"] == {"WindowServer": 0.01, "ollama": 0.02}
    assert "533" not in str(body)
    assert body["start"]["thermal"] == "moderate"


def test_they_are_read_here_without_an_error() -> None:
    found = read_conditions()
    assert found.at_s > 0
    assert found.power_source in (None, "mains", "battery")
    if sys.platform == "linux":
        assert found.thermal is None  # no such thing there


# -- macOS, against texts of the forms that are in public reports

MAINS = "Now drawing from 'AC Power'\n -InternalBattery-0 (id=22806627)\t83%; charging; 1:00 remaining present: true\n"
BATTERY = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1234567)\t14%; discharging; 2:31 remaining\n"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (MAINS, "mains"),
        (BATTERY, "battery"),
        ("Now drawing from 'AC Power'\n", "mains"),  # a desktop has no battery
        ("Now drawing from 'UPS Power'\n -Back-UPS (id=1)\t90%; discharging;\n", "battery"),
        ("Now drawing from 'Something New'\n", None),
        ("", None),
    ],
)
def test_pmset_says_where_power_comes_from(text: str, source: str | None) -> None:
    assert macos.power_source_in(text) == source


SETTINGS = """System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 hibernatefile        /var/vm/sleepimage
 powernap             1
 displaysleep         10
 {key}         {value}
 womp                 1
"""


@pytest.mark.parametrize(
    ("key", "value", "mode"),
    [
        ("lowpowermode", "0", False),
        ("lowpowermode", "1", True),
        ("powermode   ", "0", False),
        ("powermode   ", "1", True),
        ("powermode   ", "2", False),  # high power
        ("tcpkeepalive", "1", None),
    ],
)
def test_pmset_says_whether_power_is_saved(key: str, value: str, mode: bool | None) -> None:
    assert macos.low_power_mode_in(SETTINGS.format(key=key, value=value)) is mode


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("Note: No thermal warning level has been recorded\nNote: No CPU power status has been recorded\n", None),
        ("CPU_Scheduler_Limit \t= 100\n\tCPU_Available_CPUs \t= 8\n\tCPU_Speed_Limit \t= 68\n", 0.68),
        ("CPU_Speed_Limit = 100", 1.0),
        ("", None),
    ],
)
def test_pmset_says_how_far_the_cpu_is_held_back(text: str, limit: float | None) -> None:
    assert macos.speed_limit_in(text) == limit


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("com.apple.system.thermalpressurelevel 0\n", "nominal"),
        ("com.apple.system.thermalpressurelevel 2", "heavy"),
        ("com.apple.system.thermalpressurelevel 9", None),
        ("com.apple.system.thermalpressurelevel: failed", None),
        ("", None),
    ],
)
def test_notifyutil_says_how_hot_it_is(text: str, level: str | None) -> None:
    assert macos.thermal_in(text) == level


REGISTRY = [
    {
        "IOClass": "AGXAcceleratorG16X",
        "gpu-core-count": 40,
        "IORegistryEntryChildren": [
            {
                "IOUserClientCreator": "pid 533, WindowServer",
                "AppUsage": [{"API": "Metal", "accumulatedGPUTime": 1_500_000_000, "lastSubmittedTime": 1}],
            },
            {"IOUserClientCreator": "pid 533, WindowServer", "AppUsage": [{"accumulatedGPUTime": 500_000_000}]},
            {
                "IOUserClientCreator": "pid 99, Code Helper (GPU)",
                "AppUsage": [{"accumulatedGPUTime": 10**9}, {"accumulatedGPUTime": "new kind"}],
                "IORegistryEntryChildren": [{"IOUserClientCreator": "pid 7, ollama", "AppUsage": []}],
            },
            {"IOUserClientCreator": "no pid here", "AppUsage": [{"accumulatedGPUTime": 5}]},
            {"IOUserClientCreator": "pid 8, silent"},
        ],
    }
]


def test_ioreg_says_who_uses_the_gpu_and_how_many_cores_it_has() -> None:
    data = plistlib.dumps(REGISTRY)
    assert macos.gpu_processes_in(data) == {"WindowServer:533": 2.0, "Code Helper (GPU):99": 1.0, "ollama:7": 0.0}
    assert macos.gpu_cores_in(data) == 40


@pytest.mark.parametrize("data", [b"", b"not a list", plistlib.dumps([]), plistlib.dumps({"a": 1}), b"<plist>"])
def test_another_form_of_the_registry_says_nothing(data: bytes) -> None:
    assert macos.gpu_processes_in(data) is None
    assert macos.gpu_cores_in(data) is None


def test_a_tool_that_fails_or_hangs_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(macos, "_LIMIT_S", 0.3)
    said = macos._said(
        {
            "fine": (sys.executable, "-c", "print('well')"),
            "failing": (sys.executable, "-c", "print('words'); raise SystemExit(1)"),
            "hanging": (sys.executable, "-c", "import time; time.sleep(60)"),
            "absent": ("/nowhere/at/all",),
        }
    )
    assert said["failing"] == said["hanging"] == said["absent"] == b""
    monkeypatch.setattr(macos, "_LIMIT_S", 30.0)
    assert macos._said({"fine": (sys.executable, "-c", "print('well')")})["fine"] == b"well\n"


# -- Linux


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


AC, BAT, MOUSE = (f"class/power_supply/{name}" for name in ("AC", "BAT0", "hidpp_battery_0"))


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({}, None),
        ({f"{AC}/type": "Mains", f"{AC}/online": "1", f"{BAT}/type": "Battery", f"{BAT}/status": "Charging"}, "mains"),
        (
            {f"{AC}/type": "Mains", f"{AC}/online": "0", f"{BAT}/type": "Battery", f"{BAT}/status": "Discharging"},
            "battery",
        ),
        ({f"{MOUSE}/type": "Battery", f"{MOUSE}/status": "Discharging", f"{MOUSE}/scope": "Device"}, None),
        ({f"{AC}/type": "USB", f"{AC}/online": "1"}, "mains"),
        ({f"{BAT}/type": "Battery", f"{BAT}/status": "Full"}, None),
    ],
)
def test_linux_says_where_power_comes_from(tmp_path: Path, files: dict[str, str], source: str | None) -> None:
    assert read_linux(0.0, write(tmp_path, files)).power_source == source


def test_linux_counts_how_often_it_was_too_hot(tmp_path: Path) -> None:
    files = {
        f"devices/system/cpu/cpu{cpu}/thermal_throttle/{what}_throttle_count": str(count)
        for cpu, what, count in ((0, "core", 3), (0, "package", 4), (1, "core", 5))
    }
    files |= {"devices/system/cpu/cpufreq/policy0/x": "9", "firmware/acpi/platform_profile": "low-power"}
    found = read_linux(1.0, write(tmp_path, files))
    assert (found.throttle_total, found.low_power_mode, found.at_s) == (12, True, 1.0)
    write(tmp_path, {"firmware/acpi/platform_profile": "balanced"})
    assert read_linux(0.0, tmp_path).low_power_mode is False
    assert read_linux(0.0, tmp_path / "nothing").throttle_total is None


def test_nvidias_tool_names_processes() -> None:
    text = "1234, /usr/bin/ollama\n77, python3\nNo running processes found\n"
    assert compute_apps_in(text) == {"ollama:1234": None, "python3:77": None}

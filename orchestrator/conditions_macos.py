"""Owns reading the conditions around a cell on macOS: what pmset, notifyutil and ioreg print, without root.

Does not judge them (conditions.py). The texts' forms are those of public reports; nobody has run this on a Mac yet. A
tool that fails, hangs or prints something else leaves its figures None.
"""

from __future__ import annotations

import plistlib
import re
import subprocess
import time
from typing import TYPE_CHECKING, Any
from xml.parsers.expat import ExpatError

from orchestrator.conditions import Conditions

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT_S = 2.0
# launchd's PATH lacks these folders.
_COMMANDS = {
    "battery": ("/usr/bin/pmset", "-g", "batt"),
    "settings": ("/usr/bin/pmset", "-g"),
    "heat": ("/usr/bin/pmset", "-g", "therm"),
    "pressure": ("/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel"),
    "gpu": ("/usr/sbin/ioreg", "-a", "-r", "-l", "-c", "IOAccelerator"),
}
_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")


def read_macos(at_s: float) -> Conditions:
    """The conditions now; the tools run beside each other, two seconds at most."""
    said = _said(_COMMANDS)
    gpu = said["gpu"]
    return Conditions(
        at_s=at_s,
        power_source=power_source_in(said["battery"].decode(errors="replace")),
        low_power_mode=low_power_mode_in(said["settings"].decode(errors="replace")),
        thermal=thermal_in(said["pressure"].decode(errors="replace")),
        cpu_speed_limit_frac=speed_limit_in(said["heat"].decode(errors="replace")),
        gpu_processes=gpu_processes_in(gpu),
    )


def read_gpu_cores() -> int | None:
    """How many cores the GPU has; None where nobody says."""
    return gpu_cores_in(_said({"gpu": _COMMANDS["gpu"]})["gpu"])


def power_source_in(text: str) -> str | None:
    """The source that `pmset -g batt` names in its first line; a UPS on battery is a battery."""
    drawn = re.search(r"Now drawing from '([^']*)'", text)
    return {"AC Power": "mains", "Battery Power": "battery", "UPS Power": "battery"}.get(drawn[1]) if drawn else None


def low_power_mode_in(text: str) -> bool | None:
    """Whether `pmset -g` says that low-power mode is in use; newer systems call it `powermode 1` (2: high power)."""
    set_to = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d)\s*$", text, re.MULTILINE)
    return None if set_to is None else set_to[1] == "1"


def speed_limit_in(text: str) -> float | None:
    """The share of its speed that `pmset -g therm` says the CPU may have; None where it has recorded no limit."""
    limit = re.search(r"CPU_Speed_Limit\s*=\s*(\d{1,3})\b", text)
    return None if limit is None else int(limit[1]) / 100


def thermal_in(text: str) -> str | None:
    """The level that `notifyutil -g` prints behind the notification's name."""
    number = re.search(r"thermalpressurelevel\s+(\d+)\s*$", text.strip())
    return _LEVELS[int(number[1])] if number and int(number[1]) < len(_LEVELS) else None


def gpu_processes_in(data: bytes) -> dict[str, float | None] | None:
    """GPU seconds by `name:pid`, of the GPU's user clients in ioreg's property list; None where there is none."""
    found: dict[str, float | None] = {}
    entries = list(_entries(_plist(data)))
    for entry in entries:
        creator = re.match(r"pid (\d+), (.+)", str(entry.get("IOUserClientCreator", "")))
        usage = entry.get("AppUsage")
        if creator is None or not isinstance(usage, list):
            continue
        spent_ns = sum(
            spent for app in usage if isinstance(app, dict) and isinstance(spent := app.get("accumulatedGPUTime"), int)
        )
        key = f"{creator[2]}:{creator[1]}"
        found[key] = (found.get(key) or 0.0) + spent_ns / 1e9
    return found if entries else None


def gpu_cores_in(data: bytes) -> int | None:
    """The accelerator's `gpu-core-count` in ioreg's property list."""
    counts = [entry["gpu-core-count"] for entry in _entries(_plist(data)) if "gpu-core-count" in entry]
    return next((count for count in counts if isinstance(count, int) and count > 0), None)


def _plist(data: bytes) -> Any:
    try:
        return plistlib.loads(data)
    except (plistlib.InvalidFileException, ExpatError, ValueError, KeyError, IndexError, OverflowError, TypeError):
        return None


def _entries(node: Any) -> Iterator[dict[str, Any]]:
    """Every entry of a registry tree, those below others too."""
    for entry in node if isinstance(node, list) else ():
        if isinstance(entry, dict):
            yield entry
            yield from _entries(entry.get("IORegistryEntryChildren"))


def _said(commands: dict[str, tuple[str, ...]]) -> dict[str, bytes]:
    """What the commands print, each started at once; empty for one that fails or takes too long."""
    started = {name: _start(command) for name, command in commands.items()}
    end_s = time.monotonic() + _LIMIT_S
    return {name: b"" if process is None else _heard(process, end_s) for name, process in started.items()}


def _start(command: tuple[str, ...]) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"LC_ALL": "C"}
        )
    except OSError:
        return None


def _heard(process: subprocess.Popen[bytes], end_s: float) -> bytes:
    with process:
        try:
            out, _ = process.communicate(timeout=max(0.01, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            return b""
    return out if process.returncode == 0 else b""

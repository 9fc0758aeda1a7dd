"""Owns reading the conditions around a cell on Linux: power supplies, throttle counters, platform profile, NVIDIA's
tool.

Does not judge them (conditions.py). Files are read under a root that tests may set.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from orchestrator.conditions import Conditions

_LIMIT_S = 2.0
_NVIDIA_SMI = ("/usr/bin/nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader")


def read_linux(at_s: float, sys_root: Path = Path("/sys")) -> Conditions:
    """The conditions now. What is not there, or may not be read, is None."""
    return Conditions(
        at_s=at_s,
        power_source=_power_source(sys_root / "class/power_supply"),
        low_power_mode=_low_power_mode(sys_root / "firmware/acpi/platform_profile"),
        throttle_total=_throttle_total(sys_root / "devices/system/cpu"),
        gpu_processes=_compute_apps(),
    )


def compute_apps_in(text: str) -> dict[str, float | None]:
    """The processes of `nvidia-smi --query-compute-apps`, by name without its folder; their time is not told."""
    found: dict[str, float | None] = {}
    for line in text.splitlines():
        pid, comma, path = line.partition(",")
        if comma and pid.strip().isdigit():
            found[f"{Path(path.strip()).name}:{pid.strip()}"] = None
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _power_source(supplies: Path) -> str | None:
    online, discharging = False, False
    with contextlib.suppress(OSError):
        for supply in supplies.iterdir():
            kind = _text(supply / "type")
            if _text(supply / "scope") == "Device":  # the battery of a mouse
                continue
            online = online or (kind in ("Mains", "USB") and _text(supply / "online") == "1")
            discharging = discharging or (kind == "Battery" and _text(supply / "status") == "Discharging")
    if online:
        return "mains"
    return "battery" if discharging else None


def _low_power_mode(profile: Path) -> bool | None:
    chosen = _text(profile)
    return None if chosen is None else chosen == "low-power"


def _throttle_total(cpus: Path) -> int | None:
    try:
        counts = [_text(path) for path in cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")]
    except OSError:  # no descriptor left, say
        return None
    known = [int(count) for count in counts if count is not None and count.isdigit()]
    return sum(known) if known else None


def _compute_apps() -> dict[str, float | None] | None:
    if not Path(_NVIDIA_SMI[0]).exists():
        return None
    try:
        done = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return compute_apps_in(done.stdout)

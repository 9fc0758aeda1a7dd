"""The report that macOS writes when it ends a process for memory, by files of that name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orchestrator.jetsam import report_since

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, name: str, at_s: float) -> None:
    (folder / name).write_text("{}")
    os.utime(folder / name, (at_s, at_s))


def test_the_newest_report_since_the_start_is_named(tmp_path: Path) -> None:
    write(tmp_path, "JetsamEvent-2026-01-01-010101.ips", 100.0)
    write(tmp_path, "JetsamEvent-2026-01-02-010101.ips", 200.0)
    write(tmp_path, "JetsamEvent-2026-01-03-010101.ips", 300.0)
    write(tmp_path, "Python-2026-01-04-010101.ips", 400.0)
    assert report_since(200.0, tmp_path) == "JetsamEvent-2026-01-03-010101.ips"
    assert report_since(301.0, tmp_path) is None


def test_a_system_without_such_reports_has_none(tmp_path: Path) -> None:
    assert report_since(0.0, tmp_path / "absent") is None

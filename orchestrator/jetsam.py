"""Owns how a kill by macOS for memory is found: the JetsamEvent report that the system writes about it.

Reads the names of files only. After Apple's public descriptions; not yet seen to work on a Mac by us.
"""

from __future__ import annotations

from pathlib import Path

REPORTS = Path("/Library/Logs/DiagnosticReports")


def report_since(started_s: float, folder: Path = REPORTS) -> str | None:
    """The newest JetsamEvent report written at or after `started_s` (seconds of the wall clock), by name, or None."""
    found = []
    try:
        for path in folder.glob("JetsamEvent-*.ips"):
            written_s = path.stat().st_mtime
            if written_s >= started_s:
                found.append((written_s, path.name))
    except OSError:  # no permission, or a report that is being moved
        return None
    return max(found)[1] if found else None

"""Owns the log: structlog events as lines for people, in the run directory. Never parsed, never the truth."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from pathlib import Path


class _LineLog:
    """Appends lines to a file; a disk that takes none costs the log, not the sweep."""

    def __init__(self, file: io.TextIOBase | None) -> None:
        self._file = file

    def msg(self, text: str) -> None:
        """Writes one line."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.write(f"{text}\n")
                self._file.flush()

    log = debug = info = warning = error = critical = msg


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Sends structlog's events to `path` while entered."""
    try:
        file = path.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError:
        file = None
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=lambda *_: _LineLog(file),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.reset_defaults()
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

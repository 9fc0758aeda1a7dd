"""Owns the ledger, `journal.jsonl`: what was written is the machine's truth, and is never changed.

Does not decide what to write. A torn last line is a crash's trace; anything else that does not parse is an
error that names file and line.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from orchestrator.durable import AppendedLines, replace_file, sync_fd
from orchestrator.errors import LedgerError
from orchestrator.history import History

JOURNAL = "journal.jsonl"


def utc_now() -> str:
    """The wall time for stamps that people read, ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def replay(path: Path) -> History:
    """Reads a journal. An absent file is an empty history.

    Raises:
        LedgerError: the file cannot be read, or a line other than a torn last one is not an event.
    """
    history = History()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return history
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    *lines, history.torn = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            history.apply(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerError(
                f"{path}:{number}: not a journal event ({type(error).__name__}: {error}); "
                "mend or remove that line by hand, the file was left as it is"
            ) from error
    return history


class Ledger:
    """The journal of one run directory, open for appending; the caller holds the run's lock.

    Raises LedgerError from every method where the disk does not take a line.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / JOURNAL
        self.history = replay(self.path)
        if self.history.torn:
            self._set_torn_tail_aside()
        self._file = AppendedLines(self.path)

    def append(self, event: str, **body: Any) -> None:
        """Writes one event; it is on the disk, and in `history`, when this returns."""
        whole = {"event": event, "at": utc_now(), **body}
        try:
            self._file.append(json.dumps(whole, separators=(",", ":"), allow_nan=False).encode())
        except OSError as error:
            raise LedgerError(
                f"{self.path}: cannot be written: {error.strerror}; what is there is whole. "
                "Make room on that disk, then `wallfinder resume` goes on"
            ) from error
        self.history.apply(whole)

    def close(self) -> None:
        """Releases the file."""
        self._file.close()

    def _set_torn_tail_aside(self) -> None:
        """Keeps what a crash left of a last line in a file of its own, so that the next line starts clean."""
        torn = self.history.torn
        aside = self.path.with_name(f"{self.path.name}.torn-{utc_now().replace(':', '')}")
        try:
            replace_file(aside, torn)
            with self.path.open("r+b") as file:
                file.truncate(self.path.stat().st_size - len(torn))
                sync_fd(file.fileno())
        except OSError as error:
            raise LedgerError(f"{self.path}: a torn last line cannot be set aside: {error.strerror}") from error
        self.history.torn = b""

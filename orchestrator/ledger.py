"""Owns the ledger, `journal.jsonl`: what was written is the machine's truth, and is never changed.

Does not decide what to write. A torn last line is a crash's trace; anything else that does not parse is an
error that names file and line.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import json
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from orchestrator.collector import collector_paused
from orchestrator.durable import AppendedLines, replace_file, sync_fd
from orchestrator.errors import LedgerError, LedgerUnwritable
from orchestrator.history import History
from orchestrator.run_directory import JOURNAL

if TYPE_CHECKING:
    from pathlib import Path

_RESERVE_BYTES = 256 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)


def utc_now() -> str:
    """The wall time for stamps that people read, ISO 8601 in UTC."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def elapsed(since: str, until: str) -> float | None:
    """Seconds between two stamps of the journal; None where one of them is no stamp."""
    try:
        return (dt.datetime.fromisoformat(until) - dt.datetime.fromisoformat(since)).total_seconds()
    except ValueError:
        return None


def replay(path: Path) -> History:
    """Reads a journal. An absent file is an empty history.

    Raises:
        LedgerError: the file cannot be read, or a line other than a torn last one is not an event.
    """
    history = History()
    number = 0  # of the line
    try:
        with path.open("rb") as lines, collector_paused():
            for line in lines:
                number += 1
                if not line.endswith(b"\n"):
                    history.torn = line
                    break
                try:
                    body = from_json(line)  # in a third of the time of Python's own
                except ValueError:  # it refuses half a character, as a worker's words may hold; other words for errors
                    body = json.loads(line.removesuffix(b"\n"))
                history.apply(body)
    except FileNotFoundError:
        return history
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise LedgerError(
            f"{path}:{number}: not a journal event ({type(error).__name__}: {error}); "
            "mend or remove that line by hand, the file was left as it is"
        ) from error
    return history


# Of a record's figures, those that the sweep itself goes by (what is next, what to expect) or shows when it is over.
_KEPT = frozenset(
    (
        *("reps", "generation_tps", "generation_tps_per_stream", "generation_tps_low", "generation_tps_high"),
        *("tpot_ms", "prompt_tps", "ttft_s", "robust_cv", "step_s", "peak_memory_bytes", "peak_phase", "peak_term"),
        "filled_tokens",
    )
)
_ON_DISK = ("conditions", "started_at", "ended_at", "boot_id")


def _kept(event: dict[str, Any]) -> dict[str, Any]:
    """The event as a sweep that runs keeps it: of its record what it needs. The rest is on the disk, for reports.

    That is most of what a record takes, and a night has thousands.
    """
    record = event.get("record")
    if event["event"] != "cell.ended" or not isinstance(record, dict):
        return event
    figures = {name: value for name, value in record["metrics"].items() if name in _KEPT}
    small = {name: value for name, value in record.items() if name not in _ON_DISK}
    return {**event, "record": {**small, "metrics": figures}}


class Ledger:
    """The journal of one run directory, open for appending; the caller holds the run's lock.

    A reserve of disk is kept beside it while it is open: when the disk is full, the reserve is given back, so that the
    cell in flight still gets its line. `disk_full` then says that no other cell should be started.
    """

    def __init__(self, run: Path) -> None:
        """Replays the journal and opens it.

        Raises:
            LedgerError: it cannot be read or trusted.
            LedgerUnwritable: it cannot be written.
        """
        self.path = run / JOURNAL
        self.history = replay(self.path)
        self.disk_full = False
        self._reserve = run / ".reserve"
        try:
            if self.history.torn:
                self._set_torn_tail_aside()
            self._file = AppendedLines(self.path)
            replace_file(self._reserve, bytes(_RESERVE_BYTES))
        except OSError as error:
            raise LedgerUnwritable(f"{self.path}: cannot be written: {error.strerror}; nothing was changed") from error

    def append(self, event: str, **body: Any) -> None:
        """Writes one event; it is on the disk, and in `history`, when this returns.

        Raises:
            LedgerUnwritable: the disk does not take the line, not even with the reserve given back.
        """
        whole = {"event": event, "at": utc_now(), **body}
        line = json.dumps(whole, separators=(",", ":"), allow_nan=False).encode()
        try:
            self._append(line)
        except OSError as error:
            remedy = "Make room on that disk" if error.errno in _FULL else "Mend that disk"
            raise LedgerUnwritable(
                f"{self.path}: cannot be written: {error.strerror}; what is there is whole. "
                f"{remedy}, then `wallfinder resume` goes on"
            ) from error
        self.history.apply(_kept(whole))

    def close(self) -> None:
        """Releases the file and the reserve."""
        self._file.close()
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)

    def _append(self, line: bytes) -> None:
        try:
            self._file.append(line)
        except OSError as error:
            if error.errno not in _FULL or self.disk_full:
                raise
            self.disk_full = True
            self._reserve.unlink(missing_ok=True)
            self._file.append(line)

    def _set_torn_tail_aside(self) -> None:
        """Keeps what a crash left of a last line in a file of its own, so that the next line starts clean."""
        torn = self.history.torn
        aside = self.path.with_name(f"{self.path.name}.torn-{utc_now().replace(':', '')}")
        replace_file(aside, torn)
        with self.path.open("r+b") as file:
            file.truncate(self.path.stat().st_size - len(torn))
            sync_fd(file.fileno())
        self.history.torn = b""

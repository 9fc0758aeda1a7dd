"""Owns the recording of one attempt on its way to the disk: samples and events, one JSON object per line.

Nobody who watches waits for it: lines are taken in memory and written by a thread of its own, which also makes the file
survive a crash of the machine, about once a second, and keeps it bounded (thinning.py).
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from orchestrator.durable import AppendedLines, replace_file
from orchestrator.thinning import thin

if TYPE_CHECKING:
    from pathlib import Path

CAP_BYTES = 4 << 20
SYNC_EVERY_S = 1.0
_CLOSE_S = 30.0  # a disk that does not take the last lines in this time keeps nobody


class FlightRecorder:
    """A recording that is being made. `close` writes what is left."""

    def __init__(self, path: Path, cap_bytes: int = CAP_BYTES) -> None:
        """Raises OSError where there can be no such file."""
        self._path, self._cap_bytes = path, cap_bytes
        self._file = AppendedLines(path)
        self._lines: queue.SimpleQueue[list[dict[str, Any]] | None] = queue.SimpleQueue()
        self._thin_at_bytes = cap_bytes
        self.lost = 0  # lines that the disk did not take
        self._thread = threading.Thread(target=self._write_all, name="flight-recorder", daemon=True)
        self._thread.start()

    def samples(self, samples: list[dict[str, Any]]) -> None:
        """Takes samples in; does not wait."""
        self._lines.put(samples)

    def event(self, event: str, at_s: float, /, **values: Any) -> None:
        """Takes an event in; `at_s` on the monotonic clock. Does not wait."""
        self._lines.put([{"event": event, "at_s": at_s, **values}])

    def close(self) -> None:
        """Writes what is left and releases the file."""
        self._lines.put(None)
        self._thread.join(_CLOSE_S)

    # -- the thread

    def _write_all(self) -> None:
        synced_s = time.monotonic()
        while (lines := self._lines.get()) is not None:
            self._write(lines)
            if time.monotonic() - synced_s >= SYNC_EVERY_S:
                self._sync()
                synced_s = time.monotonic()
        self._sync()
        self._file.close()

    def _write(self, lines: list[dict[str, Any]]) -> None:
        """A full disk costs samples, not the attempt."""
        data = b"\n".join(json.dumps(line, separators=(",", ":")).encode() for line in lines)
        try:
            self._file.append(data, sync=False)
            if self._file.size > self._thin_at_bytes:
                self._thin()
        except OSError:
            self.lost += len(lines)

    def _sync(self) -> None:
        with contextlib.suppress(OSError):  # a disk that cannot keep it has said so, or will, in the ledger's words
            self._file.flush()

    def _thin(self) -> None:
        """Puts a thinned recording in the file's place."""
        lines = [json.loads(line) for line in self._path.read_bytes().splitlines()]
        thinned = thin(lines)
        data = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in thinned)
        replace_file(self._path, data)
        before, self._file = self._file, AppendedLines(self._path)
        before.close()
        # What has to stay whole may be as large as the cap: then it grows by a quarter before it is thinned again.
        self._thin_at_bytes = max(self._cap_bytes, len(data) + self._cap_bytes // 4)

"""Owns the reading of recordings (samples.jsonl) back from the disk. Does not judge what they hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def recorded_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The samples and events of a recording, one by one in their order; an event has the key `event`.

    A torn last line is a crash's trace and left out.

    Raises:
        LedgerError: the file cannot be read, or another line of it is not an object of JSON.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    body = json.loads(line)
                except ValueError:
                    if not line.endswith(b"\n"):
                        return
                    body = None
                if not isinstance(body, dict):
                    raise LedgerError(f"{path}:{number}: is no sample; put the file back, or move it away")
                yield body
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error

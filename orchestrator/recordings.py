"""Owns the reading of recordings (samples.jsonl) back from the disk. Does not judge what they hold.

A file is read line by line, so its length does not matter.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from orchestrator.errors import LedgerError
from orchestrator.watchdog.limits import Limits
from orchestrator.watchdog.recording import SampleReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAX_LINE_BYTES = 1 << 20  # a sample is a kilobyte
_LEVELS = ("warning", "critical")
_TEXTS = ("state", "phase")
_LIMITS: TypeAdapter[Limits] = TypeAdapter(Limits)


def recorded_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The samples and events of a recording, one by one in their order; an event has the key `event`.

    A torn last line is a crash's trace and left out.

    Raises:
        LedgerError: the file cannot be read, or another line of it is neither sample nor event; the message names the
            line.
    """
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(_MAX_LINE_BYTES):
                number += 1
                body = _object(line)
                if body is None and not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                    return
                if body is None or not (_is_event(body) if "event" in body else _is_sample(body)):
                    raise LedgerError(f"{path}:{number}: is no sample; put the file back, or move it away")
                yield body
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error


def recorded_limits(body: object) -> Limits:
    """The limits of a `watch` event or of a result.json; keys this version does not know are left out.

    Raises:
        ValueError: they are no limits.
    """
    limits = _LIMITS.validate_python(body)
    if limits.pressure_level not in _LEVELS:
        raise ValueError(f"pressure_level is {limits.pressure_level!r}")
    return limits


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _is_event(body: dict[str, Any]) -> bool:
    return isinstance(body["event"], str) and _is_number(body.get("at_s"))


def _is_sample(body: dict[str, Any]) -> bool:
    """Whether the line can be judged: what has to be there is, and what is known is a number where it should be."""
    try:
        sample = SampleReader().decode(body)
    except (KeyError, TypeError, AttributeError):
        return False
    times = (sample.monotonic_s, sample.boottime_s, sample.late_s)
    steps = sample.progress.recent_step_s if sample.progress else ()
    every = body.get("every", 1)
    readings = (sample.host, sample.worker, sample.progress)
    return (
        all(map(_is_number, (*times, *steps)))
        and type(every) is int
        and every >= 1
        and all(reading is None or _holds_numbers(reading) for reading in readings)
    )


def _holds_numbers(reading: Any) -> bool:
    for field in dataclasses.fields(reading):
        value = getattr(reading, field.name)
        if field.name in _TEXTS:
            if not isinstance(value, str | None):
                return False
        elif field.name != "recent_step_s" and value is not None and not _is_number(value):
            return False
    return True


def _is_number(value: object) -> bool:
    return type(value) in (int, float)

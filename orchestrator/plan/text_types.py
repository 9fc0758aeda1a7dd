"""Owns the types of the plan's keys that hold words: names, environment, faults, deadline, later keys.

Does not know which keys there are. See types.py for the numbers and quantities.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from orchestrator.plan.quantities import DURATION_PATTERN, read_duration, render_duration
from orchestrator.plan.types import MAX_DURATION_S, Reads
from orchestrator.plan.values import UnreadableError, described, is_null, read_text, wrong
from orchestrator.plan.yaml import Scalar

MAX_NAME = 100
_VARIANT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_NAME_PATTERN = r'^[^\s./\\:*?"<>|\x00-\x1f-]([^/\\:*?"<>|\x00-\x1f]{0,98}[^\s./\\:*?"<>|\x00-\x1f])?$'
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
_CLOCK_PATTERN = r"^([01]?[0-9]|2[0-3]):[0-5][0-9]$"
_ENV_KEY_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"


def read_name(value: object) -> str:
    """A sweep's name, safe as the name of a folder.

    Raises:
        UnreadableError: it is not.
    """
    text = read_text(value, "a name")
    if not re.match(_NAME_PATTERN, text) or not text.isprintable() or len(text.encode()) > 200 or "\n" in text:
        raise wrong(
            f"{described(value)} cannot name a folder; write at most {MAX_NAME} characters, "
            'none of / \\ : * ? " < > |, '
            "no dot, dash or space first, no dot or space last"
        )
    return text


def safe_name(text: str) -> str:
    """The nearest name to `text` that `read_name` takes."""
    kept = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "-" for c in text)
    kept = kept.encode(errors="replace").decode().lstrip(".- ")[:MAX_NAME].rstrip(". ")
    while len(kept.encode()) > 200:
        kept = kept[:-1].rstrip(". ")
    return kept or "plan"


def _read_variant_name(value: object) -> str:
    text = read_text(value, "a name")
    if not re.fullmatch(_VARIANT_PATTERN, text):
        raise wrong(f"{described(value)} cannot name a variant; write up to 64 of A-Z a-z 0-9 . _ -, no . _ - first")
    return text


def _read_revision(value: object) -> str | None:
    if is_null(value):
        return None
    # As written: a commit such as 1e10000 or 0123456 is text here, whatever else it looks like.
    text = value.text if isinstance(value, Scalar) else value
    if not isinstance(text, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}", text) or ".." in text:
        raise wrong(f"{described(value)} is not a revision; write a branch, tag or commit, or null")
    return text


def _read_environment(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise wrong(f"{described(value)} stands where a mapping belongs; write `{{NAME: value}}`")
    problems: list[tuple[tuple[str | int, ...], str]] = []
    env: dict[str, str] = {}
    for key, item in value.items():
        text = item.text if isinstance(item, Scalar) else item
        if not re.fullmatch(_ENV_KEY_PATTERN, str(key)):
            problems.append(((str(key),), "is not the name of a variable; write letters, digits and _"))
        elif is_null(item) or not isinstance(text, str) or "\0" in text:
            problems.append(((str(key),), f"{described(item)} stands where text belongs; write it in quotes"))
        else:
            env[str(key)] = text
    if problems:
        raise UnreadableError(*problems)
    return dict(sorted(env.items()))


def _read_faults(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise wrong(f'{described(value)} stands where a mapping belongs; write `{{"c00064-b*": segfault}}`')
    problems: list[tuple[tuple[str | int, ...], str]] = []
    faults: dict[str, str] = {}
    for glob, item in value.items():
        try:
            faults[str(glob)] = read_text(item, "a fault")
        except UnreadableError as error:
            problems.append(((str(glob),), str(error)))
    if problems:
        raise UnreadableError(*problems)
    return faults


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a sweep stops starting cells: a local clock time (`HH:MM`), or a duration in seconds."""

    clock: str | None = None
    duration_s: float | None = None

    def seconds_after(self, started: datetime) -> float:
        """Seconds from `started` to the deadline; a clock time is the next one after `started`."""
        if self.duration_s is not None:
            return self.duration_s
        hour, minute = (int(part) for part in (self.clock or "00:00").split(":"))
        # Naive local time, made absolute last, so that a change to or from summer time in between is counted.
        naive = started.astimezone().replace(tzinfo=None)
        at = naive.replace(hour=hour, minute=minute, second=0, microsecond=0)
        if at <= naive:
            at += timedelta(days=1)
        return (at.astimezone(UTC) - started.astimezone(UTC)).total_seconds()

    def __str__(self) -> str:
        return self.clock or render_duration(self.duration_s or 0.0)


def read_deadline(value: object) -> Deadline | None:
    """A clock time, a duration, or null.

    Raises:
        UnreadableError: it is none of them.
    """
    if is_null(value) or isinstance(value, Deadline):
        return value if isinstance(value, Deadline) else None
    text = value.text.strip() if isinstance(value, Scalar) else value
    if isinstance(text, str) and (clock := _CLOCK.fullmatch(text)):
        return Deadline(clock=f"{int(clock[1]):02d}:{clock[2]}")
    try:
        return Deadline(duration_s=read_duration(value, 0.001, MAX_DURATION_S))
    except UnreadableError:
        raise wrong(f'{described(value)} is not a deadline; write a clock time ("07:00") or a duration (8h)') from None


def plan_name() -> Reads:
    """A sweep's name."""
    return Reads(read_name, {"type": "string", "minLength": 1, "maxLength": MAX_NAME})


def variant_name() -> Reads:
    """A variant's name."""
    return Reads(_read_variant_name, {"type": "string", "pattern": _VARIANT_PATTERN})


def revision_text() -> Reads:
    """A branch, tag or commit of a hub model, or null."""
    return Reads(_read_revision, {"type": ["string", "null"], "minLength": 1})


def environment() -> Reads:
    """Names and values of environment variables; values are text as written."""
    values = {"type": ["string", "number", "boolean"]}
    names = {"pattern": _ENV_KEY_PATTERN}
    return Reads(_read_environment, {"type": "object", "propertyNames": names, "additionalProperties": values})


def fault_table() -> Reads:
    """Globs of cell ids and the fault that is played there."""
    return Reads(_read_faults, {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}})


def deadline_text() -> Reads:
    """A clock time, a duration, or null."""
    forms = [{"type": "null"}, {"pattern": _CLOCK_PATTERN}, {"pattern": DURATION_PATTERN, "minLength": 2}]
    schema = {"type": ["string", "null"], "anyOf": forms, "examples": ["07:00", "8h"]}
    return Reads(read_deadline, schema, lambda value: None if value is None else str(value))

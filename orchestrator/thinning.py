"""Owns which samples of a long recording are kept: the newest and those around an action whole, the others thinned.

Pure: takes lines of a recording as plain dictionaries (see watchdog/recording.py), reads and writes no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Line: TypeAlias = dict[str, Any]

WHOLE_LINES = 600  # the newest: a minute at 10 Hz
AROUND_LINES = 300  # before and after an action
RING_STEPS = 64  # as many as a sample holds
_ACTIONS = ("acted", "would_act")


def thin(lines: Sequence[Line]) -> list[Line]:
    """The recording with about half of its older samples.

    Two neighbours become one: the second, which stands for the ticks of both (`every`), with the decode steps of both
    and the worse lateness. Samples of different phases, the newest `WHOLE_LINES`, `AROUND_LINES` on either side of an
    action, and events are left as they are.
    """
    whole = _whole(lines)
    kept: list[Line] = []
    waiting: Line | None = None
    for at, line in enumerate(lines):
        if at in whole or "event" in line:
            kept += [line] if waiting is None else [waiting, line]
            waiting = None
        elif waiting is None:
            waiting = line
        elif _phase(waiting) != _phase(line):
            kept.append(waiting)
            waiting = line
        else:
            kept.append(_merged(waiting, line))
            waiting = None
    return kept if waiting is None else [*kept, waiting]


def _whole(lines: Sequence[Line]) -> set[int]:
    """The places that are not thinned."""
    whole = set(range(max(0, len(lines) - WHOLE_LINES), len(lines)))
    for at in _actions(lines):
        whole.update(range(max(0, at - AROUND_LINES), min(len(lines), at + AROUND_LINES + 1)))
    return whole


def _actions(lines: Sequence[Line]) -> Iterator[int]:
    return (at for at, line in enumerate(lines) if line.get("event") in _ACTIONS)


def _phase(line: Line) -> tuple[Any, Any]:
    progress = line.get("progress") or {}
    return progress.get("phase"), progress.get("rep")


def _merged(first: Line, second: Line) -> Line:
    merged = {
        **second,
        "every": first.get("every", 1) + second.get("every", 1),
        "late_s": max(first["late_s"], second["late_s"]),
    }
    steps = [*_steps(first), *_steps(second)][-RING_STEPS:]
    if steps:
        merged["progress"] = {**second["progress"], "new_step_s": steps}
    return merged


def _steps(line: Line) -> list[float]:
    return list((line.get("progress") or {}).get("new_step_s", ()))

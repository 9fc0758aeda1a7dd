"""Owns the exceptions that end an attempt from inside. Does not own their wire form (protocol.py)."""

from __future__ import annotations


class AttemptError(Exception):
    """What was asked cannot be done; `kind` is one of the names that `protocol.Failure` lists.

    `text` says what is wrong in the words of whoever found it, `remedy` what a person can change.
    """

    def __init__(self, kind: str, text: str, remedy: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.remedy = remedy


class StopAsked(Exception):
    """The stop flag of the telemetry page was up between two steps, chunks or weights."""

    def __init__(self, phase: str, rep: int, step: int) -> None:
        super().__init__(f"asked to stop in {phase}, rep {rep}, step {step}")
        self.phase = phase
        self.rep = rep
        self.step = step

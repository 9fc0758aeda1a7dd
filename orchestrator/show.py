"""Owns what a running sweep shows: turns glimpses and records into lines on the screen (progress.py draws them)."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from orchestrator.history import History
from orchestrator.host import HostFacts
from orchestrator.plan import Plan
from orchestrator.sweep import SweepScreen


class LiveShow(SweepScreen):
    def __init__(self, plan: Plan, history: History, host: HostFacts, *, plain: bool) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        pass

"""Owns the failures that are ours, and the exit codes. A child's death is a verdict, never an exception."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """What the command line promises to whoever called it."""

    COMPLETE = 0
    CELLS_FAILED = 1
    USAGE = 2
    HOST = 3
    DEADLINE = 124
    INTERRUPTED = 130
    TERMINATED = 143


class WallfinderError(Exception):
    """The root of our own failures; the message names the key or flag to mend."""

    exit_code: Exit = Exit.USAGE


class PlanError(WallfinderError):
    """The plan cannot be used; `problems` holds every one as `file:line: key: what, and what would be right`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class LedgerError(WallfinderError):
    """A run directory that cannot be trusted or used; the message names file and line."""


class LedgerUnwritable(LedgerError):
    """The disk does not take another line; what is there is whole."""

    exit_code = Exit.HOST


class RunLocked(LedgerError):
    """Another sweep holds the run directory."""


class PlanChanged(LedgerError):
    """The run directory was started with another plan; the message shows the difference."""


class HostChanged(LedgerError):
    """The run directory was started on another machine or with other versions; the message shows the difference."""


class ModelUnavailable(WallfinderError):
    """There is no such model, or it may not be had: another try would end the same."""

    exit_code = Exit.CELLS_FAILED


class ModelUnreachable(WallfinderError):
    """The model could not be brought this time: the network, the disk or the hub; another time it may."""

    exit_code = Exit.HOST


class HostUnfit(WallfinderError):
    """The host does not permit what the plan asks, or must not be used any further."""

    exit_code = Exit.HOST


class ModelChanged(HostUnfit):
    """A model's files are not those that the run began with."""

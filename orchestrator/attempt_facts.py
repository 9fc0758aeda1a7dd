"""Owns the facts of an ended attempt, as they were gathered, and how they are put into words.

Does not gather them (attempt.py) and does not judge them (verdict.py). Pure.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.evidence import with_units
from orchestrator.quantities import printable
from worker.protocol import Done, Failure, Stopped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from orchestrator.evidence import Figure
    from orchestrator.watchdog.wire import Acted, Released

_TAIL_CHARACTERS = 65_536
_LAST_LINES = 3
_LAST_CHARACTERS = 400
# Python's clean-up after a child died, and the stack below a crash's own line: consequences, not reasons.
_NOISE = ("resource_tracker", "leaked semaphore", 'File "', "most recent call first", "Extension modules:")
_SIGNAL_WORDS = {
    "SIGKILL": "killed from outside",
    "SIGSEGV": "invalid memory reference",
    "SIGBUS": "memory that could not be read: a file that changed, or a disk that went away",
    "SIGABRT": "abort",
    "SIGILL": "illegal instruction",
    "SIGFPE": "arithmetic error",
    "SIGTRAP": "trap",
    "SIGTERM": "asked to end from outside",
    "SIGHUP": "its terminal went away",
    "SIGINT": "interrupted from outside",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """Everything that is known of an ended attempt.

    `platform` is `sys.platform` of the host; `exit_status` the return code as `subprocess` gives it
    (negative: signal), None where the process was never reaped. `released` is None where the watchdog could
    not say anything any more, `acted` what it had said when it began to end the worker; `stop_cause` is what the
    orchestrator itself had asked for. `log_tail` is
    decoded with errors replaced. `phase`, `rep` (from 0) and `step` are the telemetry page's last.
    `jetsam_report` names a macOS JetsamEvent report that is newer than the attempt's start.
    """

    platform: str
    exit_status: int | None
    reps_expected: int
    reps_measured: int = 0
    final: Done | Stopped | Failure | None = None
    hello_seen: bool = True
    torn_tail: bool = False
    released: Released | None = None
    log_tail: str = ""
    phase: str | None = None
    rep: int | None = None
    step: int | None = None
    watchdog_died: bool = False
    acted: Acted | None = None
    stop_cause: str | None = None
    jetsam_report: str | None = None

    @property
    def cause(self) -> str | None:
        """Why we ended it; None where it ended by itself."""
        if self.released is not None:
            return self.released.cause
        return self.acted.cause if self.acted else self.stop_cause

    @property
    def memory_evidence(self) -> Mapping[str, Figure]:
        """What the watchdog saw of memory trouble; empty where it saw none."""
        return with_units(self.released.memory_evidence) if self.released else {}

    @property
    def slept_s(self) -> float:
        """How long the machine slept during the attempt, in seconds."""
        return self.released.suspended_s if self.released else 0.0

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended the process, also where a shell in between made it 128 + n."""
        status = self.exit_status
        if status is None or -1 < status <= 128:
            return None
        number = -status if status < 0 else status - 128
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"SIG{number}" if status < 0 else None

    @property
    def ending(self) -> str:
        """`SIGSEGV (invalid memory reference)`, or `exit status 3`."""
        name = self.signal
        if name is None:
            return f"exit status {self.exit_status}"
        return f"{name} ({_SIGNAL_WORDS[name]})" if name in _SIGNAL_WORDS else name

    @property
    def evidence(self) -> dict[str, Figure]:
        """Why the watchdog acted comes first, then what else it saw of memory trouble."""
        if self.released is None:
            return dict(self.acted.evidence) if self.acted else {}
        return {**self.released.evidence, **self.memory_evidence}

    @property
    def words(self) -> str:
        """All that the worker said, its last message first."""
        parts = [self.log_tail[-_TAIL_CHARACTERS:]]
        if isinstance(self.final, Failure):
            parts = [self.final.text, self.final.traceback[-_TAIL_CHARACTERS:], *parts]
        return "\n".join(parts)

    @property
    def where(self) -> str:
        """`in decode, rep 3 of 5, step 17`, as far as it is known; reps count from 1 here."""
        if not self.phase:
            return "at an unknown point"
        if self.phase == "starting":
            return "at its start"
        where = f"in {self.phase}"
        if self.phase in {"prefill", "decode"} and self.rep is not None:
            where += f", rep {self.rep + 1} of {self.reps_expected}"
        if self.phase in {"warmup", "decode"} and self.step:
            where += f", step {self.step}"
        return where


def last_words(log_tail: str) -> str:
    """The last lines of a log that say something, on one line, safe to show."""
    kept = [line for line in _said_lines(log_tail) if not any(word in line for word in _NOISE)]
    text = " | ".join(kept[-_LAST_LINES:])
    return text if len(text) <= _LAST_CHARACTERS else "..." + text[3 - _LAST_CHARACTERS :]


def _said_lines(log_tail: str) -> Iterator[str]:
    for line in log_tail[-_TAIL_CHARACTERS:].splitlines():
        said = printable(line)
        if said:
            yield said

"""Owns what the orchestrator and the watchdog say to each other: JSON lines over a socket pair.

Does not own the socket or the telemetry page (inherited by the watchdog as a descriptor).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from orchestrator.watchdog.limits import Limits

# -- orchestrator to watchdog


@dataclass(frozen=True, slots=True)
class Watch:
    """Watch this worker (leader of its own process group) until `Exited`.

    `observe`: tell what the policy would have done, and let the worker run. `recording` is the file to which the last
    samples go where nobody is left to take them; `tag` is in the environment of everything that the worker starts.
    """

    type: ClassVar[str] = "watch"
    serial: int
    pid: int
    limits: Limits
    cgroup_dir: str | None = None
    observe: bool = False
    recording: str | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End the worker. `cause` is `interrupted` or `time_limit`; `hurry` skips to SIGKILL."""

    type: ClassVar[str] = "stop"
    serial: int
    cause: str
    hurry: bool = False


@dataclass(frozen=True, slots=True)
class Exited:
    """The orchestrator saw the worker die and has not reaped it; it waits for `Released` before it does."""

    type: ClassVar[str] = "exited"
    serial: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """No more work; the watchdog ends."""

    type: ClassVar[str] = "shutdown"


# -- watchdog to orchestrator


@dataclass(frozen=True, slots=True)
class Ready:
    """The watchdog is up. `backstops` maps each protection to `verified` or `absent`."""

    type: ClassVar[str] = "ready"
    pid: int
    probe: str
    backstops: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Samples:
    """A batch of samples as plain dictionaries (recording.py)."""

    type: ClassVar[str] = "samples"
    serial: int
    samples: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Acted:
    """The watchdog ends the worker, or would have (`observed`). `evidence` holds figures and thresholds by name.

    `at_s` is on the monotonic clock.
    """

    type: ClassVar[str] = "acted"
    serial: int
    cause: str
    evidence: dict[str, float | int | str]
    at_s: float = 0.0
    observed: bool = False


@dataclass(frozen=True, slots=True)
class Rung:
    """A rung of the stop ladder: `flag`, `term`, `kill` or `unkillable`; `at_s` is on the monotonic clock."""

    type: ClassVar[str] = "rung"
    serial: int
    name: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Released:
    """The watchdog has let go of the worker: the orchestrator may reap it.

    `cause` is why we ended it, None where it ended by itself. Peaks are over the whole attempt, growth over the
    attempt's own baseline; `late_max_s` is the watchdog's own worst lateness; `samples_dropped` of the `samples`
    found no room on their way. `oom_kills` counts the kernel's kills in the worker's own cgroup; where it has none,
    those of the whole host, which may be somebody else's. `pressure_stall_s` is the time for which tasks waited for
    memory while prefill or decode was measured: tasks of the worker's own cgroup, or of the host where the worker is
    part of its trouble. `memory_evidence` holds the figures of the last ten seconds' memory signals
    (policy.memory_evidence), and of kills only the worker's own. `would_have` is what the policy would have ended the
    worker for, where it only observed, `would_have_after_s` how long into the attempt. `phase_footprint_bytes` holds
    the largest footprint that was sampled in each phase.
    """

    type: ClassVar[str] = "released"
    serial: int
    cause: str | None
    evidence: dict[str, float | int | str]
    rungs: list[list[str | float]]
    unkillable: bool
    peak_footprint_bytes: int | None
    swap_growth_bytes: int | None
    swapin_bytes: int | None
    swapout_bytes: int | None
    pressure_stall_s: float | None
    oom_kills: int | None
    late_max_s: float
    samples: int
    suspended_s: float = 0.0
    memory_evidence: dict[str, float | int | str] = field(default_factory=dict)
    samples_dropped: int = 0
    would_have: str | None = None
    would_have_after_s: float | None = None
    would_have_evidence: dict[str, float | int | str] = field(default_factory=dict)
    phase_footprint_bytes: dict[str, int] = field(default_factory=dict)


WireMessage: TypeAlias = Watch | StopWorker | Exited | Shutdown | Ready | Samples | Acted | Rung | Released
_KINDS: dict[str, type[WireMessage]] = {
    c.type: c for c in (Watch, StopWorker, Exited, Shutdown, Ready, Samples, Acted, Rung, Released)
}


def encode(message: WireMessage) -> bytes:
    """One line, newline included."""
    # Not asdict, which copies what is inside; that took longer than all the rest of a batch of samples.
    body = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    text = json.dumps({"type": message.type, **body}, separators=(",", ":"), default=dataclasses.asdict)
    return text.encode() + b"\n"


def decode(line: bytes) -> WireMessage:
    """The message of one line.

    Raises:
        ValueError, KeyError, TypeError: the line is not one of ours; both ends are of the same installation,
            so this is a defect, not an input error.
    """
    body = json.loads(line)
    kind = _KINDS[body.pop("type")]
    if kind is Watch:
        body["limits"] = Limits(**body["limits"])
    return kind(**body)

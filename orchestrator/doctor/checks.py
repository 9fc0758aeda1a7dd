"""Owns the judgement of what was found on a machine: ok, warn or fail, and what to do. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.backstops import VERIFIED
from orchestrator.crosscheck import HOST_SIGNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from orchestrator.crosscheck import Compared
    from orchestrator.host import HostFacts
    from orchestrator.watchdog.sample import HostReading

LOW_AVAILABLE_FRAC = 0.25
_MEMLOCK_BYTES = 32_000_000
_NOT_ON_A_MAC = frozenset(("memory_lock", "oom_score", "parent_death"))  # which has other means, or none
_WHAT_FOR = {
    "interval_timer": "ends a worker that hangs in C when nobody else is left",
    "exit_notice": "tells of a death at once",
    "parent_death": "ends a worker whose orchestrator dies",
    "oom_score_adj": "has the kernel take the worker, not the desktop",
    "worker_cgroup": "makes `worker_memory` possible",
    "oom_group": "has the kernel end a worker with all that it started",
    "jetsam_limit": "would bound a worker's footprint",
    "memory_lock": "keeps the watchdog in memory",
    "memory_lock_partial": "keeps the watchdog's heap and stack in memory",
    "oom_score": "keeps the kernel from taking the watchdog",
    "priority": "lets the watchdog run first",
}
_REMEDIES = {
    "worker_cgroup": "only `worker_memory` needs it: run as root, or by `systemd-run --user --scope`",
    "memory_lock": "raise the limit of locked memory (`ulimit -l`), or run as root",
    "oom_score": "run as root, if the watchdog is to be the last to go",
    "priority": "run as root, or allow a nice value of -10",
}  # fmt: skip


class State(enum.StrEnum):
    """How bad it is. FAIL: nothing that is measured would stand, or nothing can be."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's: what was looked at, what was seen, and what to do (empty where nothing)."""

    name: str
    state: State
    seen: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class WatchdogFacts:
    """What a watchdog that was started for the purpose said and did. `killed_s`: until a canary was dead."""

    backstops: Mapping[str, str]
    killed_s: float | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Ground:
    """What the sweep stands on.

    `cgroup` is 1, 2, or None where there is no memory controller; `memlock_bytes` is how much memory a process may
    lock, None for any amount; `locked` says that the watchdog could lock its own all the same, as root may.
    """

    cgroup: int | None
    memlock_bytes: int | None
    locked: bool = False


def check_platform(facts: HostFacts, ground: Ground) -> Iterator[Check]:
    """The system, and what of it bounds and protects."""
    named = " ".join(part for part in (facts.system, facts.release, facts.machine, facts.chip) if part)
    if facts.system in ("Linux", "Darwin"):
        yield Check("platform", State.OK, named)
    else:
        yield Check("platform", State.FAIL, named, "wallfinder runs on macOS and Linux")
    if facts.system != "Linux":
        return
    if ground.cgroup is None:
        yield Check("control groups", State.OK, "no memory controller: `worker_memory` is not to be had")
    else:
        yield Check("control groups", State.OK, f"memory controller of version {ground.cgroup}")
    enough = ground.locked or ground.memlock_bytes is None or ground.memlock_bytes >= _MEMLOCK_BYTES
    seen = "no limit" if ground.memlock_bytes is None else f"{ground.memlock_bytes / 1e6:.1f} MB"
    remedy = "" if enough else "raise it (`ulimit -l`): the watchdog locks its memory, about 16 MB, to stay resident"
    yield Check("limit of locked memory", State.OK if enough else State.WARN, seen, remedy)


def check_versions(facts: HostFacts) -> Iterator[Check]:
    """MLX and mlx-lm, without which no worker starts."""
    for name in ("mlx", "mlx-lm"):
        version = facts.versions.get(name)
        if version is None:
            remedy = f"install {name} into the environment that wallfinder runs from"
            yield Check(name, State.FAIL, "is not installed", remedy)
        else:
            yield Check(name, State.OK, version)


def check_memory(facts: HostFacts, host: HostReading) -> Iterator[Check]:
    """Memory that is free now, and swap to be had."""
    total, free = facts.usable_memory_bytes, host.memory_available_bytes
    if host.memory_free_frac is not None:
        free = int(host.memory_free_frac * total)
    if free is not None:
        low = free < LOW_AVAILABLE_FRAC * total
        seen = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB available"
        remedy = "close other programs: what they hold is what the cells do not get" if low else ""
        yield Check("memory", State.WARN if low else State.OK, seen, remedy)
    if facts.swap_total_bytes == 0 and facts.system == "Linux":
        remedy = "fine, or add swap: without it a wall is a kill by the kernel, which is found but not foreseen"
        yield Check("swap", State.WARN, "there is none", remedy)
    elif facts.swap_total_bytes is not None:
        used = (facts.swap_used_bytes or 0) / 1e9
        yield Check("swap", State.OK, f"{used:.2f} of {facts.swap_total_bytes / 1e9:.2f} GB in use")
    if facts.wired_limit_bytes is not None:
        limit = f"{facts.wired_limit_bytes / 1e9:.1f} GB" if facts.wired_limit_bytes else "the system's default"
        yield Check("wired limit", State.OK, limit)


def check_readings(probe: str, compared: Sequence[Compared], names: frozenset[str]) -> Iterator[Check]:
    """Each reading of the probe; those in `names` are refused, which is a failure where no other shows memory."""
    usable = [one.name for one in compared if one.name not in names and one.name in HOST_SIGNS]
    for one in compared:
        ours = f"{one.ours / 1e9:.2f} GB" if one.name.endswith("_bytes") else f"{one.ours:g}"
        seen = f"{ours} ({one.against})"
        if one.name in names:
            remedy = "this reading is not used; please report it, with the system's version"
            yield Check(f"{probe} {one.name}", State.WARN if usable else State.FAIL, f"{seen}: refused", remedy)
        else:
            yield Check(f"{probe} {one.name}", State.OK, seen)
    if not usable:
        yield Check(
            f"{probe} probe", State.FAIL, "no reading of the host's memory can be used", "nothing would be watched"
        )


def check_pressure(facts: HostFacts, host: HostReading) -> Iterator[Check]:
    """Pressure stall information, which some kernels lack."""
    if facts.system != "Linux":
        return
    if host.pressure_stall_total_s is None:
        remedy = "boot with psi=1 if the kernel has it; else swap, available memory and step times have to do"
        yield Check("pressure stall information", State.WARN, "this kernel gives none", remedy)
    else:
        yield Check("pressure stall information", State.OK, "/proc/pressure/memory")


def check_backstops(backstops: Mapping[str, str]) -> Iterator[Check]:
    """Each of the kernel's backstops. Without the timer a worker may outlive everybody."""
    for name, found in backstops.items():
        what_for = _WHAT_FOR.get(name, "")
        if found == VERIFIED:
            yield Check(name, State.OK, f"verified; {what_for}")
        elif name == "interval_timer":
            yield Check(name, State.FAIL, f"{found}; {what_for}", "report it: nothing else would end such a worker")
        else:
            optional = name in ("jetsam_limit", "oom_group") or "this platform" in found
            state = State.OK if optional else State.WARN
            yield Check(name, state, f"{found}; it {what_for}", "" if optional else _REMEDIES.get(name, ""))


def check_watchdog(facts: WatchdogFacts, system: str) -> Iterator[Check]:
    """Whether the watchdog comes up and can kill, and what protects it. `system` is the platform's name."""
    if facts.trouble:
        yield Check("watchdog", State.FAIL, facts.trouble, "nothing is run without it")
        return
    if facts.killed_s is None:
        yield Check("watchdog", State.FAIL, "could not end a canary process", "nothing is run without it")
    else:
        yield Check("watchdog", State.OK, f"ended a canary process in {facts.killed_s * 1e3:.0f} ms")
    for name, found in facts.backstops.items():
        # With all of its memory locked, the part of it is no news.
        if name == "memory_lock_partial" and facts.backstops.get("memory_lock") == VERIFIED:
            continue
        if system == "Darwin" and name in _NOT_ON_A_MAC and found != VERIFIED:
            yield Check(f"watchdog {name}", State.OK, f"not on this platform; {_WHAT_FOR.get(name, '')}")
            continue
        state = State.OK if found == VERIFIED else State.WARN
        remedy = "" if state is State.OK else _REMEDIES.get(name, "")
        yield Check(f"watchdog {name}", state, f"{found}; {_WHAT_FOR.get(name, '')}".rstrip("; "), remedy)

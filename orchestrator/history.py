"""Owns what a journal says, event by event. Pure: reads no file and no clock; ledger.py does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.records import CellRecord, Verdict

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class StartedAttempt:
    """A cell that was started and has no end in the ledger."""

    cell_id: str
    attempt: int
    boot_id: str
    at: str


@dataclass(frozen=True, slots=True)
class SentinelMark:
    """The reference cell measured again: its rate over its first (None: not measured), and whether the host changed."""

    number: int
    cell_id: str
    ratio: float | None
    drifted: bool
    why: str
    at: str


@dataclass(slots=True)
class History:
    """What a journal says, in its own order. Grows as the sweep goes on.

    `records` holds the ended attempts of each cell; those before a `cell.reopened` stay on file but count as
    history only (`reopened` is how many of them). `open` is the attempt that was started and not ended.
    `reference` is the sentinel's cell as it was first measured, `unguarded` the cells completed since it was last
    measured, and `drifted` says that it then was not what it had been. `host` is the machine of the
    first sweep, or that which was accepted in its place, `host_changes` what then was another.
    """

    records: dict[str, list[CellRecord]] = field(default_factory=dict)
    reopened: dict[str, int] = field(default_factory=dict)
    open: dict[str, StartedAttempt] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    started_at: str = ""
    ended_state: str | None = None
    sweeps: int = 0
    plan_digests: set[str] = field(default_factory=set)
    torn: bytes = b""
    last_at: str = ""
    contaminated: bool = False
    reference: CellRecord | None = None
    sentinels: list[SentinelMark] = field(default_factory=list)
    sentinel_attempts: int = 0
    unguarded: list[str] = field(default_factory=list)
    drifted: bool = False
    host: dict[str, Any] = field(default_factory=dict)
    host_changes: list[str] = field(default_factory=list)

    def counting(self, cell_id: str) -> list[CellRecord]:
        """The ended attempts of a cell that still count, oldest first."""
        return self.records.get(cell_id, [])[self.reopened.get(cell_id, 0) :]

    def apply(self, body: dict[str, Any]) -> None:
        """Takes one event in.

        Raises:
            KeyError, TypeError, ValueError: the event lacks something or contradicts an earlier one.
        """
        event = body["event"]
        self.last_at = str(body["at"])
        match event:
            case "sweep.started":
                if body["schema"] != SCHEMA:
                    raise ValueError(f"journal of schema {body['schema']!r}, this version reads {SCHEMA}")
                self.started_at = self.started_at or self.last_at
                self.host = self.host or dict(body.get("host") or {})
                self.ended_state = None
                self.contaminated = False
                self.sweeps += 1
                self.plan_digests |= {str(body["plan_digest"])} if "plan_digest" in body else set()
            case "plan.changed":
                self.plan_digests.add(str(body["plan_digest"]))
            case "sweep.ended":
                self.ended_state = str(body["state"])
            case "cell.started":
                self._start(body)
            case "cell.ended":
                self._end(CellRecord.from_json(body["record"]))
            case "cell.reopened":
                cell_id = str(body["cell_id"])
                self.reopened[cell_id] = len(self.records.get(cell_id, []))
            case "model.resolved":
                self.models[str(body["source"])] = body
            case _:
                self._take_host_event(event, body)

    def _take_host_event(self, event: str, body: dict[str, Any]) -> None:
        match event:
            case "host.contaminated":
                self.contaminated = True
            case "host.changed":
                self.host_changes += [str(change) for change in body["changes"]]
                self.host = dict(body["host"])
            case "sentinel.started":
                self.sentinel_attempts = max(self.sentinel_attempts, int(body["number"]))
            case "sentinel.ended":
                self._take_sentinel(body)
            case _:
                pass  # an event of a later version: kept on file, without meaning here

    def _start(self, body: dict[str, Any]) -> None:
        started = StartedAttempt(str(body["cell_id"]), int(body["attempt"]), str(body["boot_id"]), str(body["at"]))
        self.open[started.cell_id] = started
        self.attempts[started.cell_id] = max(self.attempts.get(started.cell_id, 0), started.attempt)

    def _end(self, record: CellRecord) -> None:
        held = self.records.setdefault(record.cell_id, [])
        if record.attempt and any(earlier.attempt == record.attempt for earlier in held):
            raise ValueError(f"attempt {record.attempt} of {record.cell_id} ends twice")
        held.append(record)
        if record.attempt:
            self.open.pop(record.cell_id, None)
        if record.verdict is Verdict.COMPLETED and not record.partial:
            if self.reference is None and record.valid:
                self.reference = record
            else:
                self.unguarded.append(record.cell_id)

    def _take_sentinel(self, body: dict[str, Any]) -> None:
        ratio = None if body["ratio"] is None else float(body["ratio"])
        mark = SentinelMark(
            int(body["number"]), str(body["cell_id"]), ratio, bool(body["drifted"]), str(body["why"]), str(body["at"])
        )
        self.sentinels.append(mark)
        self.drifted = mark.drifted
        for cell_id in body["doubtful"]:
            held = self.records[str(cell_id)]
            last = max(at for at, record in enumerate(held) if record.verdict is Verdict.COMPLETED)
            held[last] = held[last].doubted("drifted")
        self.unguarded = []

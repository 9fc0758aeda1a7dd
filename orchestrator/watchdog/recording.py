"""Owns the form in which samples leave the watchdog: plain dictionaries without unknowns, and back again.

Does not write files. A sample carries only the decode steps that are new since the one before, so a recording
of n steps holds n of them and not 64 n; `SampleReader` puts the last 64 together again.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from orchestrator.watchdog.sample import HostReading, ProgressReading, Sample, WorkerReading

_RING = 64
_HOST = tuple(f.name for f in dataclasses.fields(HostReading))
_WORKER = tuple(f.name for f in dataclasses.fields(WorkerReading))
_PROGRESS = tuple(f.name for f in dataclasses.fields(ProgressReading) if f.name != "recent_step_s")


def encode_sample(sample: Sample, steps_before: int) -> dict[str, Any]:
    """The sample as plain values; `steps_before` is `total_steps` of the one before it, 0 for the first."""
    body: dict[str, Any] = {
        "monotonic_s": round(sample.monotonic_s, 6),
        "boottime_s": round(sample.boottime_s, 6),
        "late_s": round(sample.late_s, 6),
    }
    for key, reading, names in (("host", sample.host, _HOST), ("worker", sample.worker, _WORKER)):
        if reading is not None:
            body[key] = {n: v for n in names if (v := getattr(reading, n)) is not None}
    progress = sample.progress
    if progress is not None:
        body["progress"] = {n: getattr(progress, n) for n in _PROGRESS}
        new = progress.total_steps - steps_before
        if new > 0:
            body["progress"]["new_step_s"] = list(progress.recent_step_s[-new:])
    return body


class SampleReader:
    """Turns a recording's dictionaries back into samples, in their order; one reader per attempt."""

    def __init__(self) -> None:
        self._steps: tuple[float, ...] = ()

    def decode(self, body: dict[str, Any]) -> Sample:
        """The sample of one dictionary; keys this version does not know are left out.

        Raises:
            KeyError, TypeError: the dictionary is not a sample.
        """
        progress = None
        if (read := body.get("progress")) is not None:
            self._steps = (*self._steps, *read.get("new_step_s", ()))[-_RING:]
            progress = ProgressReading(**{n: read[n] for n in _PROGRESS}, recent_step_s=self._steps)
        host, worker = body.get("host"), body.get("worker")
        return Sample(
            monotonic_s=body["monotonic_s"],
            boottime_s=body["boottime_s"],
            late_s=body["late_s"],
            host=None if host is None else HostReading(**{n: v for n, v in host.items() if n in _HOST}),
            worker=None if worker is None else WorkerReading(**{n: v for n, v in worker.items() if n in _WORKER}),
            progress=progress,
        )

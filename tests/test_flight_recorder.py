"""Tests of the recording on its way to the disk, and of its last lines when the orchestrator is gone."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from in_flight import until_three
from sweeps import Desk, desk, wait_until

from orchestrator import flight_recorder
from orchestrator.flight_recorder import FlightRecorder
from orchestrator.watchdog.last_samples import append_last_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def sample(at_s: float) -> dict[str, Any]:
    return {"monotonic_s": at_s, "boottime_s": at_s, "late_s": 0.0, "host": {"swap_used_bytes": 1}, "worker": {}}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_lines_come_out_in_order(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "samples.jsonl")
    recorder.event("watch", 1.0, observe=False)
    recorder.samples([sample(1.1), sample(1.2)])
    recorder.event("rung", 1.3, name="flag")
    recorder.close()

    assert lines_of(tmp_path / "samples.jsonl") == [
        {"event": "watch", "at_s": 1.0, "observe": False},
        sample(1.1),
        sample(1.2),
        {"event": "rung", "at_s": 1.3, "name": "flag"},
    ]


def test_a_long_recording_stays_bounded_and_its_newest_samples_whole(tmp_path: Path) -> None:
    path, cap = tmp_path / "samples.jsonl", 200_000
    recorder = FlightRecorder(path, cap)
    recorder.event("watch", 0.0)
    for batch in range(4000):
        recorder.samples([sample(batch + part / 5) for part in range(5)])
    recorder.close()
    lines = lines_of(path)
    times = [line["monotonic_s"] for line in lines if "event" not in line]

    assert path.stat().st_size < 1.3 * cap
    assert lines[0]["event"] == "watch"
    assert times[-600:] == [4000 - (600 - n) / 5 for n in range(600)]
    assert times == sorted(times)
    assert sum(line.get("every", 1) for line in lines if "event" not in line) == 20_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["samples.jsonl"]


def test_whoever_watches_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = FlightRecorder(tmp_path / "samples.jsonl")
    opened = threading.Event()
    append = flight_recorder.AppendedLines.append

    def stuck(self: flight_recorder.AppendedLines, line: bytes, *, sync: bool = True) -> None:
        opened.wait(60)
        append(self, line, sync=sync)

    monkeypatch.setattr(flight_recorder.AppendedLines, "append", stuck)
    for n in range(1000):
        recorder.samples([sample(n)])
    assert lines_of(tmp_path / "samples.jsonl") == []
    opened.set()
    recorder.close()

    assert len(lines_of(tmp_path / "samples.jsonl")) == 1000


def test_a_file_that_was_moved_away_costs_samples_only(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "samples.jsonl")
    (tmp_path / "samples.jsonl").rename(tmp_path / "elsewhere")
    recorder.samples([sample(1), sample(2)])
    recorder.close()

    assert recorder.lost == 2
    assert not (tmp_path / "samples.jsonl").exists()


def test_last_samples_go_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    held = [sample(1), sample(2), {"event": "acted", "at_s": 2.5}]
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in held) + b'{"monotonic_s": 3, "boo')

    assert append_last_samples(str(path), [sample(n) for n in (1, 2, 3, 4)], 4.5)
    assert lines_of(path) == [*held, sample(3), sample(4), {"event": "orchestrator_gone", "at_s": 4.5}]


def test_last_samples_make_no_new_file(tmp_path: Path) -> None:
    assert not append_last_samples(str(tmp_path / "samples.jsonl"), [sample(1)], 1.0)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as held:
        yield held


@pytest.mark.skipif(sys.platform != "linux", reason="finds the watchdog by its parent in /proc")
def test_the_last_seconds_of_a_killed_orchestrator_are_on_disk(night: Desk) -> None:
    plan = night.plan(batches=[1], faults={"*": "hang"}, watchdog={"stall": {"soft": "60s", "hard": "99s"}})
    sweep = night.start("run", plan, "-o", night.runs)
    path = night.runs / "night" / "cells" / "c00064-b001" / "attempt-1" / "samples.jsonl"
    wait_until(lambda: path.exists() and len(lines_of(path)) > 20)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait()
    wait_until(lambda: b"orchestrator_gone" in path.read_bytes())
    lines = lines_of(path)
    times = [line["monotonic_s"] for line in lines if "event" not in line]

    assert lines[0]["event"] == "watch"
    assert lines[-1]["event"] == "orchestrator_gone"
    assert lines[-1]["at_s"] - times[-1] < 2.0
    assert times == sorted(set(times))


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes by their environment")
@pytest.mark.parametrize("who", ["worker", "watchdog"])
def test_the_last_seconds_of_a_killed_process_are_on_disk(night: Desk, who: str) -> None:
    patient = {"stall": {"soft": "60s", "hard": "99s"}}
    plan = night.plan(batches=[1], faults={"*#1": "hang"}, watchdog=patient, retries={"crashed": 1, "failed": 0})
    sweep = night.start("run", plan, "-o", night.runs)
    path = night.runs / "night" / "cells" / "c00064-b001" / "attempt-1" / "samples.jsonl"
    wait_until(lambda: path.exists() and len(lines_of(path)) > 20)
    killed_s = time.monotonic()
    until_three(sweep)[who].kill()
    sweep.communicate(timeout=60)
    times = [line["monotonic_s"] for line in lines_of(path) if "event" not in line]

    assert sweep.returncode == 0
    assert killed_s - 1.5 < times[-1] < killed_s + 5.0
    assert night.verdicts() == {"c00064-b001": ("completed", None)}

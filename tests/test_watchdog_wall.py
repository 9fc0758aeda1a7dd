"""Tests of the watchdog at a real wall: a process that touches more than its bound, over a real swap file."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from watchdog_harness import Harness

from bench.real_wall import NoWallError, swap_file
from orchestrator.cgroup import WorkerCgroup
from orchestrator.watchdog import wire
from orchestrator.watchdog.limits import Limits
from orchestrator.watchdog.recording import SampleReader

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.wall, pytest.mark.slow]

MIB = 1 << 20
BOUND = 100 * MIB


@pytest.fixture
def group() -> Iterator[WorkerCgroup]:
    try:
        with swap_file(1024 * MIB):
            made = WorkerCgroup.create(BOUND, f"{os.getpid()}-wall")
            try:
                yield made
            finally:
                assert made.remove()
    except NoWallError as reason:
        pytest.skip(str(reason))


def run(dog: Harness, group: WorkerCgroup, megabytes: int, limits: Limits) -> tuple[wire.Released, float]:
    """Plays a worker of that size in the group; what was released, and how long it lived."""
    dog.hear(wire.Ready)
    worker = dog.start("swell", str(megabytes))
    group.add(worker.pid)
    dog.watch(worker, limits, group.path)
    assert worker.stdin is not None
    worker.stdin.write(b"go\n")
    worker.stdin.flush()
    began_s = time.monotonic()
    if megabytes * MIB < BOUND:
        while dog.page.read().total_steps < 100:  # type: ignore[union-attr] - it was laid
            dog.hear(wire.Samples)
        dog.say(wire.StopWorker(dog.serial, "interrupted"))
    released = dog.release(worker)
    return released, time.monotonic() - began_s


def test_worker_over_its_bound_hits_the_wall(group: WorkerCgroup, capsys: pytest.CaptureFixture[str]) -> None:
    with Harness() as dog:
        released, took_s = run(dog, group, 200, Limits(memory_bytes=BOUND, expected_step_s=0.05))
        reader = SampleReader()
        samples = [reader.decode(body) for body in dog.samples()]
    swapping = next(s.monotonic_s for s in samples if s.worker and (s.worker.swapped_bytes or 0) > 5 * MIB)
    acted = released.rungs[0][1]
    assert isinstance(acted, float)

    with capsys.disabled():
        figures = {k: released.evidence.get(k) for k in ("rule", "signals", "step_inflation", "swap_growth_bytes")}
        print(f"\nwall: acted {acted - swapping:.1f} s after the first swap, dead after {took_s:.1f} s")
        print(figures)
    assert released.cause in ("swap_growth", "footprint")
    assert "swap_growth" in released.memory_evidence
    assert released.swap_growth_bytes is not None
    assert released.swap_growth_bytes > 8 * BOUND // 100
    assert not released.unkillable


def test_worker_within_its_bound_is_let_alone(group: WorkerCgroup) -> None:
    with Harness() as dog:
        released, _ = run(dog, group, 50, Limits(memory_bytes=BOUND, expected_step_s=0.05))

    assert released.cause == "interrupted"
    assert released.memory_evidence == {}
    assert released.swap_growth_bytes == 0

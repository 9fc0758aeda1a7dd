"""The telemetry page: what one process writes another one reads, whenever it looks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_driver import ROOT

from worker import telemetry
from worker.telemetry import PAGE_BYTES, RING_STEPS, Phase, TelemetryPage, create_page_fd

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def fd() -> Iterator[int]:
    made = create_page_fd()
    yield made
    os.close(made)


def test_a_page_that_was_never_laid_is_none(fd: int) -> None:
    page = TelemetryPage(fd)
    assert page.read() is None
    assert page.serial == 0


def test_a_page_of_another_version_is_none(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(telemetry, "VERSION", 99)
        TelemetryPage(fd).lay(5)
    assert TelemetryPage(fd).read() is None


def test_laying_clears_what_was_there(fd: int) -> None:
    page = TelemetryPage(fd)
    page.lay(1)
    page.open_as_worker()
    page.step(5)
    page.request_stop()
    page.lay(2)
    seen = page.read()
    assert seen is not None
    assert (seen.serial, seen.pid, seen.total_steps, seen.stop_requested) == (2, 0, 0, False)
    assert seen.recent_step_s == ()


def test_what_the_worker_shows_is_what_is_read(fd: int) -> None:
    worker, watcher = TelemetryPage(fd), TelemetryPage(fd)
    worker.lay(3)
    before = time.monotonic_ns()
    worker.open_as_worker()
    worker.enter(Phase.PREFILL, rep=2, chunks=5)
    worker.mark()
    worker.mark(chunks=7)
    worker.memory(10, 20, 30)
    seen = watcher.read()
    assert seen is not None
    assert seen.active_bytes == 0  # shown with the next progress only
    worker.mark()
    seen = watcher.read()
    assert seen is not None
    assert (seen.serial, seen.pid, seen.phase, seen.rep) == (3, os.getpid(), Phase.PREFILL, 2)
    assert (seen.chunk, seen.chunks, seen.marks) == (3, 7, 5)
    assert (seen.active_bytes, seen.cache_bytes, seen.peak_bytes) == (10, 20, 30)
    assert before <= seen.phase_started_ns <= seen.progress_ns <= time.monotonic_ns()
    worker.enter(Phase.DECODE, rep=2)
    worker.step(1_500_000)
    seen = watcher.read()
    assert seen is not None
    assert (seen.phase.label, seen.step, seen.chunk) == ("decode", 1, 0)
    assert seen.recent_step_s == (0.0015,)


@given(st.lists(st.integers(min_value=0, max_value=2**62), max_size=3 * RING_STEPS))
def test_the_ring_keeps_the_last_steps_in_order(durations: list[int]) -> None:
    fd = create_page_fd()
    try:
        page = TelemetryPage(fd)
        page.lay(1)
        page.enter(Phase.DECODE)
        for duration in durations:
            page.step(duration)
        seen = page.read()
    finally:
        os.close(fd)
    assert seen is not None
    assert seen.total_steps == seen.step == len(durations)
    assert seen.recent_step_s == tuple(duration / 1e9 for duration in durations[-RING_STEPS:])


def test_steps_of_an_attempt_add_up_over_repetitions(fd: int) -> None:
    page = TelemetryPage(fd)
    page.lay(1)
    for rep in range(3):
        page.enter(Phase.DECODE, rep=rep)
        page.step(rep)
        page.step(rep)
    seen = page.read()
    assert seen is not None
    assert (seen.step, seen.total_steps) == (2, 6)


def test_the_stop_flag_crosses_the_page(fd: int) -> None:
    worker, watcher = TelemetryPage(fd), TelemetryPage(fd)
    worker.lay(1)
    assert not worker.stop_requested
    watcher.request_stop()
    assert worker.stop_requested
    worker.step(1)
    seen = watcher.read()
    assert seen is not None
    assert seen.stop_requested


def test_an_unfinished_update_is_still_read(fd: int) -> None:
    """The worker died between the two sequence numbers."""
    page = TelemetryPage(fd)
    page.lay(1)
    page.enter(Phase.DECODE)
    page.step(7)
    os.pwrite(fd, (9).to_bytes(8, "little"), 64)
    seen = TelemetryPage(fd).read()
    assert seen is not None
    assert seen.total_steps == 1


def test_a_phase_nobody_knows_does_not_break_the_reader(fd: int) -> None:
    page = TelemetryPage(fd)
    page.lay(1)
    page.enter(Phase.LOAD)
    os.pwrite(fd, (77).to_bytes(8, "little"), 64 + 2 * 8)
    seen = page.read()
    assert seen is not None
    assert seen.phase is Phase.STARTING


def test_a_reader_in_another_process_never_sees_halves(fd: int) -> None:
    """A busy writer; every reading has as many ring entries as its counter says, each of them whole."""
    code = (
        "import sys\nfrom worker.telemetry import TelemetryPage\npage = TelemetryPage(int(sys.argv[1]))\n"
        "page.open_as_worker()\nprint(flush=True)\n"
        "while not page.stop_requested: page.memory(5, 5, 5); page.step(1_000_000_000)\n"
    )
    page = TelemetryPage(fd)
    page.lay(1)
    command = [sys.executable, "-c", code, str(fd)]
    with subprocess.Popen(command, pass_fds=(fd,), cwd=ROOT, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            last = 0
            for _ in range(20_000):
                seen = page.read()
                assert seen is not None
                assert seen.pid == writer.pid
                assert seen.total_steps >= last
                assert set(seen.recent_step_s) <= {1.0}
                assert len(seen.recent_step_s) == min(seen.total_steps, RING_STEPS)
                last = seen.total_steps
            assert last > 0
        finally:
            page.request_stop()
            writer.wait(30)


def test_the_page_fits_and_is_private(fd: int) -> None:
    assert os.fstat(fd).st_size == PAGE_BYTES
    assert not os.get_inheritable(fd)
    assert telemetry._PROGRESS_AT + telemetry._PROGRESS_WORDS <= telemetry._RING_AT
    assert telemetry._RING_AT + RING_STEPS <= telemetry._STOP_AT < PAGE_BYTES // 8


def test_a_page_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    fd = create_page_fd()
    try:
        page = TelemetryPage(fd)
        page.lay(4)
        assert TelemetryPage(fd).serial == 4
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)

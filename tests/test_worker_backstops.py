"""What bounds a worker that nobody watches: its timer by a clock of its own, its lifeline by real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from worker_driver import ROOT

from worker import backstops
from worker.telemetry import TelemetryPage, create_page_fd

if TYPE_CHECKING:
    from collections.abc import Iterator

STALL_HARD_S = 60.0
BACKSTOP_S = 6 * STALL_HARD_S  # what the orchestrator sends


class Clock:
    """Time that passes when told to, and the kernel's timer against it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s, self.ends_s, self.calls = 1000.0, 0.0, 0
        patch.setattr(backstops.time, "monotonic_ns", lambda: round(self.now_s * 1e9))
        patch.setattr(backstops.signal, "setitimer", self._set)

    def _set(self, which: int, seconds: float) -> None:
        assert which == signal.ITIMER_REAL
        self.ends_s, self.calls = self.now_s + seconds, self.calls + 1

    def pass_(self, seconds: float) -> None:
        """Time passes; the timer must not have gone off by then."""
        self.now_s += seconds
        assert self.now_s < self.ends_s, "the timer went off"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    with monkeypatch.context() as patch:
        yield Clock(patch)


def test_timer_outlasts_the_watchdogs_patience_for_a_first_mark(clock: Clock) -> None:
    timer = backstops.KernelTimer(BACKSTOP_S)
    timer.arm()
    clock.pass_(5 * STALL_HARD_S)
    timer.push_back()
    clock.pass_(5 * STALL_HARD_S)


def test_timer_outlasts_eight_of_the_slowest_marks(clock: Clock) -> None:
    """Chunks that grow dearer with depth, each as slow as the watchdog allows after the one before."""
    timer = backstops.KernelTimer(BACKSTOP_S)
    timer.arm()
    slowest_s = 0.0
    for _ in range(5):
        slowest_s = max(STALL_HARD_S, 7.99 * slowest_s)
        clock.pass_(slowest_s)
        timer.push_back()
    for _ in range(100):  # quick ones do not take back what was learnt
        clock.pass_(0.5)
        timer.push_back()
    clock.pass_(7.99 * slowest_s)


def test_timer_of_quick_marks_is_the_orders(clock: Clock) -> None:
    timer = backstops.KernelTimer(BACKSTOP_S)
    timer.arm()
    for _ in range(50):
        clock.pass_(2.0)
        timer.push_back()

    assert clock.ends_s == clock.now_s + BACKSTOP_S


def test_timer_costs_one_system_call_a_second(clock: Clock) -> None:
    timer = backstops.KernelTimer(BACKSTOP_S)
    timer.arm()
    for _ in range(1000):
        clock.pass_(0.01)
        timer.push_back()

    assert clock.calls <= 11


SLOW_ONCE = """
import time
from worker.backstops import KernelTimer
timer = KernelTimer(1.5)
timer.arm()
time.sleep(0.5)
timer.push_back()
time.sleep(2.0)
print("alive", flush=True)
time.sleep(3600)
"""


def test_the_kernel_holds_to_the_slowest_mark() -> None:
    """A mark of 0.5 s makes six seconds of 1.5; then it ends the process all the same."""
    done = subprocess.run([sys.executable, "-c", SLOW_ONCE], cwd=ROOT, capture_output=True, timeout=120, check=False)

    assert done.stdout == b"alive\n"
    assert done.returncode == -signal.SIGALRM


HELD = """
import sys, time
from worker import backstops
from worker.telemetry import TelemetryPage
page = TelemetryPage(int(sys.argv[1]))
backstops.hold_lifeline(int(sys.argv[2]), page.request_stop, float(sys.argv[3]))
print("held", flush=True)
while sys.argv[4] == "deaf" or not page.stop_requested:
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("grace_s", "manners", "status", "asked"),
    [
        (60.0, "heeds", 0, True),
        (0.3, "deaf", -signal.SIGKILL, True),
        (0.0, "heeds", -signal.SIGKILL, False),
    ],
)
def test_end_of_the_lifeline(grace_s: float, manners: str, status: int, asked: bool) -> None:
    page_fd = create_page_fd()
    lifeline, ours = os.pipe()
    try:
        page = TelemetryPage(page_fd)
        page.lay(1)
        command = [sys.executable, "-c", HELD, str(page_fd), str(lifeline), str(grace_s), manners]
        with subprocess.Popen(
            command, pass_fds=(page_fd, lifeline), cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
        ) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"held\n"
            os.close(ours)
            ours = -1
            try:
                assert worker.wait(30) == status
            finally:
                worker.kill()
        assert page.stop_requested == asked
    finally:
        for fd in (page_fd, lifeline, ours):
            if fd >= 0:
                os.close(fd)


def test_only_a_mac_waits_for_a_clean_end() -> None:
    assert backstops.lifeline_grace_s("linux") == 0.0
    assert 0.0 < backstops.lifeline_grace_s("darwin") <= 10.0

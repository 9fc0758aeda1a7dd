"""Tests of the notice of a death, by real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from watchdog_harness import wait_until

from orchestrator.watchdog.exit_notice import ExitNotice


def test_death_is_told_and_nobody_is_reaped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        notice = ExitNotice(process.pid)
        assert not notice.died()
        process.kill()
        wait_until(notice.died)
        notice.close()

        again = ExitNotice(process.pid)  # a zombie by now
        wait_until(again.died)
        again.close()
        assert process.returncode is None
        assert os.waitpid(process.pid, os.WNOHANG)[0] == process.pid
        process.returncode = 0  # it was reaped here, behind the back of `subprocess`


def test_process_that_was_reaped_before_is_dead() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    notice = ExitNotice(process.pid)

    assert notice.died()
    notice.close()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux's")
def test_linux_without_pidfd_asks_for_its_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise PermissionError(1, "a system call filter")

    monkeypatch.setattr(os, "pidfd_open", refused)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        notice = ExitNotice(process.pid)
        assert notice.fd is None
        assert not notice.died()
        process.kill()
        wait_until(notice.died)
        notice.close()


def test_closing_twice_is_no_error() -> None:
    notice = ExitNotice(os.getpid())
    notice.close()
    notice.close()

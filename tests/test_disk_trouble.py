"""A disk that fills up or turns read-only under a sweep: the ledger stays readable, nothing is left, it goes on later.

A cell that completes on a full disk is in test_cut_off.py, a run directory that is read-only at the start in
test_scarce.py.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from in_flight import elders, phase_of, until_gone, until_standing, until_three
from small_disk import ext4, fill, take_every_inode, tmpfs
from sweeps import Desk, desk, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="mounts small file systems"),
]
FIRST, SECOND = "c00064-b001", "c00064-b002"
BOTH_COMPLETED = {FIRST: ("completed", None), SECOND: ("completed", None)}
HEALTHY = {"batches": [1, 2], "gen_tokens": 2500, "reps": 1, "warmup": 0}


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as held:
        yield held


def start(at: Desk, **keys: Any) -> subprocess.Popen[str]:
    return at.start("run", at.plan(**keys), "-o", at.runs)


def ended(at: Desk) -> list[tuple[str, int, str, str | None]]:
    """The ended attempts in the journal, of which every line has to parse."""
    records = [event["record"] for event in at.journal() if event["event"] == "cell.ended"]
    return [(r["cell_id"], r["attempt"], r["verdict"], r["cause"]) for r in records]


def told(at: Desk, sweep: subprocess.Popen[str], code: int = 3) -> str:
    """What a sweep said at its end, which came with this code and left nobody behind."""
    _, err = sweep.communicate(timeout=120)
    until_gone(at, sweep)
    assert sweep.returncode == code, err
    assert "Traceback" not in err
    return err


def test_a_worker_that_is_killed_on_a_full_disk_is_recorded_and_tried_again_with_room(night: Desk) -> None:
    with tmpfs(night.runs):
        sweep = start(night, batches=[1, 2], faults={f"{FIRST}#1": "hang:deaf"}, retries={"crashed": 1, "failed": 0})
        until_standing(night, sweep, FIRST, "decode")
        filler = fill(night.runs)
        until_three(sweep)["worker"].kill()
        assert "MB free on the disk" in told(night, sweep)
        assert ended(night) == [(FIRST, 1, "crashed", "killed")]

        filler.unlink()
        assert night.resume().returncode == 0
        assert night.verdicts() == BOTH_COMPLETED


def test_a_sweep_that_is_stopped_on_a_full_disk_records_the_cell_it_broke_off(night: Desk) -> None:
    with tmpfs(night.runs):
        sweep = start(night, batches=[1, 2], faults={f"{FIRST}#1": "hang:polite"})
        until_standing(night, sweep, FIRST, "decode")
        filler = fill(night.runs)
        sweep.send_signal(signal.SIGTERM)
        told(night, sweep, 143)
        assert ended(night) == [(FIRST, 1, "interrupted", "interrupted")]

        filler.unlink()
        assert night.resume().returncode == 0
        assert night.verdicts() == BOTH_COMPLETED


def test_a_sweep_that_is_killed_on_a_full_disk_is_resumed_where_it_was(night: Desk) -> None:
    """The reserve is left behind, and belongs to the next sweep."""
    with tmpfs(night.runs):
        sweep = start(night, batches=[1, 2], faults={f"{FIRST}#1": "hang:deaf"})
        until_standing(night, sweep, FIRST, "decode")
        filler = fill(night.runs)
        elders(sweep)["orchestrator"].kill()
        until_gone(night, sweep)
        refused = night.resume()
        assert refused.returncode == 3, refused.stderr
        assert "Traceback" not in refused.stderr

        filler.unlink()
        assert night.resume().returncode == 0
        assert night.verdicts() == BOTH_COMPLETED
        assert ended(night)[0] == (FIRST, 1, "interrupted", "orchestrator_died")


def test_no_name_for_another_file_stops_before_the_next_cell(night: Desk) -> None:
    """Room there is, but no inode."""
    with tmpfs(night.runs, "size=100m,nr_inodes=100"):
        sweep = start(night, **HEALTHY)
        wait_until(lambda: phase_of(night, FIRST) == "decode")
        taken = take_every_inode(night.runs)
        assert f"{SECOND}/attempt-1: cannot be made: No space left on device" in told(night, sweep)
        assert ended(night) == [(FIRST, 1, "completed", None)]

        for path in taken:
            path.unlink()
        assert night.resume().returncode == 0
        assert night.verdicts() == BOTH_COMPLETED


def test_a_worker_whose_output_fills_the_disk_says_so_with_its_last_message(night: Desk) -> None:
    """Its log takes no traceback any more; the message on the pipe tells. The flood itself is cut back at once."""
    with tmpfs(night.runs):
        sweep = start(night, batches=[1, 2], faults={f"{FIRST}#1": "flood:300"})
        assert "--retry failed" in told(night, sweep)
        assert ended(night) == [(FIRST, 1, "failed", "disk_full")]
        log = night.runs / "night" / "cells" / FIRST / "attempt-1" / "worker.log"
        assert log.stat().st_size < 3_000_000

        assert night.resume("night", "--retry", "failed").returncode == 0
        assert night.verdicts() == BOTH_COMPLETED


def test_a_disk_that_turns_read_only_in_the_middle_of_a_cell_ends_the_sweep_with_a_word(night: Desk) -> None:
    with ext4(night.runs) as disk:
        sweep = start(night, **HEALTHY)
        wait_until(lambda: phase_of(night, FIRST) == "decode")
        disk.abort()
        err = told(night, sweep)
        assert f"{night.runs}/night/journal.jsonl: cannot be written: Read-only file system" in err
        assert "Mend that disk" in err
        assert night.journal()[-1]["event"] == "cell.started", "what is there is whole"
        assert night.status()["state"] == "cut_off"
        refused = night.resume()
        assert refused.returncode in (2, 3)
        assert "Read-only file system" in refused.stderr

        wait_until(disk.unmount)
        assert disk.mount()
        done = night.resume()
        assert done.returncode == 0, done.stderr
        assert night.verdicts() == BOTH_COMPLETED
        assert ended(night)[0] == (FIRST, 1, "interrupted", "orchestrator_died")


def test_a_worker_that_hangs_on_a_read_only_disk_is_ended_all_the_same(night: Desk) -> None:
    with ext4(night.runs) as disk:
        strict = {"stall": {"soft": "1s", "hard": "2s"}}
        sweep = start(night, batches=[1, 2], faults={f"{FIRST}#1": "hang_gil:deaf"}, watchdog=strict)
        until_standing(night, sweep, FIRST, "decode")
        disk.abort()
        assert "journal.jsonl: cannot be written: Read-only file system" in told(night, sweep)

        wait_until(disk.unmount)
        assert disk.mount()
        assert night.resume().returncode == 0
        assert night.verdicts() == BOTH_COMPLETED

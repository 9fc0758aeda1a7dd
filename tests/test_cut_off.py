"""A sweep that is cut off anywhere goes on where it was: nothing lost, nothing twice, nobody left behind."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from sweeps import Desk, desk, wait_until

REPOSITORY = Path(__file__).parent.parent


def until_in_flight(at: Desk, process: subprocess.Popen[str], events: int = 1) -> None:
    """Waits until the journal has so many started cells."""

    def started() -> bool:
        assert process.poll() is None, process.communicate()
        try:
            return sum(e["event"] == "cell.started" for e in at.journal()) >= events
        except (OSError, AssertionError):
            return False

    wait_until(started)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_20_random_moments_every_cell_is_there_once(tmp_path: Path) -> None:
    """SIGKILL of the orchestrator of a real sweep, twenty times while it lives; then it is let through."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    moments = random.Random(seed)
    plan = REPOSITORY / "configs" / "smoke.yaml"
    with desk(tmp_path) as at:
        kills, names = 0, ["sweep-0"]
        while kills < 20:
            process = at.start("run", plan, "-o", at.runs, "--name", names[-1])
            try:
                process.wait(timeout=moments.uniform(0.05, 4.0))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
            else:
                names.append(f"sweep-{len(names)}")  # complete before it could be killed: the next kills hit another
            process.communicate()
            wait_until(lambda: not at.left_behind(), limit_s=5.0)
            if (at.runs / names[-1]).exists():
                assert at.status(names[-1])["state"] in ("cut_off", "complete")
        cut_off = 0
        for name in names:
            assert at.run(plan, "--name", name).returncode == 0
            cells = at.status(name)["cells"]
            assert len({cell["cell_id"] for cell in cells}) == len(cells) == 6
            assert {cell["verdict"] for cell in cells} == {"completed"}
            ended = [e["record"] for e in at.journal(name) if e["event"] == "cell.ended"]
            completed = [record["cell_id"] for record in ended if record["verdict"] == "completed"]
            assert sorted(completed) == sorted(cell["cell_id"] for cell in cells), "no cell was measured twice"
            cut_off += sum(record["cause"] == "orchestrator_died" for record in ended)
        print(f"{kills} kills, {cut_off} of them while a cell ran, {len(names)} sweeps")
        assert cut_off >= 5
        assert sorted(path.name for path in at.runs.iterdir()) == sorted(names)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_asked_to_stop_once_the_cell_is_recorded_and_resume_goes_on(
    tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(batches=[1, 2], faults={"c00064-b001#1": "hang:polite"})
        process = at.start("run", plan, "-o", at.runs)
        until_in_flight(at, process)
        process.send_signal(signum)
        _, err = process.communicate(timeout=60)
        assert process.returncode == code, err
        ended = [e["record"] for e in at.journal() if e["event"] == "cell.ended"]
        assert [(r["verdict"], r["cause"]) for r in ended] == [("interrupted", "interrupted")]
        assert at.status()["state"] == "stopped"
        assert at.status()["cells"][0]["verdict"] is None
        assert at.resume().returncode == 0
        assert at.verdicts() == {"c00064-b001": ("completed", None), "c00064-b002": ("completed", None)}


def test_asked_twice_it_stops_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        process = at.start("run", at.plan(batches=[1, 2], faults={"c00064-b002#1": "hang_gil:deaf"}), "-o", at.runs)
        until_in_flight(at, process, 2)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        while process.poll() is None and time.monotonic() - began < 60:
            time.sleep(0.1)  # two signals that arrive together are one: ask again
            process.send_signal(signal.SIGINT)
        assert process.returncode == 130, process.communicate()
        assert [e["record"]["verdict"] for e in at.journal() if e["event"] == "cell.ended"] == [
            "completed",
            "interrupted",
        ]


def test_a_lost_watchdog_costs_an_attempt_and_not_the_sweep(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(
            batches=[1],
            faults={"c00064-b001#1": "hang:deaf"},
            watchdog={"stall": {"soft": "90s", "hard": "100s"}},
        )
        process = at.start("run", plan, "-o", at.runs)
        until_in_flight(at, process)
        wait_until(lambda: watchdogs_of(at))
        for watchdog in watchdogs_of(at):
            watchdog.kill()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        ended = [e["record"] for e in at.journal() if e["event"] == "cell.ended"]
        assert [(r["attempt"], r["verdict"], r["cause"]) for r in ended] == [
            (1, "interrupted", "watchdog_died"),
            (2, "completed", None),
        ]


def test_a_second_sweep_on_the_same_run_is_refused(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(batches=[1], faults={"*": "hang:polite"})
        process = at.start("run", plan, "-o", at.runs)
        until_in_flight(at, process)
        for refused in (at.run(plan), at.resume()):
            assert refused.returncode == 2
            assert f"pid {process.pid} since 20" in refused.stderr
        assert at.status()["state"] == "running"
        process.send_signal(signal.SIGINT)
        process.communicate()


def test_a_complete_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(batches=[1])
        assert at.run(plan).returncode == 0
        before = [e for e in at.journal() if e["event"].startswith("cell.")]
        assert at.run(plan).returncode == 0
        assert [e for e in at.journal() if e["event"].startswith("cell.")] == before
        assert at.status()["state"] == "complete"


def test_a_changed_plan_is_refused_with_the_difference(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        assert at.run(at.plan(batches=[1])).returncode == 0
        refused = at.run(at.plan(batches=[1], gen_tokens=9), "--extend")
        assert refused.returncode == 2
        assert "gen_tokens" in refused.stderr
        assert "8" in refused.stderr
        assert "9" in refused.stderr
        assert "--name" in refused.stderr


def test_added_cells_are_refused_until_they_are_asked_for(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        assert at.run(at.plan(batches=[1])).returncode == 0
        more = at.plan(batches=[1, 2], contexts=[64, 128])
        refused = at.run(more)
        assert refused.returncode == 2
        assert "--extend" in refused.stderr
        assert at.run(more, "--extend").returncode == 0
        assert len(at.verdicts()) == 4
        attempts = [e["cell_id"] for e in at.journal() if e["event"] == "cell.started"]
        assert sorted(attempts) == sorted(at.verdicts()), "the first cell was not run again"


def test_failed_cells_run_again_when_asked(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        assert at.run(at.plan(batches=[1, 2], faults={"c00064-b001#1": "nonsense"})).returncode == 1
        assert at.resume("night", "--retry", "crashed").returncode == 1
        assert at.resume("night", "--retry", "failed").returncode == 0
        assert [cell["attempts"] for cell in at.status()["cells"]] == [2, 1]


def test_a_cell_in_flight_when_the_machine_went_down_is_an_answer(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        process = at.start(
            "run",
            at.plan(batches=[1, 2], after_wall="skip_dominated", faults={"*": "hang:polite"}),
            "-o",
            at.runs,
        )
        until_in_flight(at, process)
        process.kill()
        process.communicate()
        journal = at.runs / "night" / "journal.jsonl"
        boot = next(e["boot_id"] for e in at.journal() if e["event"] == "cell.started")
        journal.write_bytes(journal.read_bytes().replace(boot.encode(), b"an-earlier-boot"))
        assert at.resume().returncode == 0
        assert at.verdicts() == {"c00064-b001": ("host_died", "reboot"), "c00064-b002": ("skipped", None)}


def test_the_deadline_stops_starting_cells(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(batches=[1, 2], faults={"c00064-b001": "hang:polite"}, deadline="1s", cell_time_limit="3s")
        done = at.run(plan)
        assert done.returncode == 124, done.stderr
        assert at.verdicts() == {"c00064-b001": ("timed_out", "time_limit"), "c00064-b002": (None, None)}
        assert "resume" in done.stderr
        assert at.status()["state"] == "stopped"


@pytest.mark.slow
def test_a_stopped_watchdog_is_replaced_and_nothing_runs_unwatched(tmp_path: Path) -> None:
    """SIGSTOP: it lives, and says nothing. A minute of silence is the limit."""
    with desk(tmp_path) as at:
        stall = {"stall": {"soft": "300s", "hard": "400s"}}
        plan = at.plan(batches=[1], faults={"c00064-b001#1": "hang:deaf"}, watchdog=stall)
        process = at.start("run", plan, "-o", at.runs)
        until_in_flight(at, process)
        wait_until(lambda: watchdogs_of(at))
        stopped = watchdogs_of(at)
        for watchdog in stopped:
            watchdog.suspend()
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        causes = [(e["record"]["verdict"], e["record"]["cause"]) for e in at.journal() if e["event"] == "cell.ended"]
        assert causes == [("interrupted", "watchdog_died"), ("completed", None)]
        assert not any(watchdog.is_running() for watchdog in stopped)


def test_a_closed_terminal_is_a_stop_in_order(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(batches=[1, 2], faults={"c00064-b001#1": "hang:polite"})
        ours, theirs = pty.openpty()
        process = at.start("run", plan, "-o", at.runs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        until_in_flight(at, process)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=60) == 143
        assert at.status()["state"] == "stopped"
        assert at.resume().returncode == 0


def watchdogs_of(at: Desk) -> list[psutil.Process]:
    found = []
    for process in at.left_behind():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "orchestrator.watchdog" in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_what_does_not_touch_a_measurement_may_change(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        assert at.run(at.plan(batches=[1])).returncode == 0
        assert at.run(at.plan(batches=[1], deadline="8h", order="safest_first")).returncode == 0
        assert "deadline: 8h" in (at.runs / "night" / "plan.yaml").read_text()


@pytest.mark.parametrize("lost", ["runs/night", "runs/night/journal.jsonl", "runs/night/plan.yaml"])
def test_a_run_directory_that_goes_away_ends_the_sweep(tmp_path: Path, lost: str) -> None:
    with desk(tmp_path) as at:
        plan = at.plan(batches=[1, 2], faults={"c00064-b001": "slow@warmup:100"})
        process = at.start("run", plan, "-o", at.runs)
        until_in_flight(at, process)
        (tmp_path / lost).rename(tmp_path / "elsewhere")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 3, err
        assert "Traceback" not in err
        (tmp_path / "elsewhere").rename(tmp_path / lost)
        assert at.resume().returncode == 0
        assert at.verdicts() == {"c00064-b001": ("completed", None), "c00064-b002": ("completed", None)}


def test_a_frozen_plan_that_was_edited_is_refused(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        assert at.run(at.plan(batches=[1])).returncode == 0
        frozen = at.runs / "night" / "plan.yaml"
        text = frozen.read_text()
        frozen.write_text(text.replace("gen_tokens: 8", "gen_tokens: 9"))
        refused = at.resume()
        assert refused.returncode == 2
        assert "was edited since the sweep began" in refused.stderr
        frozen.write_text(text)
        assert at.resume().returncode == 0


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounting a small disk needs root on Linux")
def test_on_a_full_disk_the_cell_in_flight_is_kept_and_no_other_is_started(tmp_path: Path) -> None:
    disk = tmp_path / "runs"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=70m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        with desk(tmp_path) as at:
            plan = at.plan(batches=[1, 2], gen_tokens=3000, faults={"c00064-b001": "slow@warmup:2"})
            process = at.start("run", plan, "-o", at.runs)
            until_in_flight(at, process)
            with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(65536))
            _, err = process.communicate(timeout=100)
            assert process.returncode == 3, err
            (disk / "filler").unlink()
            ended = [e["record"] for e in at.journal() if e["event"] == "cell.ended"]
            assert [(r["cell_id"], r["verdict"]) for r in ended] == [("c00064-b001", "completed")]
            assert at.resume().returncode == 0
            assert [cell["attempts"] for cell in at.status()["cells"]] == [1, 1]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)

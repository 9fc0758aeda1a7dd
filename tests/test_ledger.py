"""The ledger: whole lines, tolerant of a torn tail, of nothing else; nothing lost, nothing overwritten."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import LedgerError, LedgerUnwritable, RunLocked
from orchestrator.ledger import Ledger, elapsed, replay
from orchestrator.records import CellRecord, Metrics, Verdict
from orchestrator.run_lock import RunLock, is_held

if TYPE_CHECKING:
    from pathlib import Path


def record(cell_id: str = "c00064-b001", attempt: int = 1, verdict: Verdict = Verdict.COMPLETED) -> CellRecord:
    return CellRecord(
        cell_id=cell_id,
        variant=None,
        context=64,
        batch=1,
        attempt=attempt,
        verdict=verdict,
        metrics=Metrics(reps=2, generation_tps=12.5, cache_classes=("KVCache",)),
        rungs=(("flag", 1.5),),
    )


def start(ledger: Ledger, cell_id: str = "c00064-b001", attempt: int = 1) -> None:
    ledger.append("cell.started", cell_id=cell_id, attempt=attempt, boot_id="boot")


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("sweep.started", schema=1)
    start(ledger)
    ledger.append("cell.ended", record=record().to_json())
    start(ledger, "c00064-b002")
    ledger.close()

    history = replay(tmp_path / "journal.jsonl")
    assert history.records == {"c00064-b001": [record()]}
    assert list(history.open) == ["c00064-b002"]
    assert history.attempts == {"c00064-b001": 1, "c00064-b002": 1}
    assert history.ended_state is None


def test_the_time_between_two_stamps_is_in_seconds() -> None:
    assert elapsed("2026-01-01T00:00:00.500Z", "2026-01-01T00:01:01.000Z") == 60.5
    assert elapsed("", "2026-01-01T00:01:01.000Z") is None


def test_an_absent_journal_is_an_empty_history(tmp_path: Path) -> None:
    assert replay(tmp_path / "journal.jsonl").records == {}


@pytest.mark.parametrize("torn", [b'{"event":"cell.st', b"\x00\x00\x00", '{"detail":"\u00e9'.encode()[:-1]])
def test_a_torn_last_line_is_set_aside_and_the_next_line_starts_clean(tmp_path: Path, torn: bytes) -> None:
    journal = tmp_path / "journal.jsonl"
    ledger = Ledger(tmp_path)
    start(ledger)
    ledger.close()
    whole = journal.read_bytes()
    journal.write_bytes(whole + torn)

    assert replay(journal).torn == torn
    ledger = Ledger(tmp_path)
    ledger.append("cell.ended", record=record().to_json())
    ledger.close()

    assert journal.read_bytes().startswith(whole)
    assert replay(journal).records["c00064-b001"] == [record()]
    assert [path.read_bytes() for path in tmp_path.glob("journal.jsonl.torn-*")] == [torn]


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 200_000,
        b'{"event":"cell.started","at":"x","cell_id":"c","attempt":1e999,"boot_id":""}',
        b"nonsense",
        b"[]",
        b'{"at":"x"}',
        b'{"event":"cell.ended","at":"x","record":{}}',
        b"\xff\xfe",
    ],
)
def test_any_other_line_that_does_not_parse_is_an_error_with_its_number(tmp_path: Path, line: bytes) -> None:
    journal = tmp_path / "journal.jsonl"
    content = (
        b'{"event":"sweep.started","at":"x","schema":1}\n'
        + line
        + b'\n{"event":"sweep.ended","at":"x","state":"complete"}\n'
    )
    journal.write_bytes(content)
    with pytest.raises(LedgerError, match=r"journal\.jsonl:2: "):
        Ledger(tmp_path)
    assert journal.read_bytes() == content


def test_an_attempt_that_ends_twice_is_an_error(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("cell.ended", record=record().to_json())
    ledger.close()
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() * 2)
    with pytest.raises(LedgerError, match="ends twice"):
        replay(journal)


def test_events_and_keys_of_a_later_version_are_kept_and_passed_over(tmp_path: Path) -> None:
    body = {"event": "cell.ended", "at": "x", "record": {**record().to_json(), "new_key": 1}}
    lines = [json.dumps({"event": "cell.dreamt", "at": "x"}), json.dumps(body)]
    (tmp_path / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert replay(tmp_path / "journal.jsonl").records["c00064-b001"] == [record()]


def test_a_reopened_cell_counts_from_there_on(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("cell.ended", record=record(verdict=Verdict.FAILED).to_json())
    ledger.append("cell.reopened", cell_id="c00064-b001", verdict="failed")
    assert ledger.history.counting("c00064-b001") == []
    ledger.append("cell.ended", record=record(attempt=2).to_json())
    assert [r.attempt for r in ledger.history.counting("c00064-b001")] == [2]
    assert len(ledger.history.records["c00064-b001"]) == 2
    ledger.close()


def fill_up(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


def end_attempts_until_the_reserve_is_used_up(ledger: Ledger) -> None:
    for attempt in range(1, 2000):
        ledger.append("cell.ended", record=record(attempt=attempt).to_json())


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounting a small disk needs root on Linux")
def test_on_a_full_disk_the_cell_in_flight_still_gets_its_line(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=False).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        ledger = Ledger(mount)
        start(ledger)
        fill_up(mount)
        assert not ledger.disk_full
        with pytest.raises(LedgerUnwritable, match="No space"):
            end_attempts_until_the_reserve_is_used_up(ledger)
        assert ledger.disk_full
        ledger.close()
        held = replay(mount / "journal.jsonl").records["c00064-b001"]
        assert [r.attempt for r in held] == list(range(1, len(held) + 1))
        assert len(held) >= 50
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_the_second_holder_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    with RunLock(tmp_path, "2026-01-01T00:00:00Z"):
        assert is_held(tmp_path)
        with (
            pytest.raises(RunLocked, match=rf"pid {os.getpid()} since 2026-01-01"),
            RunLock(tmp_path, "later"),
        ):
            pass
    assert not is_held(tmp_path)


def test_a_dead_holders_lock_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    script = (
        "import os, sys; from pathlib import Path; from orchestrator.run_lock import RunLock\n"
        "RunLock(Path(sys.argv[1]), 'long ago').__enter__(); os.kill(os.getpid(), 9)"
    )
    dead = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert dead.returncode == -9
    assert b"long ago" in (tmp_path / "lock").read_bytes()
    with RunLock(tmp_path, "now"):
        assert b"now" in (tmp_path / "lock").read_bytes()


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_journal_that_is_no_longer_where_it_was_takes_no_more_lines(tmp_path: Path, how: str) -> None:
    journal = tmp_path / "journal.jsonl"
    ledger = Ledger(tmp_path)
    start(ledger)
    if how == "removed":
        journal.unlink()
    else:
        journal.rename(tmp_path / "elsewhere")
    if how == "replaced":
        journal.write_bytes(b"")
    with pytest.raises(LedgerUnwritable, match=r"journal\.jsonl"):
        ledger.append("cell.ended", record=record().to_json())
    ledger.close()


def test_without_its_note_the_lock_still_holds(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    with RunLock(tmp_path, "now"):
        (tmp_path / "lock").unlink()
        with pytest.raises(RunLocked, match="another process"), RunLock(tmp_path, "later"):
            pass

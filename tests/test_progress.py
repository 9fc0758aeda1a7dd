"""The screens: on a real terminal, on pipes that go away, and in words."""

from __future__ import annotations

import dataclasses
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from report_rows import origin_rows, row, trouble_rows
from rich.console import Console

from orchestrator.progress import (
    CellProgress,
    LiveScreen,
    PlainScreen,
    ended_text,
    open_screen,
    running_text,
    sweep_text,
)
from orchestrator.records import CellRecord, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
RUNNING = CellProgress(
    index=7,
    total=24,
    cell_id="c04096-b016",
    phase="decode",
    rep=2,
    reps=5,
    step=17,
    steps=63,
    step_s=0.165,
    expected_step_s=0.11,
    footprint_bytes=27_300_000_000,
    memory_bytes=51_539_607_552,
    swap_growth_bytes=700_000_000,
    cell_elapsed_s=123.0,
    sweep_elapsed_s=2470.0,
    eta_s=3720.0,
)
LIVE = """
import fcntl, sys, termios, time
sys.path.insert(0, "tests")
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from orchestrator.progress import open_screen
from test_progress import RUNNING
from report_rows import trouble_rows
screen = open_screen(sys.stderr)
try:
    screen.update(RUNNING)
    screen.ended(trouble_rows()[1].record, 7, 24)
    while True:
        time.sleep(0.02)
        screen.update(RUNNING)
except KeyboardInterrupt:
    screen.close()
    screen.close()
    print("closed", type(screen).__name__)
"""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal:
    """A child on a pseudo-terminal of its own; `shown` is all that it wrote."""

    def __init__(self, script: str, columns: int = 100, term: str = "xterm-256color") -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.modes = termios.tcgetattr(slave)
        environment = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES", "NO_COLOR"}}
        self.process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env={**environment, "TERM": term, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        self.slave = slave
        self.shown = b""

    def read_until(self, pattern: bytes, deadline_s: float = 60.0) -> None:
        ends = time.monotonic() + deadline_s
        while not re.search(pattern, self.shown):
            assert time.monotonic() < ends, self.shown
            ready, _, _ = select.select([self.master], [], [], 0.1)
            if ready:
                self.shown += os.read(self.master, 65536)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)


@pytest.fixture
def terminal(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    opened = Terminal(LIVE, **getattr(request, "param", {}))
    try:
        yield opened
    finally:
        opened.close()


def test_ctrl_c_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    terminal.read_until(rb"(?s)about 1 h 02 min left.*crashed: sigsegv")
    os.write(terminal.master, b"\x03")
    terminal.read_until(rb"closed LiveScreen")
    assert terminal.process.wait(60) == 0
    cursor = re.findall(rb"\x1b\[\?25[lh]", terminal.shown)
    assert cursor[-1] == b"\x1b[?25h"
    assert b"\x1b[2K" in terminal.shown  # the live lines were taken away
    assert termios.tcgetattr(terminal.slave) == terminal.modes
    assert b"c00512-b002 crashed: sigsegv" in terminal.shown
    assert b"\x1b[2J" not in terminal.shown  # the crash's own text is harmless


def test_not_even_a_sigkill_leaves_the_cursor_hidden(terminal: Terminal) -> None:
    terminal.read_until(rb"step 17/63")
    terminal.process.send_signal(signal.SIGKILL)
    terminal.process.wait(60)
    assert re.findall(rb"\x1b\[\?25[lh]", terminal.shown)[-1] == b"\x1b[?25h"


@pytest.mark.parametrize("terminal", [{"columns": 12}, {"columns": 40}], indirect=True)
def test_a_narrow_terminal_gets_short_lines(terminal: Terminal) -> None:
    columns = struct.unpack("HHHH", fcntl.ioctl(terminal.slave, termios.TIOCGWINSZ, bytes(8)))[1]
    terminal.read_until(rb"(?s)crashed: sigsegv.*(cell 7.*){3}")
    live = re.findall(rb"(cell 7[^\r\n\x1b]*)\r\n([^\r\n\x1b]*)\r\x1b", terminal.shown)
    assert live
    for lines in live:
        assert max(map(len, lines)) <= columns
        assert lines[1] == b"c04096-b016 decode rep 3/5 step 17/63, 165 ms a step (expected"[:columns]


@pytest.mark.parametrize("terminal", [{"term": "dumb"}], indirect=True)
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(terminal: Terminal) -> None:
    terminal.read_until(rb"crashed: sigsegv")
    os.write(terminal.master, b"\x03")
    terminal.read_until(rb"closed PlainScreen")
    assert b"[7/24] c04096-b016 started\r\n" in terminal.shown
    assert b"\x1b" not in terminal.shown


def test_it_is_drawn_at_most_four_times_a_second() -> None:
    clock, file = Clock(), io.StringIO()
    screen = LiveScreen(Console(file=file, force_terminal=True, width=100, color_system=None), clock)
    for tick in range(200):  # two seconds at 100 Hz
        clock.now = 100.0 + tick / 100
        screen.update(RUNNING)
    screen.close()
    assert file.getvalue().count("cell 7 of 24") == 8 + 1  # rich draws once more as it stops


def test_plain_lines_and_signs_of_life() -> None:
    clock, file = Clock(), io.StringIO()
    screen = PlainScreen(file, clock)
    for second in range(100):
        clock.now = 100.0 + second
        screen.update(RUNNING)
    screen.ended(record_of(origin_rows()[10]), 7, 24)
    screen.update(dataclasses.replace(RUNNING, attempt=2))
    screen.close()
    lines = file.getvalue().splitlines()
    assert lines[0] == "[7/24] c04096-b016 started"
    assert [line.startswith("[7/24] c04096-b016 decode rep 3/5 step 17/63") for line in lines[1:4]] == [True] * 3
    assert lines[4].startswith("[7/24] c04096-b016 completed: 97.2 tok/s, 6.1 per stream, peak 27.3 GB (53 %) in")
    assert lines[5] == "[7/24] c04096-b016 started, attempt 2"
    assert len(lines) == 6


def test_a_stream_that_is_no_terminal_gets_plain_lines() -> None:
    assert isinstance(open_screen(io.StringIO()), PlainScreen)


def test_a_pipe_without_a_reader_is_no_trouble() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as stream:
        for screen in (
            PlainScreen(stream),
            LiveScreen(Console(file=io.StringIO(), force_terminal=True), Clock()),
        ):
            screen.update(RUNNING)
            screen.ended(record_of(trouble_rows()[1]), 1, 1)
            screen.update(RUNNING)
            screen.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # what Python still holds goes nowhere


def test_a_closed_stream_is_no_trouble() -> None:
    stream = io.StringIO()
    live = LiveScreen(Console(file=stream, force_terminal=True), Clock())
    live.update(RUNNING)
    stream.close()
    for screen in (live, open_screen(stream), LiveScreen(Console(file=stream, force_terminal=True), Clock())):
        screen.update(dataclasses.replace(RUNNING, cell_id="other"))
        screen.ended(record_of(trouble_rows()[1]), 1, 1)
        screen.close()
        screen.close()


def test_a_terminal_that_went_away_is_no_trouble() -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        clock = Clock()
        screen = LiveScreen(Console(file=stream, force_terminal=True), clock)
        screen.update(RUNNING)
        os.close(master)  # writes fail with EIO from here on
        for _ in range(3):
            clock.now += 1
            screen.update(RUNNING)
        screen.ended(record_of(trouble_rows()[1]), 1, 1)
        screen.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), slave)  # what Python still holds goes nowhere


def test_a_stream_that_knows_only_ascii() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    PlainScreen(stream).ended(record_of(row(1, 1, variant="größe", tps=1.0)), 1, 1)
    stream.flush()
    assert b"gr\\xf6\\xdfe/c00001-b001 completed" in stream.buffer.getvalue()  # type: ignore[attr-defined]  # BytesIO


def test_words() -> None:
    assert running_text(RUNNING) == (
        "c04096-b016 decode rep 3/5 step 17/63, 165 ms a step (healthy: up to 110 ms), 27.3 GB (53 %), "
        "swap +0.70 GB, 2 min 03 s"
    )
    assert sweep_text(RUNNING) == "41 min 10 s, about 1 h 02 min left"
    bare = CellProgress(index=1, total=1, cell_id="c\x1b[2J")
    assert running_text(bare) == "c\\x1b[2J starting, 0.0 s"
    assert sweep_text(bare) == "0.0 s"


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (row(512, 1, Verdict.SKIPPED, dominated_by="c1"), "[1/2] c00512-b001 skipped: dominated by c1, 40 s"),
        (row(512, 1, Verdict.HOST_DIED, duration_s=0.0), "[1/2] c00512-b001 host_died"),
        (
            row(512, 1, Verdict.HIT_THE_WALL, cause="swap_growth", detail="Swap\ngrew."),
            "[1/2] c00512-b001 hit_the_wall: swap_growth, Swap grew., 40 s",
        ),
        (
            row(512, 2, tps=99.0, peak_gb=10.3, invalid_reasons=("noisy",)),
            (
                "[1/2] c00512-b002 completed: 99.0 tok/s, 49.5 per stream, peak 10.3 GB (20 %) in prefill, "
                "invalid (noisy), 40 s"
            ),
        ),
    ],
)
def test_what_became_of_a_cell_in_words(record: object, text: str) -> None:
    assert ended_text(record_of(record), 1, 2) == text


def record_of(of: object) -> CellRecord:
    record = getattr(of, "record", None)
    assert isinstance(record, CellRecord)
    return record

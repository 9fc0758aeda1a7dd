"""Owns what a person sees on stderr while a sweep runs: a live screen on a terminal, plain lines elsewhere.

Does not gather progress and does not own the result table (report/terminal.py). A screen never raises because
of its stream: where the terminal or the pipe is gone it falls silent, and the sweep goes on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.quantities import amount, duration, printable
from orchestrator.records import Verdict
from orchestrator.report.columns import STYLES, is_invalid, peak_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.records import CellRecord

REFRESH_S = 0.25
HEARTBEAT_S = 30.0
_BAR_WIDTH = 30
_SLOW = 2.0  # a step this many times the expected one is shown in red
# Whatever a write to a terminal or pipe that is gone may raise; ValueError is a stream that was closed.
_GONE = (OSError, ValueError)


@dataclass(frozen=True, slots=True)
class CellProgress:
    """Where the sweep is. `index` counts cells from 1, `rep` from 0; None: not known.

    `memory_bytes` is the memory that counts for the cell, `footprint_bytes` what the worker costs of it.
    `step_s` is the recent step time, `expected_step_s` what warm steps or smaller cells let expect.
    """

    index: int
    total: int
    cell_id: str
    attempt: int = 1
    phase: str = "starting"
    rep: int | None = None
    reps: int | None = None
    step: int | None = None
    steps: int | None = None
    step_s: float | None = None
    expected_step_s: float | None = None
    footprint_bytes: int | None = None
    memory_bytes: int | None = None
    swap_growth_bytes: int | None = None
    cell_elapsed_s: float = 0.0
    sweep_elapsed_s: float = 0.0
    eta_s: float | None = None


class Screen(Protocol):
    """What a sweep shows itself through. `close` may be called twice, and by whoever interrupts."""

    def update(self, progress: CellProgress) -> None:
        """Shows progress; cheap, so it may be called as often as there is news."""

    def ended(self, record: CellRecord, index: int, total: int) -> None:
        """Shows what became of cell `index` of `total`."""

    def close(self) -> None:
        """Leaves the terminal as it was."""


def open_screen(stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> Screen:
    """The screen for this stream: live on a terminal that can move its cursor, else plain lines."""
    try:
        console = _Console(file=stream, highlight=False, markup=False, emoji=False)
        if console.is_terminal and console.is_interactive and not console.is_dumb_terminal:
            return LiveScreen(console, clock)
    except _GONE:
        pass  # PlainScreen will notice, and be silent
    return PlainScreen(stream, clock)


class LiveScreen:
    """Two lines that are drawn over at most four times a second; ended cells scroll away above them.

    The cursor is never left hidden, so not even a SIGKILL spoils the terminal.
    """

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._drawn_s: float | None = None
        self._silent = False
        # Drawn by `update` alone: no thread of rich's, which a signal could find holding a lock.
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def update(self, progress: CellProgress) -> None:
        """Draws, unless it did so a moment ago."""
        now = self._clock()
        if self._silent or (self._drawn_s is not None and now - self._drawn_s < REFRESH_S):
            return
        self._drawn_s = now
        try:
            if not self._live.is_started:
                self._live.start()
                self._console.show_cursor(True)
            self._live.update(self._drawing(progress), refresh=True)
        except _GONE:
            self._silent = True

    def ended(self, record: CellRecord, index: int, total: int) -> None:
        """Prints a line above the live ones."""
        if self._silent:
            return
        style = "yellow" if is_invalid(record) else STYLES[record.verdict]
        try:
            self._console.print(Text(ended_text(record, index, total), style=style), soft_wrap=True)
        except _GONE:
            self._silent = True

    def close(self) -> None:
        """Takes the live lines away."""
        if self._silent or not self._live.is_started:
            return
        try:
            self._live.stop()
        except _GONE:
            self._silent = True

    def _drawing(self, progress: CellProgress) -> Group:
        cell, sweep = f"cell {progress.index} of {progress.total}", sweep_text(progress)
        head: Text | Table = Text(f"{cell}  {sweep}", no_wrap=True, overflow="crop")
        if self._console.width >= 3 * _BAR_WIDTH:
            bar = ProgressBar(total=progress.total, completed=progress.index - 1, width=_BAR_WIDTH)
            head = Table.grid(padding=(0, 2, 0, 0))
            head.add_row(Text(cell), bar, Text(sweep))
        style = "red" if _is_slow(progress) else ""
        return Group(head, Text(running_text(progress), style=style, no_wrap=True, overflow="crop"))


class PlainScreen:
    """A line when a cell starts and one when it ended, and every half minute a sign of life."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._shown: tuple[str, int] | None = None
        self._said_s = clock()
        self._silent = False

    def update(self, progress: CellProgress) -> None:
        """Says that a cell started, or that it still runs."""
        attempt = (progress.cell_id, progress.attempt)
        if attempt != self._shown:
            self._shown = attempt
            again = f", attempt {progress.attempt}" if progress.attempt > 1 else ""
            self._say(f"[{progress.index}/{progress.total}] {printable(progress.cell_id)} started{again}")
        elif self._clock() - self._said_s >= HEARTBEAT_S:
            text = f"{running_text(progress)}; sweep {sweep_text(progress)}"
            self._say(f"[{progress.index}/{progress.total}] {text}")

    def ended(self, record: CellRecord, index: int, total: int) -> None:
        """Says what became of a cell."""
        self._shown = None
        self._say(ended_text(record, index, total))

    def close(self) -> None:
        """Nothing to put back."""

    def _say(self, text: str) -> None:
        if self._silent:
            return
        self._said_s = self._clock()
        try:
            encoding = self._stream.encoding or "utf-8"
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
            self._stream.flush()
        except _GONE:
            self._silent = True


def running_text(progress: CellProgress) -> str:
    """The running cell in one line: where it is, its step time, memory, swap growth and time."""
    return ", ".join(
        part
        for part in (
            f"{printable(progress.cell_id)} {_where(progress)}",
            _steps(progress),
            _memory(progress.footprint_bytes, progress.memory_bytes),
            f"swap +{amount(progress.swap_growth_bytes)}" if progress.swap_growth_bytes else "",
            duration(progress.cell_elapsed_s),
        )
        if part
    )


def sweep_text(progress: CellProgress) -> str:
    """The sweep's own time: `41 min 10 s, about 1 h 02 min left`."""
    left = "" if progress.eta_s is None else f", about {duration(progress.eta_s)} left"
    return f"{duration(progress.sweep_elapsed_s)}{left}"


def ended_text(record: CellRecord, index: int, total: int) -> str:
    """One line about an ended cell: its rates and peak, or why it has none."""
    parts = [f"[{index}/{total}] {printable(record.cell_id)} {record.verdict}"]
    if record.verdict is Verdict.COMPLETED:
        parts += _measured(record)
    elif record.dominated_by:
        parts.append(f"dominated by {printable(record.dominated_by)}")
    else:
        parts += [printable(part) for part in (record.cause, record.detail) if part]
    if record.duration_s:
        parts.append(duration(record.duration_s))
    return f"{parts[0]}: {', '.join(parts[1:])}" if len(parts) > 1 else parts[0]


def _measured(record: CellRecord) -> list[str]:
    metrics = record.metrics
    parts = []
    if metrics.generation_tps is not None and metrics.generation_tps_per_stream is not None:
        parts.append(f"{metrics.generation_tps:,.1f} tok/s, {metrics.generation_tps_per_stream:,.1f} per stream")
    memory = _memory(peak_bytes(record), record.memory_bytes)
    if memory:
        parts.append(f"peak {memory}" + (f" in {metrics.peak_phase}" if metrics.peak_phase else ""))
    if is_invalid(record):
        parts.append(f"invalid ({', '.join(record.invalid_reasons)})")
    return parts


def _where(progress: CellProgress) -> str:
    where = progress.phase
    if progress.phase in {"prefill", "decode"} and progress.rep is not None:
        where += f" rep {progress.rep + 1}" + (f"/{progress.reps}" if progress.reps else "")
    if progress.phase in {"warmup", "decode"} and progress.step is not None:
        where += f" step {progress.step}" + (f"/{progress.steps}" if progress.steps else "")
    return where


def _steps(progress: CellProgress) -> str:
    if progress.step_s is None:
        return ""
    expected = f" (healthy: up to {duration(progress.expected_step_s)})" if progress.expected_step_s else ""
    return f"{duration(progress.step_s)} a step{expected}"


def _memory(count: int | None, of: int | None) -> str:
    if count is None:
        return ""
    return f"{amount(count)} ({count / of * 100:.0f} %)" if of else amount(count)


def _is_slow(progress: CellProgress) -> bool:
    if progress.step_s is None or not progress.expected_step_s:
        return False
    return progress.step_s > _SLOW * progress.expected_step_s


class _Console(Console):
    """A console that says that its pipe is gone; rich's own ends the process there."""

    def on_broken_pipe(self) -> None:
        """Called by rich inside its handler of BrokenPipeError.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError

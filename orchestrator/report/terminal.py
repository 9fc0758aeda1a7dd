"""Owns the result table as a terminal shows it, at any width, with or without colours and beyond ASCII.

Does not read the ledger and does not know what a column holds (columns.py).
"""

from __future__ import annotations

import os
import textwrap
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from orchestrator.quantities import count_of, duration, printable
from orchestrator.records import Verdict
from orchestrator.report.columns import (
    DROP_ORDER,
    STYLES,
    Column,
    Columns,
    evidence_text,
    is_invalid,
    shows_footprint,
    verdict_text,
)
from orchestrator.report.row_lines import RowLines, table_line, table_width
from orchestrator.report.rows import WALLS, CellRow, count_by_verdict
from orchestrator.streams import fall_silent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import ConsoleOptions, RenderResult

    from orchestrator.records import CellRecord
    from orchestrator.report.row_lines import RowLine

_PIPE_WIDTH = 200
_TROUBLE = (Verdict.CRASHED, Verdict.FAILED, Verdict.TIMED_OUT, Verdict.HOST_DIED)
_NAMED_CELLS = 3


class ResultTable:
    """A renderable of rich: a table per variant, what went wrong, and what the sweep found per context."""

    def __init__(self, rows: Sequence[CellRow], elapsed_s: float | None = None, remarks: Sequence[str] = ()) -> None:
        self._remarks = remarks
        self._rows = sorted(rows, key=lambda row: (row.cell.context, row.cell.batch))
        self._variants = list(dict.fromkeys(row.cell.variant for row in rows))
        self._elapsed_s = elapsed_s

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Renders for the width and the encoding that the console has."""
        if not self._rows:
            yield Text("no cells")
            return
        width = options.max_width
        every = Columns(self._rows)
        without = _what_to_leave_out(every, width)
        kept = every.without(without)
        left_out = [c.title for c in every.without() if c.key in without]
        rows = RowLines(console, width, kept)
        of_variant = self._numbers_by_variant()
        blocks: tuple[Iterable[Text | RowLine], ...] = (
            *(self._table(variant, of_variant[variant], kept, rows, options.ascii_only) for variant in self._variants),
            (*_notes(self._rows, without), *_legend(self._rows, left_out)),
            _troubles(self._rows),
            [Text(remark) for remark in self._remarks],
            _findings(self._rows, self._variants),
            [Text(_counts(self._rows, self._elapsed_s), style="bold")],
        )
        for number, block in enumerate(blocks):
            lines = list(block)
            if number and lines:
                yield Text()
            for line in lines:
                yield from _fitted(line, width, options.ascii_only) if isinstance(line, Text) else line

    def _numbers_by_variant(self) -> dict[str | None, list[int]]:
        numbers: dict[str | None, list[int]] = {}
        for number, row in enumerate(self._rows):
            numbers.setdefault(row.cell.variant, []).append(number)
        return numbers

    def _table(
        self, variant: str | None, numbers: Sequence[int], kept: Sequence[Column], rows: RowLines, ascii_only: bool
    ) -> Iterator[Text | RowLine]:
        """One variant's lines. The columns are those of all variants, so that their tables stand in line."""
        if variant is not None:
            yield Text(f"variant {printable(variant)}", style="bold", no_wrap=True)
        for words in ([column.name for column in kept], [column.unit for column in kept]):
            yield table_line(kept, words, ["bold"] * len(kept))
        yield Text(("-" if ascii_only else "\u2500") * table_width(kept), style="dim", no_wrap=True)
        context = None
        for number in numbers:
            row = self._rows[number]
            if context not in {None, row.cell.context}:
                yield Text()
            context = row.cell.context
            yield rows.line(number, row)


def result_table(
    rows: Sequence[CellRow], *, elapsed_s: float | None = None, remarks: Sequence[str] = ()
) -> ResultTable:
    """The table of a run for `rich`. `elapsed_s` is shown below it; without it the cells' own time is.

    `remarks` are sentences on the host that bear on the numbers.
    """
    return ResultTable(rows, elapsed_s, remarks)


def result_console(file: IO[str]) -> Console:
    """A console for results: plain where `file` is no terminal, and then wide, since nobody folds a pipe.

    Its pipe may close early (`| head`): it then falls silent, and the caller's exit code stands.
    """
    width = None if file.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return _ResultConsole(file=file, width=width, highlight=False, markup=False, emoji=False)


class _ResultConsole(Console):
    def on_broken_pipe(self) -> None:
        """Called by rich when the reader is gone; rich's own would end the process with exit code 1."""
        self.quiet = True
        fall_silent(self.file)


def _what_to_leave_out(every: Columns, width: int) -> frozenset[str]:
    """As little as makes the table fit: in DROP_ORDER until it does, and then back what still has room."""

    def fits(without: set[str]) -> bool:
        return table_width(every.without(frozenset(without))) <= width

    dropped: list[str] = []
    while not fits(set(dropped)) and len(dropped) < len(DROP_ORDER):
        dropped.append(DROP_ORDER[len(dropped)])
    without = set(dropped)
    for key in reversed(dropped):
        if key == "evidence" and "cause" in without:
            continue
        if fits(without - {key}):
            without.remove(key)
    return frozenset(without)


def _fitted(line: Text, width: int, ascii_only: bool) -> Iterator[Text]:
    """The line in this width: cut where it belongs to the table, else folded with the rest set in."""
    plain = line.plain.encode("ascii", "backslashreplace").decode() if ascii_only else line.plain
    if line.no_wrap:
        if ascii_only and plain != line.plain:
            line = Text(plain, style=line.style)
        line.truncate(width, overflow="crop")
        line.rstrip()
        yield line
        return
    for part in textwrap.wrap(plain, max(width, 20), subsequent_indent="  ", break_on_hyphens=False) or [""]:
        yield Text(part, style=line.style, no_wrap=True, overflow="crop")


def _notes(rows: Sequence[CellRow], without: frozenset[str]) -> Iterator[Text]:
    """What the table had no room for, equal notes together."""
    said: dict[tuple[str, Verdict | None], list[str]] = {}
    for row in rows:
        evidence = evidence_text(row) if "evidence" in without else ""
        if evidence or ("cause" in without and verdict_text(row) != str(row.verdict) and row.closed):
            text = f"{verdict_text(row)}; {evidence}" if evidence else verdict_text(row)
            said.setdefault((text, row.verdict), []).append(printable(row.cell.cell_id))
    for (text, verdict), cells in said.items():
        yield Text(f"{_named(cells)}  {text}", style=STYLES[verdict])


def _named(cells: Sequence[str]) -> str:
    more = f" and {len(cells) - _NAMED_CELLS} more" if len(cells) > _NAMED_CELLS else ""
    return ", ".join(cells[:_NAMED_CELLS]) + more


def _legend(rows: Sequence[CellRow], left_out: Sequence[str]) -> Iterator[Text]:
    if any(row.closed and shows_footprint(row.closed) for row in rows):
        yield Text("* the worker's footprint as the system counts it, swapped memory included", style="dim")
    if any(row.closed and row.closed.metrics.reps and row.verdict is not Verdict.COMPLETED for row in rows):
        yield Text("figures of a cell that did not complete are those of its whole reps", style="dim")
    if any(row.closed and row.closed.metrics.filled_tokens for row in rows):
        yield Text("no TTFT: contexts were filled at random, not computed", style="dim")
    if left_out:
        yield Text(f"left out at this width: {', '.join(left_out)}", style="dim")


def _troubles(rows: Sequence[CellRow]) -> Iterator[Text]:
    """What crashed, failed or ran out of time, in a sentence each; equal troubles together."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        record = row.closed
        if record and record.verdict in _TROUBLE and record.detail:
            key = (record.verdict, printable(record.detail), printable(record.remedy))
            groups.setdefault(key, []).append(printable(row.cell.cell_id))
    for (verdict, detail, remedy), cells in groups.items():
        yield Text(f"{_named(cells)}: {detail}", style=STYLES[Verdict(verdict)])
        if remedy:
            yield Text(f"  to mend it: {remedy}")


def _findings(rows: Sequence[CellRow], variants: Sequence[str | None]) -> Iterator[Text]:
    """Best cell and wall of each context; `rows` go by context."""
    grouped: dict[str | None, dict[int, list[CellRow]]] = {variant: {} for variant in variants}
    for row in rows:
        grouped[row.cell.variant].setdefault(row.cell.context, []).append(row)
    for variant, contexts in grouped.items():
        name = "" if variant is None else f"{printable(variant)}, "
        for context, of_context in contexts.items():
            yield Text(f"{name}at {context:,} tokens: {'; '.join(_finding(of_context))}")


def _finding(rows: Sequence[CellRow]) -> Iterator[str]:
    """`rows` are those of one context, batch ascending."""
    records = [row.closed for row in rows]
    closed = [record for record in records if record is not None]
    best = _best(closed)
    wall = next((record for record in closed if record.verdict in WALLS), None)
    dominated = next((record for record in closed if record.dominated_by), None)
    if best is not None:
        last = ", the largest tried" if best.batch == rows[-1].cell.batch and len(rows) > 1 else ""
        yield f"best at batch {best.batch} ({_rate(best)}){last}"
    if wall is not None:
        yield f"wall at batch {wall.batch}: {printable(wall.cause or wall.verdict)}"
    elif dominated is not None:
        yield f"from batch {dominated.batch} dominated by {printable(dominated.dominated_by or '')}"
    unanswered = len(rows) - sum(record.verdict is not Verdict.INTERRUPTED for record in closed)
    if unanswered:
        yield f"{unanswered} open"
    elif best is None and wall is None and dominated is None:
        yield "nothing measured"


def _best(closed: Sequence[CellRecord]) -> CellRecord | None:
    """The fastest of the cells whose numbers can be trusted; of all completed ones where there are none."""
    measured = [
        record for record in closed if record.verdict is Verdict.COMPLETED and record.metrics.generation_tps is not None
    ]
    trusted = [record for record in measured if not is_invalid(record)]
    return max(trusted or measured, key=lambda record: record.metrics.generation_tps or 0.0, default=None)


def _rate(record: CellRecord) -> str:
    rate = record.metrics.generation_tps or 0.0
    text = f"{rate:,.1f} tok/s" if rate >= 10 else f"{rate:.2f} tok/s"
    return f"{text}, {', '.join(record.invalid_reasons)}" if is_invalid(record) else text


def _counts(rows: Sequence[CellRow], elapsed_s: float | None) -> str:
    parts = [f"{count} {verdict}" for verdict, count in count_by_verdict(rows).items()]
    invalid = sum(row.closed is not None and is_invalid(row.closed) for row in rows)
    if invalid:
        parts[0] += f" ({invalid} invalid)"  # completed comes first among the verdicts
    if elapsed_s is None:
        spent = f"{duration(sum(row.record.duration_s for row in rows if row.record))} in cells"
    else:
        spent = duration(elapsed_s)
    return f"{count_of(len(rows), 'cell')}: {', '.join(parts)}; {spent}"

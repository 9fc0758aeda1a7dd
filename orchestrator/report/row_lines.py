"""Owns the lines of the result table: columns side by side, in the colours of what became of the cell.

Does not know what a column holds (columns.py), and does not read anything of a row but its verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from rich.segment import Segment
from rich.text import Text

from orchestrator.records import Verdict
from orchestrator.report.columns import STYLES, Column, is_invalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.style import Style

    from orchestrator.report.rows import CellRow

RowLine: TypeAlias = "Text | tuple[Segment, ...]"

_GAP = "  "
_LINE_END = Segment("\n")


class RowLines:
    """The lines of the rows: what `Text` makes of them for this console, in a tenth of its time where that is known."""

    def __init__(self, console: Console, width: int, kept: Sequence[Column]) -> None:
        self._console, self._width, self._kept = console, width, kept
        self._padded = [_padded(column, column.texts) for column in kept]
        self._whole = [_GAP.join(texts).rstrip() for texts in zip(*self._padded, strict=True)]
        self._plain = console.color_system is None and not console.record
        self._styles: dict[str, Style] = {}

    def line(self, number: int, row: CellRow) -> RowLine:
        """The line of the row that has this number in the columns."""
        whole = self._whole[number]
        # What is wider than the console, or than its characters' number, or moves the cursor, is for rich to see to.
        if len(whole) > self._width or not (whole.isascii() and whole.isprintable()):
            return table_line(self._kept, [column.texts[number] for column in self._kept], _styles(self._kept, row))
        if self._plain:
            return (Segment(f"{whole}\n"),)
        texts = [column[number] for column in self._padded]
        return (*self._styled(texts, _styles(self._kept, row)), _LINE_END)

    def _styled(self, texts: Sequence[str], styles: Sequence[str]) -> Iterator[Segment]:
        """A segment per column that has a style, and per stretch of columns that have none."""
        bare = ""
        last = len(texts) - 1
        for number, (text, name) in enumerate(zip(texts, styles, strict=True)):
            part = text + _GAP if number < last else text.rstrip()  # never empty: there is a word in each column
            if not name:
                bare += part
                continue
            if bare:
                yield Segment(bare)
                bare = ""
            yield Segment(part, self._style(name))
        if bare:
            yield Segment(bare)

    def _style(self, name: str) -> Style:
        style = self._styles.get(name)
        if style is None:
            style = self._styles[name] = self._console.get_style(name)
        return style


def table_line(kept: Sequence[Column], texts: Sequence[str], styles: Sequence[str]) -> Text:
    """One line of a table, whatever it holds."""
    line = Text(no_wrap=True)
    for column, text, style in zip(kept, texts, styles, strict=True):
        line.append(_padded(column, (text,))[0] + _GAP, style=style)
    line.rstrip()
    return line


def table_width(kept: Sequence[Column]) -> int:
    """Of a line, in characters."""
    return sum(column.width for column in kept) + len(_GAP) * (len(kept) - 1)


def _padded(column: Column, texts: Sequence[str]) -> list[str]:
    width = column.width
    return [text.rjust(width) for text in texts] if column.right else [text.ljust(width) for text in texts]


def _styles(kept: Sequence[Column], row: CellRow) -> list[str]:
    record = row.closed
    doubtful = record is not None and is_invalid(record)
    of_verdict = "bold" if row.running else "yellow" if doubtful else STYLES[row.verdict]
    # The figures of a broken cell are those of the reps that were finished: shown, and shown as lesser.
    of_figures = "" if record is not None and record.verdict is Verdict.COMPLETED and not doubtful else "dim"
    special = {"verdict": of_verdict, "cell": ""}
    return [special.get(column.key, of_figures) for column in kept]

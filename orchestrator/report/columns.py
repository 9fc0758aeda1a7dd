"""Owns the columns of the result table: what each holds, in which unit, and which go first where room is
short.

Does not lay them out (terminal.py). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.evidence import figures
from orchestrator.quantities import count_of, duration, printable
from orchestrator.records import Metrics, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.records import CellRecord
    from orchestrator.report.rows import CellRow

MISSING = "-"
_NOTHING = Metrics()
# Where room is short these go, first to last; what goes is named under the table.
DROP_ORDER = ("noise", "evidence", "tpot", "ttft", "cause", "stream", "swap", "phase", "share")
# Of those, the parts of the verdict; what they say stands under the table instead.
VERDICT_PARTS = frozenset({"evidence", "cause"})
STYLES = {
    None: "dim",
    Verdict.COMPLETED: "green",
    Verdict.HIT_THE_WALL: "bold red",
    Verdict.HOST_DIED: "bold red",
    Verdict.TIMED_OUT: "yellow",
    Verdict.CRASHED: "magenta",
    Verdict.FAILED: "magenta",
    Verdict.SKIPPED: "dim",
    Verdict.INTERRUPTED: "cyan",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: heading in two lines (name, unit), and the text of each row.

    `width` is that of the widest entry in characters.
    """

    key: str
    name: str
    unit: str
    texts: tuple[str, ...]
    width: int
    right: bool

    @property
    def title(self) -> str:
        """The heading in one line, for the note on what was left out."""
        return f"{self.name} {self.unit}".strip()


class Columns:
    """The columns of a table; each is laid out once, however often another choice of them is tried."""

    def __init__(self, rows: Sequence[CellRow]) -> None:
        self._rows = rows
        self._plain = _plain_columns(rows)
        self._verdicts: dict[Callable[[CellRow], str], Column] = {}

    def without(self, keys: frozenset[str] = frozenset()) -> list[Column]:
        """All columns that are not left out. Without `cause` the verdict stands alone, with its mark."""
        verdict = short_verdict if "cause" in keys else verdict_text if "evidence" in keys else full_verdict
        if verdict not in self._verdicts:
            self._verdicts[verdict] = _words("verdict", "verdict", [verdict(row) for row in self._rows])
        every = (*self._plain, self._verdicts[verdict])
        return [column for column in every if column.key not in keys]


def _plain_columns(rows: Sequence[CellRow]) -> tuple[Column, ...]:
    """All but the verdict, which there is in three lengths."""
    records = [row.closed for row in rows]
    metrics = [_NOTHING if record is None else record.metrics for record in records]
    peaks = [None if record is None else peak_bytes(record) for record in records]
    marks = ["*" if record is not None and shows_footprint(record) else "" for record in records]
    return (
        _words("cell", "cell", [row.cell.cell_id.rpartition("/")[2] for row in rows]),  # its variant is over the table
        _numbers("tps", "total", "tok/s", [m.generation_tps for m in metrics]),
        _numbers("stream", "stream", "tok/s", [m.generation_tps_per_stream for m in metrics]),
        _numbers("tpot", "TPOT", "ms", [m.tpot_ms for m in metrics]),
        _numbers("ttft", "TTFT", "s", [m.ttft_s for m in metrics]),
        _numbers("noise", "IQR/med", "%", [_percent(m.robust_cv) for m in metrics], decimals=1),
        _numbers("peak", "peak", "GB", [_gigabytes(peak) for peak in peaks], marks=marks),
        _numbers("share", "of mem", "%", list(map(_share, records, peaks)), decimals=1),
        _words("phase", "peak", list(map(_peak_in, metrics)), unit="in"),
        _numbers("swap", "swap", "GB", list(map(_swap_gb, records)), decimals=2, signed=True),
    )


def short_verdict(row: CellRow) -> str:
    """One word; `!` where the numbers are not to be trusted."""
    if row.running:
        return "running"
    record = row.closed
    if record is None:
        return "open"
    return f"{record.verdict}!" if is_invalid(record) else str(record.verdict)


def verdict_text(row: CellRow) -> str:
    """The verdict with its cause, or with the reasons why the numbers are not to be trusted."""
    record = row.closed
    if record is None:
        return f"running, attempt {row.attempts}" if row.running and row.attempts > 1 else short_verdict(row)
    text = str(record.verdict)
    if record.dominated_by:
        text += f": dominated by {printable(record.dominated_by)}"
    elif record.cause and record.cause != record.verdict:
        text += f": {printable(record.cause)}"
    elif is_invalid(record):
        text += f", invalid: {', '.join(record.invalid_reasons)}"
    if record.would_have is not None:
        text += f"; would have been ended after {duration(record.would_have.after_s)}: {record.would_have.cause}"
    return text if row.attempts < 2 else f"{text} (attempt {row.attempts})"


def evidence_text(row: CellRow) -> str:
    """The evidence of a cell that did not complete, in short, with how far it came."""
    record = row.closed
    if record is None or record.verdict is Verdict.COMPLETED:
        return ""
    reps = f"after {count_of(record.metrics.reps, 'whole rep')}" if record.metrics.reps else ""
    return "; ".join(part for part in (figures(record.evidence, record.cause), reps) if part)


def full_verdict(row: CellRow) -> str:
    """The verdict with its cause and its evidence."""
    evidence = evidence_text(row)
    return f"{verdict_text(row)} ({evidence})" if evidence else verdict_text(row)


def is_invalid(record: CellRecord) -> bool:
    """Whether a completed cell's numbers are not to be trusted."""
    return record.verdict is Verdict.COMPLETED and record.valid is False


def shows_footprint(record: CellRecord) -> bool:
    """Whether the peak is the system's figure: MLX's own never arrived, or is a broken cell's last mark."""
    mlx, system = record.metrics.peak_memory_bytes, record.peak_footprint_bytes
    if system is None:
        return False
    return mlx is None or (record.verdict is not Verdict.COMPLETED and system > mlx)


def peak_bytes(record: CellRecord) -> int | None:
    """MLX's peak; the system's footprint where that says more."""
    return record.peak_footprint_bytes if shows_footprint(record) else record.metrics.peak_memory_bytes


def _gigabytes(count: int | None) -> float | None:
    """GB of 1e9 bytes."""
    return None if count is None else count / 1e9


def _share(record: CellRecord | None, peak: int | None) -> float | None:
    """The peak as percent of the memory that counts for the cell."""
    if record is None or peak is None or not record.memory_bytes:
        return None
    return peak / record.memory_bytes * 100


def _swap_gb(record: CellRecord | None) -> float | None:
    return None if record is None else _gigabytes(record.swap_growth_bytes)


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100


def _peak_in(metrics: Metrics) -> str:
    """The phase that owns the peak, and the largest part of what it consists of."""
    if metrics.peak_phase is None:
        return MISSING
    return printable(": ".join(part for part in (metrics.peak_phase, metrics.peak_term) if part))


def _words(key: str, name: str, texts: Sequence[str], *, unit: str = "") -> Column:
    return _column(key, name, unit, texts, right=False)


def _column(key: str, name: str, unit: str, texts: Sequence[str], *, right: bool) -> Column:
    width = max(map(len, (name, unit, *texts)))
    return Column(key, name, unit, tuple(texts), width, right)


def _numbers(
    key: str,
    name: str,
    unit: str,
    values: Sequence[float | None],
    *,
    decimals: int | None = None,
    signed: bool = False,
    marks: Sequence[str] = (),
) -> Column:
    """A column of numbers with one count of decimals, so that they stand under each other."""
    form = f"{{:,.{_decimals(values) if decimals is None else decimals}f}}".format
    texts = [MISSING if value is None else form(value) for value in values]
    if signed:
        texts = [f"+{text}" if text != MISSING and float(text.replace(",", "")) > 0 else text for text in texts]
    if marks:
        gap = " " if any(marks) else ""
        texts = [f"{text}{mark or gap}" for text, mark in zip(texts, marks, strict=True)]
    return _column(key, name, unit, texts, right=True)


def _decimals(values: Sequence[float | None]) -> int:
    least = min((abs(v) for v in values if v), default=10.0)
    return 1 if least >= 10 else 2 if least >= 0.1 else 3

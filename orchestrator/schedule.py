"""Owns what to run next. Pure: takes cells and what the ledger says of them, reads no clock and no file."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.records import CellRecord, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orchestrator.cells import Cell
    from orchestrator.history import History

_FINAL = frozenset({Verdict.COMPLETED, Verdict.HIT_THE_WALL, Verdict.HOST_DIED, Verdict.TIMED_OUT, Verdict.SKIPPED})


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a cell that crashed or failed is tried again."""

    crashed: int = 1
    failed: int = 0


def ordered(cells: Sequence[Cell], order: str) -> tuple[Cell, ...]:
    """The cells in the order to run them.

    `safest_first` goes by the tokens that a cell holds in its cache (batch * context, then context), ascending, so
    that a host that dies takes the fewest answers with it; `as_written` keeps the plan's order.
    """
    if order == "as_written":
        return tuple(cells)
    return tuple(sorted(cells, key=lambda cell: (cell.batch * cell.context, cell.context, cell.batch)))


def is_done(counting: Sequence[CellRecord], retries: Retries) -> bool:
    """Whether a cell with these ended attempts needs no other. `counting` is oldest first.

    What would end the same way again (a defect, a model that does not load) is not retried, whatever the plan says.
    """
    if not counting:
        return False
    last = counting[-1].verdict
    if last in _FINAL:
        return not counting[-1].partial
    allowed = {Verdict.CRASHED: retries.crashed, Verdict.FAILED: retries.failed}.get(last)
    if allowed is None:
        return False
    return not counting[-1].retryable or sum(record.verdict is last for record in counting) > allowed


def left_to_do(cells: Iterable[Cell], history: History, retries: Retries) -> tuple[Cell, ...]:
    """The cells that still need an attempt, in the order given."""
    return tuple(cell for cell in cells if not is_done(history.counting(cell.cell_id), retries))


def in_turn(cells: Sequence[Cell], history: History) -> tuple[Cell, ...]:
    """The cells of an interleaved sweep: those with the fewest repetitions first, otherwise in the order given."""
    return tuple(sorted(cells, key=lambda cell: sum(record.partial for record in history.counting(cell.cell_id))))


def dominating_wall(cell: Cell, records: Iterable[CellRecord]) -> CellRecord | None:
    """The smallest cell of the same variant whose *memory* wall speaks for this one too, or None.

    A cell dominates another if neither its batch nor its context is larger. A crash or a time-out that was not
    memory dominates nothing.
    """
    walls = [
        record
        for record in records
        if record.memory_wall
        and record.variant == cell.variant
        and record.batch <= cell.batch
        and record.context <= cell.context
        and (record.batch, record.context) != (cell.batch, cell.context)
    ]
    return min(walls, key=lambda record: (record.batch * record.context, record.context), default=None)


def stopping_failure(cell: Cell, records: Iterable[CellRecord]) -> CellRecord | None:
    """The failure that stopped the cell's variant (a model that does not load), or None."""
    return next((r for r in records if r.stops_variant and r.attempt and r.variant == cell.variant), None)


def expected_step_s(cell: Cell, records: Iterable[CellRecord]) -> float | None:
    """What smaller completed cells of the variant predict for a decode step of this cell, in seconds.

    A step costs at most in proportion to batch and to context, as long as memory is at hand, so the least of
    step * (batch ratio) * (context ratio) over the completed smaller cells bounds a healthy step from above.
    """
    bounds = [
        record.metrics.step_s * (cell.batch / record.batch) * (cell.context / record.context)
        for record in records
        if record.verdict is Verdict.COMPLETED
        and record.metrics.step_s is not None
        and record.variant == cell.variant
        and record.batch <= cell.batch
        and record.context <= cell.context
    ]
    return min(bounds, default=None)


def expected_chunk_s(cell: Cell, records: Iterable[CellRecord], chunk_tokens: int) -> float | None:
    """What smaller completed cells of the variant predict for the last, dearest prefill chunk of this cell, in seconds.

    A cell's tokens per second are over its whole prefill, whose last chunk costs at most twice the mean one: its
    attention reaches back over all the context, that of the mean one over half of it. Depth is taken in proportion.
    """
    bounds = [
        2 * min(chunk_tokens, cell.context) * cell.batch / record.metrics.prompt_tps * (cell.context / record.context)
        for record in records
        if record.verdict is Verdict.COMPLETED
        and record.metrics.prompt_tps
        and record.variant == cell.variant
        and record.batch <= cell.batch
        and record.context <= cell.context
    ]
    return min(bounds, default=None)


def fault_for(faults: Mapping[str, str], cell_id: str, attempt: int) -> str | None:
    """The fault that the test engine plays in this attempt, or None.

    A key of `faults` is a cell id or a pattern of ids (`*`, `?`); with `#N` behind it, it means the N-th attempt only.
    The first key that fits decides.
    """
    for key, fault in faults.items():
        pattern, _, number = key.partition("#")
        if fnmatch.fnmatchcase(cell_id, pattern) and number in ("", str(attempt)):
            return fault
    return None

"""Owns a run's cells in the columns of llama.cpp's `llama-batched-bench`, as its table and as its JSON lines.

Does not read the ledger and does not define the figures (definitions.py).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.definitions import LlamaBenchRow, llama_bench_row
from orchestrator.records import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrator.report.rows import CellRow

_WIDTHS = {
    "PP": 6,
    "TG": 6,
    "B": 4,
    "N_KV": 6,
    "T_PP s": 8,
    "S_PP t/s": 8,
    "T_TG s": 8,
    "S_TG t/s": 8,
    "T s": 8,
    "S t/s": 8,
}


@dataclass(frozen=True, slots=True)
class BenchCell:
    """A completed cell and its row; medians over its repetitions."""

    cell_id: str
    variant: str | None
    valid: bool
    row: LlamaBenchRow


def bench_cells(
    rows: Sequence[CellRow], steps_of: Callable[[str | None], int], *, with_invalid: bool
) -> tuple[list[BenchCell], int]:
    """The completed cells, and how many were left out because their numbers are not valid.

    `steps_of` gives the decode steps of a variant's cells, G-1.
    """
    found, left_out = [], 0
    for row in rows:
        record = row.closed
        if record is None or record.verdict is not Verdict.COMPLETED or not record.metrics.generation_tps:
            continue
        if not record.valid and not with_invalid:
            left_out += 1
            continue
        steps = steps_of(record.variant)
        window_s = record.batch * steps / record.metrics.generation_tps
        bench = llama_bench_row(record.context, steps, record.batch, record.metrics.ttft_s, window_s)
        found.append(BenchCell(record.cell_id, record.variant, bool(record.valid), bench))
    return found, left_out


def bench_table(cells: Sequence[BenchCell]) -> Iterator[str]:
    """Its table, line by line; a table per variant, under its name."""
    for variant in dict.fromkeys(cell.variant for cell in cells):
        if variant is not None:
            yield f"variant {variant}"
            yield ""
        yield "|" + "|".join(f"{name:>{width}} " for name, width in _WIDTHS.items()) + "|"
        yield "|" + "|".join("-" * (width + 1) for width in _WIDTHS.values()) + "|"
        for cell in cells:
            if cell.variant == variant:
                yield "|" + "|".join(_texts(cell.row)) + "|"
        if variant is not None:
            yield ""


def bench_json_line(cell: BenchCell) -> str:
    """Its JSON line, under its keys, with the cell and whether its numbers are valid; null where there is no figure."""
    row = dataclasses.asdict(cell.row)
    keys = {"b": "pl", "s_pp": "speed_pp", "s_tg": "speed_tg", "s": "speed"}
    body = {"is_pp_shared": 0, **{keys.get(name, name): value for name, value in row.items()}}
    return json.dumps({**body, "cell_id": cell.cell_id, "variant": cell.variant, "valid": cell.valid})


def _texts(row: LlamaBenchRow) -> Iterator[str]:
    counts = (row.pp, row.tg, row.b, row.n_kv)
    figures = ((row.t_pp, 3), (row.s_pp, 2), (row.t_tg, 3), (row.s_tg, 2), (row.t, 3), (row.s, 2))
    texts = [*map(str, counts), *("-" if value is None else f"{value:.{places}f}" for value, places in figures)]
    for text, width in zip(texts, _WIDTHS.values(), strict=True):
        yield f"{text:>{width}} "

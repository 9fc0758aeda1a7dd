"""The result table at many widths, on streams that know only ASCII, and with texts that try to break out."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from report_rows import origin_rows, row, skipped, smoke_rows, trouble_rows
from rich.console import Console

from orchestrator.records import Verdict
from orchestrator.report.terminal import result_console, result_table

if TYPE_CHECKING:
    from orchestrator.report.rows import CellRow

ALL_ROWS = {"origin": origin_rows, "smoke": smoke_rows, "trouble": trouble_rows}


def rendered(rows: list[CellRow], width: int = 140, elapsed_s: float | None = 5432.0) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(result_table(rows, elapsed_s=elapsed_s))
    return file.getvalue()


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


@pytest.mark.parametrize("width", [20, 40, 60, 72, 80, 100, 120, 140, 200])
@pytest.mark.parametrize("rows", ALL_ROWS.values(), ids=ALL_ROWS.keys())
def test_no_line_is_too_long_and_nothing_trails(rows: object, width: int) -> None:
    assert callable(rows)
    lines = rendered(rows(), width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_every_cell_has_one_line_with_its_verdict(width: int) -> None:
    text = rendered(origin_rows(), width)
    for each in origin_rows():
        starts = [line for line in text.splitlines() if re.match(rf"{each.cell.cell_id}  +[\d-]", line)]
        assert len(starts) == 1
        assert str(each.verdict or ("running" if each.running else "open")) in starts[0]


def test_the_figures_of_the_origin_sweep() -> None:
    text = rendered(origin_rows(), 140)
    figures = "40.0 1.25 800.0 119.16 1.2 50.30 97.6 prefill"
    assert line_of(text, "c04096-b032").split()[1:9] == figures.split()
    assert "+4.31  hit_the_wall: swap_growth" in line_of(text, "c04096-b032")
    assert "completed, invalid: noisy, swapped" in line_of(text, "c04096-b016")
    assert "49.10*" in line_of(text, "c16384-b016")
    assert "* the worker's footprint" in text
    assert "skipped: dominated by c16384-b016" in line_of(text, "c16384-b032")
    assert "at 4,096 tokens: best at batch 8 (139.1 tok/s); wall at batch 32: swap_growth" in text
    assert "at 512 tokens: best at batch 32 (387.1 tok/s), the largest tried" in text
    assert "at 32,768 tokens: best at batch 1 (29.0 tok/s); from batch 8 dominated by c16384-b016; 2 open" in text
    assert "24 cells: 16 completed (2 invalid), 2 hit_the_wall, 4 skipped, 2 open; 1 h 30 min" in text


def test_numbers_stand_under_each_other() -> None:
    lines = rendered(origin_rows(), 140).splitlines()
    rates = [line for line in lines if re.match(r"c\d+-b\d+ +[\d.]+ ", line)]
    assert len(rates) > 10
    assert len({line.index(".") for line in rates}) == 1
    assert lines[1].index("tok/s") + len("tok/s") == re.match(r"c\S+ +[\d.]+", rates[0]).end()  # type: ignore[union-attr]  # matched above


def test_the_evidence_is_in_the_row_where_there_is_room_and_below_where_there_is_none() -> None:
    evidence = "swap +4.31 GB, step 2.3 s, 11x"
    wide, narrow = rendered(origin_rows(), 200), rendered(origin_rows(), 80)
    assert f"hit_the_wall: swap_growth ({evidence})" in line_of(wide, "c16384-b016")
    assert f"c16384-b016  hit_the_wall: swap_growth; {evidence}" in narrow
    assert "left out at this width" not in wide
    assert "left out at this width: TPOT ms, IQR/med %" in narrow


def test_whole_reps_of_a_broken_cell_are_shown_as_such() -> None:
    assert "after 1 whole rep)" in rendered(origin_rows(), 200)


def test_variants_have_tables_of_their_own_in_line() -> None:
    text = rendered(smoke_rows(), 140)
    assert text.index("variant kv16") < text.index("variant kv8")
    assert len({line for line in text.splitlines() if line.startswith("cell ")}) == 1
    assert "kv8, at 64 tokens: best at batch 4 (2,111.2 tok/s)" in text


def test_hostile_text_is_shown_and_does_nothing() -> None:
    text = rendered(trouble_rows(), 140)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "[red]bold[/red] {x}" in text
    assert "\\x1b[2J" in text
    assert "second line tab \\udc80" in text
    text.encode()


def test_equal_troubles_are_told_once_with_their_remedy() -> None:
    text = rendered(trouble_rows(), 140)
    assert "c04096-b001, c04096-b002, c04096-b004 and 2 more: The model's folder has no config.json." in text
    assert text.count("to mend it: mend `model`") == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_stream_that_knows_only_ascii(encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    rows = [
        *origin_rows(),
        row(99, 1, Verdict.CRASHED, variant="größe", detail="Größe 東京 \U0001f600"),
    ]
    Console(file=stream, width=100).print(result_table(rows))
    stream.flush()
    text = stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]  # a BytesIO, two lines up
    assert "----" in text
    assert "gr\\xf6\\xdfe" in text


def test_no_colours_without_a_terminal_and_colours_with_one() -> None:
    assert "\x1b[" not in rendered(origin_rows())
    file = io.StringIO()
    Console(file=file, width=140, force_terminal=True, color_system="standard").print(result_table(origin_rows()))
    assert "\x1b[1;31mhit_the_wall: swap_growth" in file.getvalue()


def test_a_pipe_is_not_squeezed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    result_console(file).print(result_table(origin_rows()))
    assert "TTFT" in file.getvalue()
    assert "left out" not in file.getvalue()


def test_a_cell_that_runs_again_is_open() -> None:
    again = row(512, 2, Verdict.CRASHED, cause="sigsegv", detail="died", attempts=2, running=True)
    text = rendered([again])
    assert "running, attempt 2" in text
    assert "sigsegv" not in text
    assert "1 cell: 1 open" in text


def test_the_best_is_one_that_can_be_trusted() -> None:
    rows = [
        row(512, 1, tps=50.0, peak_gb=5.0),
        row(512, 2, tps=99.0, peak_gb=5.0, invalid_reasons=("bad_logits",)),
        row(1024, 1, tps=9.5, peak_gb=5.0, invalid_reasons=("noisy",)),
        row(2048, 1, Verdict.FAILED, cause="error"),
        skipped(4096, 1, "c02048-b001"),
    ]
    text = rendered(rows)
    assert "at 512 tokens: best at batch 1 (50.0 tok/s)\n" in text
    assert "at 1,024 tokens: best at batch 1 (9.50 tok/s, noisy)" in text
    assert "at 2,048 tokens: nothing measured" in text


def test_without_an_elapsed_time_the_cells_own_is_shown() -> None:
    assert "2 cells: 2 completed; 1 min 20 s in cells" in rendered(
        [row(512, 1, tps=5.0), row(512, 2, tps=5.0)], elapsed_s=None
    )


def test_nothing_to_show() -> None:
    assert rendered([]) == "no cells\n"


def test_a_reader_that_leaves_early_ends_nothing() -> None:
    script = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from report_rows import origin_rows\n"
        "from orchestrator.report.terminal import result_console, result_table\n"
        "sys.stdin.read()\n"
        "result_console(sys.stdout).print(result_table(origin_rows() * 200))\n"
        "sys.exit(7)\n"
    )
    root = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as child:
        assert child.stdout is not None
        child.stdout.close()
        _, said = child.communicate(b"", timeout=60)
    assert (child.returncode, said) == (7, b"")


def test_a_context_that_was_filled_at_random_is_named() -> None:
    plain = smoke_rows()
    first = plain[0]
    assert first.record is not None
    metrics = dataclasses.replace(first.record.metrics, filled_tokens=64, ttft_s=None)
    filled = dataclasses.replace(first, record=dataclasses.replace(first.record, metrics=metrics))
    assert "filled at random" in rendered([filled, *plain[1:]])
    assert "filled at random" not in rendered(plain)

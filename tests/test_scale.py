"""Ten thousand cells: what was made quick says what the plain way says, grows in proportion, and stays small.

No time is asserted by itself; bench/scale.py measures it.
"""

from __future__ import annotations

import gc
import io
import json
import math
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
from hypothesis import given
from hypothesis import strategies as st
from report_rows import origin_rows, row, smoke_rows, trouble_rows
from rich.console import Console
from sweeps import desk
from test_bench import bench

from bench.scale import Call, call, journal, make_run
from orchestrator import schedule
from orchestrator.cells import Cell
from orchestrator.collector import collector_paused
from orchestrator.errors import LedgerError
from orchestrator.eta import remaining_s
from orchestrator.history import History
from orchestrator.json_listing import json_listing
from orchestrator.ledger import replay
from orchestrator.plan import load_plan
from orchestrator.plan.checks import fnmatch as checks_fnmatch
from orchestrator.records import CellRecord, Metrics, Verdict
from orchestrator.report.columns import Columns
from orchestrator.report.row_lines import RowLines, table_line
from orchestrator.report.status_json import status_document, status_parts
from orchestrator.report.terminal import result_table
from orchestrator.show import _Outlook
from orchestrator.standing import Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrator.report.rows import CellRow

REPOSITORY = Path(__file__).parent.parent
CELLS = 10_000
MOST_BYTES = 150_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A plan file of ten thousand cells, and the run directory of a sweep that answered them all."""
    return make_run(tmp_path_factory.mktemp("large"), CELLS)


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """The same of a few hundred cells."""
    return make_run(tmp_path, 300)


# -- memory


@pytest.mark.skipif(sys.platform != "linux", reason="the bound is that of Linux's allocator")
@pytest.mark.parametrize("command", ["plan", "plan --json", "status", "status --json", "resume"])
def test_ten_thousand_cells_need_little_memory(large: tuple[Path, Path], command: str) -> None:
    plan_file, run = large
    name, *flags = command.split()
    done: Call = call(command, [name, str(plan_file if name == "plan" else run), *flags], run.parent)
    assert done.exit_code == 0
    assert done.output_bytes > 50 * CELLS  # all of them are told
    assert 10_000_000 < done.rss_bytes < MOST_BYTES


# -- growth


def one_per_context(count: int) -> list[CellRow]:
    return [row(64 + number, 1, tps=50.0 + number % 7, peak_gb=5.0) for number in range(count)]


def four_per_variant(count: int) -> list[CellRow]:
    return [row(64, 1 + number % 4, variant=f"v{number // 4}", tps=50.0, peak_gb=5.0) for number in range(count)]


def least_cpu_s(what: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        since_s = time.process_time()
        what()
        taken.append(time.process_time() - since_s)
    return min(taken)


@pytest.mark.parametrize("rows_of", [one_per_context, four_per_variant])
def test_the_table_takes_time_in_proportion(rows_of: Callable[[int], list[CellRow]]) -> None:
    def shown(rows: list[CellRow]) -> None:
        Console(file=io.StringIO(), width=200).print(result_table(rows), crop=False)

    few, many = rows_of(1_000), rows_of(12_000)
    shown(few[:8])  # what is built once
    # Twelve times as many rows; looked through once per context or variant, it was some forty times as long.
    assert least_cpu_s(lambda: shown(many), times=2) < 25 * least_cpu_s(lambda: shown(few), times=4)


class CountedHistory(History):
    """A history that counts how often it is asked for the records of a cell."""

    asked = 0

    def counting(self, cell_id: str) -> list[CellRecord]:
        type(self).asked += 1
        return super().counting(cell_id)


def looks_of_a_sweep(count: int) -> int:
    """How often a sweep of so many cells asks its history, from the first cell to the last."""
    cells = [Cell(None, 64 + number, 1) for number in range(count)]
    history = CountedHistory()
    CountedHistory.asked = 0
    standing = Standing(cells, history, schedule.Retries())
    while left := standing.left():
        standing.news()
        record_into(history, standing, record_of(left[0]))
    return CountedHistory.asked


def test_a_sweep_asks_its_history_in_proportion_to_its_cells() -> None:
    assert looks_of_a_sweep(800) <= 2.5 * looks_of_a_sweep(400)


def test_faults_that_name_a_cell_are_not_held_against_every_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def counted(name: str, pattern: str) -> bool:
        tried.append(pattern)
        return name == pattern

    monkeypatch.setattr(checks_fnmatch, "fnmatchcase", counted)
    ids = [f"c{context:05d}-b001" for context in range(64, 164)]
    body = {
        "model": {"synthetic": {"model_type": "llama", "hidden_size": 64}},
        "engine": "faulty",
        "batches": [1],
        "contexts": list(range(64, 164)),
        "faults": dict.fromkeys((*ids, "c00064-b001#2"), "exit"),
    }
    plan_file = tmp_path / "plan.yaml"
    plan_file.write_text(json.dumps(body), encoding="utf-8")
    assert len(load_plan(plan_file).cells()) == 100
    assert tried == []


# -- the same answers: how the cells stand


def record_of(cell: Cell, verdict: Verdict = Verdict.COMPLETED, attempt: int = 1, **keys: Any) -> CellRecord:
    return CellRecord(cell.cell_id, cell.variant, cell.context, cell.batch, attempt, verdict, **keys)


def record_into(history: History, standing: Standing, record: CellRecord) -> None:
    history.apply({"event": "cell.ended", "at": "x", "record": record.to_json()})
    standing.take(record)


ENDS: tuple[dict[str, Any], ...] = (
    {"verdict": Verdict.COMPLETED},
    {"verdict": Verdict.CRASHED},
    {"verdict": Verdict.INTERRUPTED},
    {"verdict": Verdict.HIT_THE_WALL, "memory_wall": True},
    {"verdict": Verdict.FAILED, "stops_variant": True},
    {"verdict": Verdict.FAILED, "stops_variant": True, "retryable": False},
)


@pytest.mark.parametrize("seed", range(20))
def test_the_standing_is_what_a_look_through_all_cells_finds(seed: int) -> None:
    draw = random.Random(seed)
    retries = schedule.Retries(crashed=1, failed=1)
    cells = [Cell(variant, context, batch) for variant in ("a", "b") for context in (64, 128) for batch in (1, 2, 4)]
    history = History()
    before = Standing(cells, history, retries)
    for _ in range(draw.randrange(6)):  # what an earlier sweep left
        record_into(history, before, ended(draw, cells, history))
    standing = Standing(cells, history, retries)
    heard: list[CellRecord] = []
    for _ in range(40):
        counting = [record for cell in cells for record in history.counting(cell.cell_id)]
        left = schedule.left_to_do(cells, history, retries)
        open_ids = {cell.cell_id for cell in left}
        heard += standing.news()
        assert standing.left() == left
        for variant in ("a", "b"):
            assert sorted(map(repr, standing.counting(variant))) == sorted(
                repr(record) for record in counting if record.variant == variant
            )
        telling = [r for r in counting if r.memory_wall or (r.stops_variant and r.cell_id not in open_ids)]
        assert sorted(map(repr, heard)) == sorted(map(repr, telling))
        if not left:
            break
        record_into(history, standing, ended(draw, left, history))


def ended(draw: random.Random, cells: Sequence[Cell], history: History) -> CellRecord:
    cell = draw.choice(cells)
    return record_of(cell, attempt=len(history.counting(cell.cell_id)) + 1, **draw.choice(ENDS))


@given(
    st.lists(st.tuples(st.integers(1, 64), st.floats(0, 100)), max_size=6),
    st.lists(st.integers(1, 64), max_size=5),
    st.floats(0, 200),
    st.none() | st.floats(0.1, 50),
)
def test_the_outlook_is_the_guess_for_every_moment_of_the_cell(
    took: list[tuple[int, float]], left: list[int], running_for_s: float, limit_s: float | None
) -> None:
    known = [(Cell(None, 64, batch), took_s) for batch, took_s in took]
    cells = [Cell(None, 64, batch) for batch in left]
    outlook = _Outlook(
        cell=Cell(None, 64, 1),
        step_s=None,
        first_s=remaining_s(known, cells[:1], limit_s=limit_s),
        rest_s=remaining_s(known, cells[1:], limit_s=limit_s),
    )
    expected = remaining_s(known, cells, running_for_s=running_for_s, limit_s=limit_s)
    assert outlook.remaining_s(running_for_s) == (None if expected is None else pytest.approx(expected))


# -- the same answers: the journal


def test_a_journal_is_read_as_pythons_own_parser_reads_it(small: tuple[Path, Path]) -> None:
    path = small[1] / "journal.jsonl"
    expected = History()
    for line in path.read_bytes().splitlines():
        expected.apply(json.loads(line))
    assert replay(path) == expected
    assert len(expected.records) == 300


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"sweep.ended","at":"x","state":"\\udc80"}',
        b'\xef\xbb\xbf{"event":"sweep.ended","at":"x","state":"complete"}',
        b'{"event":"model.resolved","at":"x","source":"s","n":[NaN,Infinity,1e999,123456789012345678901234567890]}',
        b' {"event":"sweep.ended","at":"x","at":"y","state":"complete"}\r',
    ],
)
def test_what_the_quick_parser_refuses_or_reads_otherwise_is_read_as_before(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(line + b"\n")
    expected = History()
    expected.apply(json.loads(line))
    assert repr(replay(path)) == repr(expected)  # by its text: NaN equals nothing


def test_an_error_is_in_the_words_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event":"sweep.ended","at":"x","state":"complete"}\n{"event":\n')
    with pytest.raises(LedgerError, match=r"journal\.jsonl:2: .*Expecting value: line 1 column 10 \(char 9\)"):
        replay(path)


def read_without_a_key(on_within: list[bool]) -> None:
    with collector_paused():
        on_within.append(gc.isenabled())
        raise KeyError


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_as_it_was_also_after_an_error(was_on: bool) -> None:
    try:
        (gc.enable if was_on else gc.disable)()
        on_within = []
        with pytest.raises(KeyError):
            read_without_a_key(on_within)
        assert on_within == [False]
        assert gc.isenabled() == was_on
    finally:
        gc.enable()


# -- the same answers: what is given out

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json_values, min_size=1), st.lists(st.dictionaries(st.text(), json_values)))
def test_a_listing_is_the_whole_document_with_an_item_a_line(head: dict[str, Any], items: list[dict[str, Any]]) -> None:
    head.pop("items", None)
    head["schema"] = 1
    text = "".join(json_listing(head, "items", items))
    assert json.loads(text) == {**head, "items": items}
    assert text.splitlines()[-len(items) - 2 :][-2:] == [" ]", "}"]
    assert [
        json.loads(line.strip().rstrip(",")) for line in text.split("\n")[len(text.split("\n")) - 2 - len(items) : -2]
    ] == items


def test_what_is_not_finite_becomes_null_in_a_listing() -> None:
    text = "".join(json_listing({"a": 1}, "items", [{"x": math.inf, "y": [math.nan, {"z": -math.inf}], "w": (1.0,)}]))
    assert json.loads(text)["items"] == [{"x": None, "y": [None, {"z": None}], "w": [1.0]}]


def not_finite_rows() -> list[CellRow]:
    rows = origin_rows()
    record = rows[0].record
    assert record is not None
    odd = replace(record, evidence={"step_s": math.inf}, metrics=replace(record.metrics, tpot_ms=math.nan))
    return [replace(rows[0], record=odd), *rows[1:]]


@pytest.mark.parametrize("rows_of", [origin_rows, smoke_rows, trouble_rows, not_finite_rows, list])
def test_the_document_in_parts_is_the_whole_one(rows_of: Callable[[], list[CellRow]]) -> None:
    rows = rows_of()
    whole = json.loads(json.dumps(status_document("runs/n\u00e9", "stopped", rows, elapsed_s=1.5)))
    assert json.loads("".join(status_parts("runs/n\u00e9", "stopped", rows, elapsed_s=1.5))) == whole


def foreign_rows() -> list[CellRow]:
    return [*trouble_rows(), row(99, 1, Verdict.CRASHED, variant="gr\u00f6\u00dfe \u6771", cause="\u6771\u4eac")]


def consoles(width: int) -> Iterator[Console]:
    for more in (
        {},
        {"force_terminal": True, "color_system": "standard"},
        {"force_terminal": True, "color_system": "truecolor", "no_color": True},
        {"record": True, "color_system": None},
    ):
        yield Console(file=io.StringIO(), width=width, highlight=False, legacy_windows=False, **more)  # type: ignore[arg-type]  # one of each


@pytest.mark.parametrize("width", [20, 72, 140, 250])
@pytest.mark.parametrize("rows_of", [origin_rows, smoke_rows, foreign_rows])
def test_a_row_is_shown_as_rich_would_lay_it_out(rows_of: Callable[[], list[CellRow]], width: int) -> None:
    rows = rows_of()
    kept = Columns(rows).without()
    for console in consoles(width):
        lines = RowLines(console, width, kept)
        for number, one in enumerate(rows):
            quick, slow = console.options, console.options
            line = lines.line(number, one)
            shown = list(console.render(line, quick) if not isinstance(line, tuple) else line)
            text = table_line(kept, [column.texts[number] for column in kept], styles_of(lines, one))
            laid_out = list(console.render(text, slow))
            assert console._render_buffer(shown) == console._render_buffer(laid_out)


def styles_of(lines: RowLines, one: CellRow) -> list[str]:
    from orchestrator.report.row_lines import _styles  # what the quick way uses as well

    return _styles(lines._kept, one)


def test_columns_are_the_same_whatever_was_asked_for_before() -> None:
    rows = origin_rows()
    asked = Columns(rows)
    for keys in (frozenset(), {"evidence"}, {"cause", "evidence"}, {"tps"}, frozenset()):
        assert asked.without(frozenset(keys)) == Columns(rows).without(frozenset(keys))


# -- the commands


def loaded_by(*arguments: str) -> set[str]:
    """The packages that a command has loaded when it ends."""
    script = (
        "import sys, contextlib, io\n"
        "from orchestrator.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    code = main(sys.argv[1:], standalone_mode=False)\n"
        "print(' '.join({name.partition('.')[0] for name in sys.modules} | set(sys.modules)))\n"
    )
    guarded = script.replace("    code =", "    with contextlib.suppress(SystemExit):\n        code =")
    done = subprocess.run(
        [sys.executable, "-c", guarded, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


def test_each_command_loads_what_it_needs(small: tuple[Path, Path]) -> None:
    plan_file, run = map(str, small)
    heavy = {"structlog", "huggingface_hub", "mlx", "orchestrator.sweep", "orchestrator.replay"}
    assert "orchestrator.plan" in loaded_by("plan", plan_file)
    assert not loaded_by("plan", plan_file) & (heavy | {"rich", "psutil", "orchestrator.ledger"})
    assert not loaded_by("status", run) & (heavy | {"psutil"})
    assert not loaded_by("status", run, "--json") & (heavy | {"psutil", "rich"})
    assert not loaded_by("resume", run, "--plain") & heavy


def wallfinder(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_sweep_with_nothing_left_says_so_and_starts_nothing(small: tuple[Path, Path]) -> None:
    path = small[1] / "journal.jsonl"
    before = path.read_bytes()
    done = wallfinder("resume", str(small[1]), "--plain")
    assert done.returncode == 0, done.stderr
    assert done.stdout == wallfinder("status", str(small[1])).stdout
    assert done.stderr == "wallfinder: 300 cells answered\n"

    added = path.read_bytes().removeprefix(before).splitlines()
    events = [json.loads(line) for line in added]
    assert [event["event"] for event in events] == ["sweep.started", "sweep.ended"]
    assert events[0]["host"]["memory_bytes"] > 0
    assert events[0]["host"]["backstops"] == {}  # none was tried, since nothing was to be run
    assert events[1] == {**events[1], "state": "complete", "exit_code": 0, "reason": "300 cells answered"}
    assert wallfinder("resume", str(small[1]), "--plain", "--fail-on", "wall").returncode == 1


def test_the_benchmark_runs(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    done = bench("scale", "--cells", "200", "--runs", "1", "--json", results)
    assert done.returncode == 0, done.stderr
    assert [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]] == [
        "plan", "plan --json", "status", "status --json", "resume",
    ]  # fmt: skip
    assert len(json.loads(results.read_text())) == 5


def test_a_sweep_ends_with_the_table_that_its_files_give(tmp_path: Path) -> None:
    """It keeps less of a record than it writes; nothing of what it shows may be among what it does not keep."""
    with desk(tmp_path) as at:
        faults = {"c00064-b002": "abort:oom", "c00064-b004": "segfault"}
        broken = at.run(at.plan(faults=faults, reps=3, gen_tokens=20), "--plain")
        assert broken.stdout == at.call("status", at.runs / "night").stdout
        assert "hit_the_wall: metal_oom" in broken.stdout
        model = {"synthetic": {**tiny.LLAMA, "dtype": "float32"}}
        real = at.run(at.plan("real", model=model, engine="batched", batches=[1, 2]), "--plain")
        assert real.stdout == at.call("status", at.runs / "real").stdout
        assert "prefill: " in real.stdout


def test_the_benchmarks_journal_holds_every_cell_and_every_kind(small: tuple[Path, Path]) -> None:
    plan = load_plan(small[0])
    records = [CellRecord.from_json(event["record"]) for event in journal(plan) if event["event"] == "cell.ended"]
    assert [record.cell_id for record in records] == [cell.cell_id for cell in plan.cells()]
    assert {record.verdict for record in records} == {Verdict.COMPLETED, Verdict.HIT_THE_WALL, Verdict.TIMED_OUT}
    assert Metrics() in [record.metrics for record in records]

"""What public reports of failing cells tell of and no other file tests, and the page that lists them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from simulated_cell import GB, HOST, Cell, stopped
from sweeps import desk
from test_verdict import BUS, KILL, SEGV, TERM, facts, released

from orchestrator.verdict import judge

ROOT = Path(__file__).parents[1]
ABSENT = {
    "preexec_fn": "forks with Python in between",
    "os.fork(": "forks",
    "multiprocessing": "forks by default on some systems",
    "os.system": "starts programs by name",
    "shell=True": "starts programs by name",
    "memory_full_info": "may block for ever",
    "memory_maps": "may block for ever",
    "memory_percent": "may block for ever",
    "thermalState": "says nothing on some systems",
    "set_memory_limit": "is a guideline, no bound",
}


@pytest.mark.parametrize("mac", [False, True])
def test_swap_that_grows_while_a_model_loads_is_a_wall(mac: bool) -> None:
    """A model over the GPU's share of memory is swapped out while its weights are still being read."""
    cell = Cell(HOST, mac=mac, available_frac=0.05, phase="load", chunks=300).run(2)
    cell.mark()
    cell.run(60, swap_out=300e6, swap_in=60e6)
    cause, after_s = stopped(cell, 1002.0)
    assert cause == "swap_growth"
    assert after_s <= 20.0


def test_swap_of_a_machine_without_any_is_no_division_by_zero() -> None:
    cell = Cell(HOST, swap_used_bytes=0, footprint_bytes=2 * GB).run(20)
    assert cell.lives()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exit_status": KILL}, "who sent SIGKILL"),
        ({"exit_status": BUS}, "disk with the model"),
        ({"exit_status": SEGV}, "worker.log"),
        ({"exit_status": 3}, "worker.log"),
        ({"exit_status": KILL, "released": released("stalled")}, "restart the machine"),
        ({"exit_status": TERM, "released": released("time_limit")}, "cell_time_limit"),
        ({"exit_status": KILL, "released": released("swap_growth")}, "smaller batch"),
    ],
)
def test_the_person_is_told_what_to_change(changes: dict[str, Any], words: str) -> None:
    assert words in judge(facts(**changes)).remedy


# fault -> attempts and verdict with two retries of crashes: only what may end otherwise is tried again
ATTEMPTS = {
    "abort:victim": (3, "crashed", "gpu_victim"),
    "abort:hang": (3, "crashed", "gpu_hang"),
    "abort:timeout": (3, "crashed", "gpu_timeout"),
    "abort:resource": (3, "crashed", "metal_resource_limit"),
    "abort:interactivity": (1, "crashed", "gpu_timeout"),
    "abort:page_fault": (1, "crashed", "gpu_page_fault"),
    "abort:buffer": (1, "hit_the_wall", "metal_oom"),
    "abort:malloc": (1, "hit_the_wall", "metal_oom"),
    "error:No safetensors found in /m": (1, "failed", "model_not_found"),
}


def test_only_what_may_end_otherwise_is_tried_again(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        # Each in a variant of its own: the last one stops its variant.
        variants = [{"name": f"v{n}", "faults": {"*": fault}} for n, fault in enumerate(ATTEMPTS)]
        at.run(at.plan(batches=[1], reps=1, variants=variants, retries={"crashed": 2, "failed": 2}))
        cells = {cell["variant"]: cell for cell in at.status()["cells"]}
        found = [(c["attempts"], c["verdict"], c["cause"]) for c in (cells[f"v{n}"] for n in range(len(ATTEMPTS)))]
        assert dict(zip(ATTEMPTS, found, strict=True)) == ATTEMPTS


def _by_whole_path(text: str) -> bool:
    """Whether every command that a module names (a tuple of words that begins a line or an entry) is a whole path."""
    programs = re.findall(r"(?:= |: )\(\"([^\"]+)\", \"-", text)
    return bool(programs) and all(program.startswith(("/usr/bin/", "/usr/sbin/")) for program in programs)


def test_no_call_that_hangs_forks_or_needs_a_program_on_the_path() -> None:
    for folder in ("orchestrator", "worker"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for call, why in ABSENT.items():
                assert call not in text, f"{path}: {call} {why}"
            if "subprocess.Popen(" in text or "subprocess.run(" in text:
                started = "sys.executable" in text or _by_whole_path(text)
                assert started, f"{path} starts something that is neither Python nor named by its whole path"


def test_the_page_names_no_test_that_is_not_there() -> None:
    page = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    _, _, reports = page.partition("## What public reports tell of")
    named = set(re.findall(r"\btest_\w+", reports))
    there = {
        name for path in (ROOT / "tests").glob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 50
    assert named <= there, named - there


def test_every_report_that_is_said_to_be_met_is_shown_by_a_test() -> None:
    page = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    _, _, reports = page.partition("## What public reports tell of")
    rows = [line for line in reports.splitlines() if line.startswith("|") and not line.startswith(("| reported", "|-"))]
    assert len(rows) >= 78
    for row in rows:
        _, reported, here, tests, _ = (part.strip() for part in row.split("|"))
        words = here.replace("**", "")
        assert words.startswith(("recognised", "survived", "ruled out", "later")), reported
        if words.startswith(("recognised", "survived")):
            assert "test_" in tests, reported

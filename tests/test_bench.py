"""The benchmarks work: each says what it does, and runs in its smallest form. docs/benchmarks.md has their results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
ON_LINUX = ("detection", "false_kills", "machine_wall", "overhead", "soak")
ANYWHERE = ("fidelity", "scale", "sweep_cost")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")


def bench(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a benchmark; its workers find this checkout too, wherever they are started."""
    return subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=linux) for name in ON_LINUX), *ANYWHERE])
def test_each_says_what_it_does(name: str) -> None:
    done = bench(name, "--help")

    assert done.returncode == 0, done.stderr
    assert f"python -m bench.{name}" in done.stdout
    assert f"python -m bench.{name}" in (REPOSITORY / "docs" / "benchmarks.md").read_text(encoding="utf-8")


@linux
@pytest.mark.slow
def test_healthy_cells_are_counted() -> None:
    done = bench("false_kills", "--only", "tiny", "--contexts", "1")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "| **all** | 8 | 8 | 0 |" in done.stdout


@linux
@pytest.mark.slow
def test_overhead_is_a_ratio_with_its_interval() -> None:
    done = bench("overhead", "--pairs", "4")

    assert done.returncode == 0, done.stderr
    ratio = float(done.stdout.splitlines()[2].split("|")[2])
    assert 0.3 < ratio < 3.0  # that it is a ratio of the right things; how near to 1 is for a quiet machine to say
    assert "4 pairs" in done.stdout


@linux
@pytest.mark.slow
def test_a_short_soak_loses_nothing() -> None:
    done = bench("soak", "--cells", "60")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 cells; another verdict than the fault's: 0; left behind: 0" in done.stdout


@linux
@pytest.mark.slow
@pytest.mark.wall
def test_walls_are_timed() -> None:
    done = bench("detection", "--runs", "1", "--rival-runs", "0")
    if done.returncode == 1 and "no wall can be made here" in done.stderr:
        assert os.geteuid() != 0 or "swap" in done.stderr or "controller" in done.stderr
        pytest.skip(done.stderr.strip())

    assert done.returncode == 0, done.stderr
    # each of the three is over and on record as a wall: ended by the watchdog, or by a kernel that was faster
    assert done.stdout.count("| 1 | 1 | 0 |") + done.stdout.count("| 1 | 0 | 1 | kernel_oom |") == 3, done.stdout

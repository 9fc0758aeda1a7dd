"""When a host is back near its baseline, by tables of readings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.reclaim import Baseline, Step, moving, unsettled
from orchestrator.watchdog.sample import HostReading

GB = 1_000_000_000
MEMORY = 16 * GB
CALM = HostReading(
    memory_total_bytes=MEMORY,
    memory_available_bytes=12 * GB,
    swap_used_bytes=GB,
    swapin_total_bytes=5 * GB,
    swapout_total_bytes=7 * GB,
    pressure_stall_total_s=3.0,
    pressure_level=1,
    wired_bytes=2 * GB,
)


def judge(after: HostReading, *, before: HostReading = CALM, seconds: float = 0.5, still_s: float = 0.0) -> str | None:
    return unsettled(Baseline(MEMORY, CALM), Step(before, after, seconds, still_s))


def test_a_host_as_it_was_is_settled() -> None:
    assert judge(CALM) is None


def test_a_little_less_memory_makes_no_difference() -> None:
    assert judge(replace(CALM, memory_available_bytes=12 * GB - GB // 2)) is None


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (replace(CALM, memory_available_bytes=8 * GB), "4.00 GB of memory have not come back"),
        (replace(CALM, wired_bytes=6 * GB), "4.00 GB are still wired"),
        (replace(CALM, swapin_total_bytes=5 * GB + GB // 10), "still swapping in 200.0 MB/s"),
        (replace(CALM, swapout_total_bytes=7 * GB + GB // 10), "still swapping out 200.0 MB/s"),
        (replace(CALM, pressure_level=2), "memory pressure is still at level 2"),
        (replace(CALM, pressure_stall_total_s=3.1), "processes still stall on memory 20 % of the time"),
    ],
)
def test_each_reading_can_keep_the_next_cell_waiting(after: HostReading, words: str) -> None:
    assert judge(after) == words


def test_memory_that_stands_still_below_the_baseline_counts_as_settled_after_a_while() -> None:
    low = replace(CALM, memory_available_bytes=8 * GB)
    assert judge(low, before=low, still_s=4.0) is not None
    assert judge(low, before=low, still_s=5.0) is None


def test_paging_and_pressure_have_to_be_over_in_any_case() -> None:
    assert judge(replace(CALM, pressure_level=4), still_s=60.0) is not None
    assert judge(replace(CALM, swapin_total_bytes=6 * GB), still_s=60.0) is not None


def test_swap_that_is_merely_full_does_not_matter() -> None:
    assert judge(replace(CALM, swap_used_bytes=9 * GB)) is None


def test_readings_that_this_platform_does_not_have_keep_nobody_waiting() -> None:
    nothing = HostReading()
    assert unsettled(Baseline(MEMORY, nothing), Step(nothing, nothing, 0.5, 0.0)) is None


def test_memory_moves_when_it_changes_by_more_than_a_trifle() -> None:
    less = replace(CALM, memory_available_bytes=12 * GB - GB)
    assert moving(Step(CALM, less, 0.5, 0.0), MEMORY)
    assert not moving(Step(CALM, replace(CALM, memory_available_bytes=12 * GB - 1000), 0.5, 0.0), MEMORY)

"""When a host is back near its baseline, by tables of readings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.reclaim import Baseline, CameBack, Step, came_back, moving, unsettled
from orchestrator.watchdog.sample import HostReading

GB = 1_000_000_000
MEMORY = 16 * GB
# What each platform's probe fills in, and nothing else.
LINUX = HostReading(
    memory_total_bytes=MEMORY,
    memory_available_bytes=3 * GB,
    swap_used_bytes=GB,
    swapin_total_bytes=5 * GB,
    swapout_total_bytes=7 * GB,
    pressure_stall_total_s=3.0,
)
MAC = HostReading(
    memory_total_bytes=MEMORY,
    swap_used_bytes=GB,
    swapin_total_bytes=5 * GB,
    swapout_total_bytes=7 * GB,
    pressure_level=1,
    memory_free_frac=0.6,
    compressor_bytes=GB,
    wired_bytes=2 * GB,
)


def judge(
    before: HostReading, seconds: float = 0.5, still_s: float = 0.0, base: HostReading | None = None, **after: float
) -> str | None:
    step = Step(before, replace(before, **after), seconds, still_s)
    return unsettled(Baseline(MEMORY, base or before), step)


@pytest.mark.parametrize("calm", [LINUX, MAC])
def test_a_host_as_it_was_is_settled(calm: HostReading) -> None:
    assert judge(calm) is None


def test_a_little_less_memory_makes_no_difference() -> None:
    assert judge(LINUX, memory_available_bytes=3 * GB - GB // 2) is None


@pytest.mark.parametrize(
    ("calm", "after", "words"),
    [
        (LINUX, {"memory_available_bytes": GB}, "2.00 GB of memory have not come back"),
        (LINUX, {"swapin_total_bytes": 5 * GB + GB // 10}, "still swapping in 200.0 MB/s"),
        (LINUX, {"pressure_stall_total_s": 3.1}, "processes still stall on memory 20 % of the time"),
        (MAC, {"swapout_total_bytes": 7 * GB + GB // 10}, "still swapping out 200.0 MB/s"),
        (MAC, {"wired_bytes": 6 * GB}, "4.00 GB are still wired"),
        (MAC, {"pressure_level": 2}, "memory pressure is still at level 2"),
    ],
)
def test_each_reading_can_keep_the_next_cell_waiting(calm: HostReading, after: dict[str, float], words: str) -> None:
    assert judge(calm, **after) == words


def test_memory_that_stands_still_below_the_baseline_counts_as_settled_after_a_while() -> None:
    low = replace(LINUX, memory_available_bytes=GB)
    assert judge(low, base=LINUX, still_s=4.0) is not None
    assert judge(low, base=LINUX, still_s=5.0) is None


def test_wired_memory_that_does_not_come_back_is_never_settled() -> None:
    left = replace(MAC, wired_bytes=10 * GB)
    assert judge(left, base=MAC, still_s=100.0) == "8.00 GB are still wired"


def test_paging_and_pressure_have_to_be_over_in_any_case() -> None:
    assert judge(MAC, pressure_level=4, still_s=60.0) is not None
    assert judge(LINUX, swapin_total_bytes=6 * GB, still_s=60.0) is not None


def test_swap_that_is_merely_full_does_not_matter() -> None:
    assert judge(MAC, swap_used_bytes=9 * GB) is None


def test_a_bounded_neighbour_that_pages_keeps_nobody_waiting() -> None:
    """On a Linux host with memory to spare, swap traffic is that of a control group with a bound of its own."""
    roomy = replace(LINUX, memory_available_bytes=12 * GB)
    assert judge(roomy, swapin_total_bytes=6 * GB, pressure_stall_total_s=3.2) is None
    assert judge(LINUX, swapin_total_bytes=6 * GB) == "still swapping in 2000.0 MB/s"


def test_readings_that_this_platform_does_not_have_keep_nobody_waiting() -> None:
    assert judge(HostReading()) is None


@pytest.mark.parametrize(("calm", "key"), [(LINUX, "memory_available_bytes"), (MAC, "wired_bytes")])
def test_memory_moves_when_it_changes_by_more_than_a_trifle(calm: HostReading, key: str) -> None:
    value = getattr(calm, key)
    assert moving(Step(calm, replace(calm, **{key: value - GB}), 0.5, 0.0), MEMORY)
    assert not moving(Step(calm, replace(calm, **{key: value - 1000}), 0.5, 0.0), MEMORY)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (LINUX, {"memory_available_bytes": 5 * GB, "swap_used_bytes": 0}, CameBack(2 * GB, GB, None)),
        (LINUX, {"memory_available_bytes": 2 * GB, "swap_used_bytes": 3 * GB}, CameBack(-GB, -2 * GB, None)),
        (MAC, {"wired_bytes": GB}, CameBack(None, 0, GB)),
    ],
)
def test_what_a_pause_gave_back(first: HostReading, last: dict[str, int], expected: CameBack) -> None:
    assert came_back(first, replace(first, **last)) == expected  # type: ignore[arg-type] # a table's values

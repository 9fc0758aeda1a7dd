"""Tests of the policy where nothing moves: how patient it is, what it has seen of memory, and for how long."""

from __future__ import annotations

import dataclasses

import pytest
from simulated_cell import BOUND, GB, HOST, MB, Cell, stopped

from orchestrator.watchdog.policy import decide, memory_evidence


def test_worker_that_hangs_is_stalled_at_the_hard_limit() -> None:
    cell = Cell(HOST).run(4)
    cell.run(100, frozen=True)

    cause, after_s = stopped(cell, cell.progress_at_s)
    assert cause == "stalled"
    assert after_s == pytest.approx(HOST.stall_hard_s, abs=0.3)
    assert memory_evidence(cell.state, cell.now_s) == {}


def test_stall_with_memory_evidence_acts_at_the_soft_limit() -> None:
    limits = dataclasses.replace(HOST, swap_hard_bytes=20 * GB)
    cell = Cell(limits, available_frac=0.05, phase="prefill").run(1)
    cell.mark()
    cell.run(100, swap_out=100e6, swap_in=20e6)

    cause, after_s = stopped(cell, cell.progress_at_s)
    assert cause == "swap_growth"
    assert after_s == pytest.approx(HOST.stall_soft_s + limits.corroborated_s, abs=0.5)
    assert cell.stop is not None
    assert "stalled" in str(cell.stop.evidence["signals"])
    assert "swap_growth" in memory_evidence(cell.state, cell.now_s)


def test_chunks_that_grow_dearer_with_depth_are_no_stall() -> None:
    cell = Cell(HOST, phase="prefill", chunks=12)
    for seconds in (10, 18, 30, 50, 80, 120, 170):
        cell.run(seconds)
        cell.mark()

    assert cell.lives()


def test_first_mark_of_load_and_prefill_gets_more_patience() -> None:
    for phase in ("starting", "load", "prefill", "warmup"):
        cell = Cell(HOST, phase=phase).run(4 * HOST.stall_hard_s)
        assert cell.lives(), phase
        cell.run(2 * HOST.stall_hard_s)
        assert stopped(cell, 1000.0) == ("stalled", pytest.approx(5 * HOST.stall_hard_s, abs=0.3)), phase


@pytest.mark.parametrize("phase", ["prefill", "warmup"])
def test_slow_first_chunks_on_a_mac_under_light_pressure_are_no_stall(phase: str) -> None:
    """2,048 tokens of eight rows of an 8B model take 25 s; the level is 2, nothing is swapped."""
    cell = Cell(HOST, mac=True, available_frac=0.3, level=2, phase=phase, chunks=4)
    for _ in range(4):
        cell.run(25)
        cell.mark()

    assert cell.lives()


def test_slow_chunks_teach_how_long_the_next_may_take() -> None:
    cell = Cell(HOST, mac=True, available_frac=0.3, level=2, phase="prefill", chunks=9)
    for seconds in (25, 40, 55):  # over the soft limit of 20 s, under the hard one of 60 s
        cell.run(seconds)
        cell.mark()
    cell.run(219)
    assert cell.lives()

    cell.run(30)
    cause, after_s = stopped(cell, cell.progress_at_s)
    assert cause == "stalled"
    assert after_s == pytest.approx(4 * 55 + HOST.corroborated_s, abs=0.5)
    assert cell.stop is not None
    assert cell.stop.evidence["rule"] == "slow and memory"


def test_mark_over_the_hard_limit_teaches_nothing() -> None:
    """Known chunks of 1 s: 60 s without a mark end the cell, and had it lived, its next limit would be as before."""
    cell = Cell(HOST, phase="prefill", chunks=9)
    for _ in range(3):
        cell.run(1)
        cell.mark()
    cell.run(59)
    cell.gap(5)  # a pause: not counted against the worker
    cell.tick()
    cell.mark()
    cell.tick()
    assert cell.state.pace is not None
    assert cell.state.history.slowest_mark_s["prefill"] == pytest.approx(1, abs=0.2)


def test_evidence_of_a_full_mac_names_each_figure_by_itself() -> None:
    """The level still says 1; only the free memory tells, and its lowest is what counts."""
    cell = Cell(HOST, mac=True, available_frac=0.3).run(4)
    for frac in (0.08, 0.05, 0.07):
        cell.available_frac = frac
        cell.run(1)

    assert cell.lives()
    assert memory_evidence(cell.state, cell.now_s) == {"pressure_level": 1, "available_frac": 0.05}


def test_evidence_of_a_stalled_host_holds_the_largest_share() -> None:
    cell = Cell(HOST, available_frac=0.1).run(4).run(4, stalled=0.3).run(2, stalled=0.1)

    seen = memory_evidence(cell.state, cell.now_s)
    assert seen == {"pressure_stall_frac": pytest.approx(0.3), "available_frac": pytest.approx(0.1)}


def test_evidence_of_a_mac_that_only_shows_its_compressor() -> None:
    cell = Cell(HOST, mac=True, level=0, available_frac=0.3).run(2, compress=2e9).run(2, decompress=500e6)
    host = dataclasses.replace(cell.sample().host, pressure_level=None, memory_free_frac=None)  # type: ignore[type-var]
    state, _ = decide(HOST, cell.state, dataclasses.replace(cell.sample(), host=host))

    assert memory_evidence(state, cell.now_s)["compressor_growth_bytes"] == pytest.approx(4 * GB, rel=0.1)


# -- stalls of tasks while something was measured


def test_waiting_for_memory_counts_while_something_is_measured() -> None:
    cell = Cell(HOST, available_frac=0.1, phase="load").run(10, stalled=0.3)
    cell.enter("warmup", chunks=1).run(5)
    assert cell.state.measured_stall_s == 0.0

    cell.enter("prefill", chunks=1).run(10, stalled=0.03)
    cell.mark().enter("decode").run(10, stalled=0.01)
    assert cell.state.measured_stall_s == pytest.approx(0.4, rel=0.05)
    assert cell.lives()


def test_neighbours_that_wait_for_memory_are_not_counted() -> None:
    """The host has 70 % available: whoever waits does so for a bound of its own."""
    cell = Cell(HOST).run(20, stalled=0.4)
    assert cell.state.measured_stall_s == 0.0

    bounded = Cell(BOUND, bounded=True, footprint_bytes=300 * MB, available_frac=0.01).run(20, stalled=0.4)
    assert bounded.state.measured_stall_s == 0.0


def test_a_mac_has_no_such_count() -> None:
    assert Cell(HOST, mac=True, available_frac=0.3).run(5).state.measured_stall_s is None


def test_memory_evidence_is_forgotten_after_ten_seconds() -> None:
    cell = Cell(dataclasses.replace(HOST, swap_hard_bytes=20 * GB), available_frac=0.05).run(3)
    cell.run(5, swap_out=200e6)
    assert list(memory_evidence(cell.state, cell.now_s)) == ["swap_growth"]

    cell.run(14)
    assert cell.lives()
    assert memory_evidence(cell.state, cell.now_s) == {}


def test_a_first_chunk_that_smaller_cells_speak_for_gets_no_more_time_than_they_say() -> None:
    for expected_s, limit_s in ((0.5, HOST.stall_hard_s), (20.0, 8 * 20.0)):
        limits = dataclasses.replace(HOST, expected_chunk_s=expected_s)
        for phase in ("prefill", "warmup"):
            cell = Cell(limits, phase=phase).run(limit_s - 1)
            assert cell.lives(), phase
            cell.run(3)
            assert stopped(cell, cell.progress_at_s)[0] == "stalled"


def test_a_load_is_not_held_against_chunks() -> None:
    cell = Cell(dataclasses.replace(HOST, expected_chunk_s=0.5), phase="load").run(4 * HOST.stall_hard_s)

    assert cell.lives()

"""Tests of the policy by played cells: true walls are ended in time and by name, near misses live on."""

from __future__ import annotations

import dataclasses
import json

import pytest
from simulated_cell import BOUND, GB, HOST, MB, Cell, stopped

from orchestrator.watchdog.limits import Limits
from orchestrator.watchdog.policy import CAUSES, State, Stop, decide, memory_evidence
from orchestrator.watchdog.recording import SampleReader, encode_sample

# The wall of 16 rows in 400 MB, as measured: steps of 2.2 s, 240 MB/s of swap-in, PSI 5 %.
WALL = {"swap_in": 240e6, "swap_out": 240e6, "own_in": 80e6, "stalled": 0.05}


# -- true walls


def test_measured_wall_of_a_bounded_worker_is_ended_within_seconds() -> None:
    cell = Cell(BOUND, bounded=True, footprint_bytes=300 * MB).run(4, own_out=0)
    cell.run(1.0, own_out=200e6, frozen=True)
    wall_s = cell.progress_at_s
    cell.run(20, step_s=2.2, **WALL)

    cause, after_s = stopped(cell, wall_s)
    assert cause == "swap_growth"
    assert after_s <= 4.0
    assert cell.stop is not None
    assert cell.stop.evidence["rule"] == "slow and memory"
    assert cell.stop.evidence["swap_growth_bytes"] == pytest.approx(200e6)
    assert cell.stop.evidence["step_reference_s"] == pytest.approx(0.2)


def test_cell_slow_from_its_first_step_is_held_against_the_prediction() -> None:
    cell = Cell(BOUND, bounded=True, footprint_bytes=300 * MB, phase="prefill").run(1.5, own_out=100e6, own_in=80e6)
    cell.enter("decode")
    cell.run(20, step_s=2.2, **WALL)

    cause, after_s = stopped(cell, cell.progress_at_s if cell.total_steps == 0 else 1001.5)
    assert cause == "swap_growth"
    assert after_s <= 3.0


def test_slow_from_the_first_step_without_any_memory_sign_needs_twice_the_prediction() -> None:
    predicted = dataclasses.replace(HOST, expected_step_s=0.1)

    assert Cell(predicted).run(60, step_s=1.0).lives()  # 10 x: the prediction may be wrong
    cell = Cell(predicted).run(120, step_s=1.5)  # 15 x
    assert stopped(cell, 1000.0)[0] == "step_inflation"


def test_wall_in_the_fill_before_any_step() -> None:
    cell = Cell(BOUND, bounded=True, footprint_bytes=300 * MB, phase="prefill")
    cell.run(1.0).run(30, own_out=20e6, own_in=1e6, swap_out=20e6)

    cause, after_s = stopped(cell, 1001.0)
    assert cause == "swap_growth"
    assert cell.stop is not None
    assert cell.stop.evidence["rule"] in ("alone", "memory twice")
    assert after_s <= 10.0


def test_of_several_hard_signs_the_most_telling_names_the_wall() -> None:
    """As measured: 630 MB of footprint in a bound of 400 MB is due first: it held before the swapping."""
    cell = Cell(BOUND, bounded=True, footprint_bytes=633 * MB, phase="warmup", chunks=3).run(1.0)
    cell.mark()
    cell.run(30, own_out=40e6, own_in=30e6)

    cause, after_s = stopped(cell, 1001.0)
    assert cause == "swap_growth"
    assert after_s <= 6.0
    assert cell.stop is not None
    assert "footprint" in str(cell.stop.evidence["signals"])


def test_machine_wide_wall_is_often_one_unfinished_step() -> None:
    """512 MB machine: the first step does not end; PSI 40-67 %, hardly anything available, steps were 3 s."""
    limits = Limits(memory_bytes=512 * MB, expected_step_s=3.0)
    cell = Cell(limits, available_frac=0.03, phase="prefill").run(2.0)
    cell.enter("decode")
    overdue_s = cell.now_s + 3.0
    cell.run(60, frozen=True, swap_in=20e6, swap_out=20e6, stalled=0.5)

    cause, after_s = stopped(cell, overdue_s)
    assert cause in ("swap_growth", "step_inflation", "memory_pressure")
    assert after_s <= 20.0


def test_wall_without_swap_is_told_by_pressure_and_pace() -> None:
    """Nothing can be swapped out: the file pages of the program itself are read again and again."""
    cell = Cell(HOST, available_frac=0.01).run(4)
    wall_s = cell.now_s
    cell.run(30, step_s=1.5, stalled=0.3)

    cause, after_s = stopped(cell, wall_s)
    assert cause == "step_inflation"
    assert after_s <= 5.0


def test_sustained_swap_growth_alone_is_a_wall() -> None:
    cell = Cell(HOST, available_frac=0.05).run(2)
    cell.run(60, swap_out=300e6, swap_in=60e6)

    assert stopped(cell, 1000.0)[0] == "swap_growth"


def test_mac_full_of_wired_memory_reads_normal_until_it_dies() -> None:
    cell = Cell(HOST, mac=True, available_frac=0.3).run(4)
    cell.available_frac = 0.02
    cell.run(20)

    cause, after_s = stopped(cell, 1004.0)
    assert cause == "memory_pressure"
    assert after_s <= HOST.pressure_sustained_s + 0.2


def test_mac_compressor_and_slow_steps_agree() -> None:
    cell = Cell(HOST, mac=True, available_frac=0.3).run(4, compress=700e6)
    cell.run(15, step_s=1.2, decompress=500e6)

    assert stopped(cell, 1004.0)[0] == "step_inflation"
    assert cell.stop is not None
    assert cell.stop.evidence["signals"] == "step_inflation+memory_pressure"


def test_footprint_over_its_limit_acts_alone_but_sustained() -> None:
    cell = Cell(HOST).run(2)
    cell.footprint_bytes = 23 * GB
    cell.run(HOST.footprint_sustained_s - 0.5)
    assert cell.lives()
    cell.run(1.0)

    assert stopped(cell, 1002.0)[0] == "footprint"


@pytest.mark.parametrize(("level", "waits"), [("warning", True), ("critical", False)])
def test_mac_pressure_level_acts_as_the_plan_says(level: str, waits: bool) -> None:
    cell = Cell(dataclasses.replace(HOST, pressure_level=level), mac=True, level=2)
    cell.run(20)

    assert (cell.stop is not None) is waits


# -- near misses


def test_idle_swap_of_earlier_programs_is_harmless() -> None:
    assert Cell(HOST, swap_used_bytes=20 * GB).run(30).lives()


def test_burst_that_pushed_out_idle_programs_is_harmless() -> None:
    """3 GB leave within 6 s and stay out: 12 % of memory, over the hard limit, but quiet afterwards."""
    cell = Cell(HOST, available_frac=0.1, phase="load").run(2).run(6, swap_out=500e6).run(60)

    assert cell.lives()


def test_burst_with_the_warning_level_of_a_mac_is_harmless() -> None:
    cell = Cell(HOST, mac=True, available_frac=0.3, phase="load").run(2)
    cell.level = 2
    cell.run(6, swap_out=500e6, compress=200e6)
    cell.level = 1

    assert cell.run(60).lives()


def test_cache_growth_makes_one_slow_step_in_256() -> None:
    cell = Cell(HOST).run(5)
    for _ in range(20):
        cell.run(4, step_s=0.2)
        cell.run(1.6, frozen=True)
        cell.finish_step(cell.now_s - cell.progress_at_s)

    assert cell.lives()


def test_cache_growth_under_light_paging_is_no_wall() -> None:
    """The copy takes 4 x a step while pages move: over the soft limit, but not for a second."""
    cell = Cell(HOST, available_frac=0.1).run(5, swap_out=60e6)
    for _ in range(10):
        cell.run(2, step_s=0.2, swap_out=15e6)
        cell.run(0.8, frozen=True, swap_out=15e6)
        cell.finish_step(0.8)

    assert cell.lives()


def test_co_tenant_that_doubles_the_step_time() -> None:
    cell = Cell(dataclasses.replace(HOST, expected_step_s=0.2)).run(5)

    assert cell.run(120, step_s=0.44).lives()


def test_co_tenant_and_a_bystander_that_swaps_within_its_own_bound() -> None:
    """Swap grows and tasks wait for memory, but the host has 70 % available: it is the bystander's wall."""
    cell = Cell(dataclasses.replace(HOST, expected_step_s=0.2)).run(5)
    cell.run(120, step_s=0.6, swap_out=50e6, swap_in=40e6, stalled=0.3)

    assert cell.lives()


def test_bounded_worker_beside_a_bystander_that_swaps() -> None:
    cell = Cell(BOUND, bounded=True, footprint_bytes=300 * MB).run(5)
    cell.run(120, step_s=0.4, swap_out=240e6, swap_in=240e6, stalled=0.3)

    assert cell.lives()


def test_short_steps_are_noise_whatever_their_ratio() -> None:
    cell = Cell(dataclasses.replace(HOST, expected_step_s=0.002)).run(2, step_s=0.002)

    assert cell.run(60, step_s=0.04).lives()


def test_large_worker_on_a_machine_at_ease_with_a_co_tenant() -> None:
    cell = Cell(HOST, footprint_bytes=22 * GB).run(5)

    assert cell.run(60, step_s=0.55).lives()


def test_suspended_laptop_starts_patience_anew() -> None:
    cell = Cell(HOST).run(5)
    cell.run(50, frozen=True)  # a stall in the making
    cell.gap(3600, asleep=True)
    cell.tick()
    cell.run(50, frozen=True)

    assert cell.lives()
    assert cell.state.suspended_s == pytest.approx(3600)
    cell.run(20, frozen=True)
    assert stopped(cell, 0.0)[0] == "stalled"


def test_pause_of_everything_is_not_counted_against_the_worker() -> None:
    """SIGSTOP of the whole machine: the monotonic clock runs on, no page moves."""
    cell = Cell(HOST).run(5)
    cell.gap(300)
    cell.tick(late_s=300)
    cell.run(30, frozen=True)

    assert cell.lives()


def test_stopped_worker_is_not_stalled() -> None:
    cell = Cell(HOST).run(5)
    cell.state_letter = "T"
    cell.run(200, frozen=True)
    cell.state_letter = "R"
    cell.progress_at_s = cell.now_s

    assert cell.run(10).lives()


def test_worker_stopped_for_a_second_is_not_inflated() -> None:
    cell = Cell(dataclasses.replace(HOST, expected_step_s=0.05), step_s=0.05).run(5)
    for _ in range(5):
        cell.state_letter = "T"
        cell.run(1.0, frozen=True)
        cell.state_letter = "R"
        cell.finish_step(1.0)
        cell.run(3, step_s=0.05)

    assert cell.lives()


def test_wall_clock_jumps_do_not_exist_here() -> None:
    """Only the boot clock and the monotonic clock are read; a jump back of the first is no suspend."""
    cell = Cell(HOST).run(5)
    cell.slept_s = -7200.0
    cell.run(5)

    assert cell.lives()
    assert cell.state.suspended_s == 0.0


# -- a late watchdog


def test_watchdog_that_thrashes_keeps_its_timers() -> None:
    """Ticks come two seconds late while pages move: that is evidence, not a pause."""
    limits = dataclasses.replace(HOST, swap_soft_bytes=23 * GB, swap_hard_bytes=23 * GB)
    cell = Cell(limits, available_frac=0.15).run(5)
    cell.run(30, step_s=3.0, swap_in=200e6, swap_out=200e6, tick_s=2.0, late_s=1.9)

    cause, after_s = stopped(cell, 1005.0)
    assert cause == "step_inflation"
    assert "watchdog_late" in str(cell.stop and cell.stop.evidence["signals"])
    assert after_s <= 10.0


def test_late_watchdog_on_a_busy_but_calm_machine_is_no_evidence() -> None:
    cell = Cell(HOST).run(5)
    cell.run(30, step_s=0.7, tick_s=1.3, late_s=1.2)

    assert cell.lives()
    assert memory_evidence(cell.state, cell.now_s) == {}


# -- limits and failures of the readings


def test_time_limit_without_memory_trouble() -> None:
    cell = Cell(dataclasses.replace(HOST, time_limit_s=30)).run(40)

    assert stopped(cell, 1000.1) == ("time_limit", pytest.approx(30, abs=0.2))


def test_three_blind_samples_fail_closed_and_two_do_not() -> None:
    cell = Cell(HOST).run(5)
    cell.blind = True
    cell.run(0.2)
    cell.blind = False
    assert cell.run(1).lives()

    cell.blind = True
    cell.run(0.3)
    assert cell.stop is not None
    assert cell.stop.cause == "blind"


def test_a_mac_without_its_own_readings_still_sees_growth() -> None:
    cell = Cell(HOST, mac=True, level=0, available_frac=0.3).run(2)

    assert stopped(cell.run(60, swap_out=300e6, swap_in=50e6), 1000.0)[0] == "swap_growth"


def test_condition_that_lapses_starts_over() -> None:
    cell = Cell(HOST).run(2)
    for _ in range(10):
        cell.footprint_bytes = 23 * GB
        cell.run(HOST.footprint_sustained_s - 1)
        cell.footprint_bytes = 2 * GB
        cell.run(0.2)

    assert cell.lives()


def test_recorded_samples_give_the_actions_that_were_taken_live() -> None:
    """Through the form in which they are kept: what a recording leaves out must not matter."""
    cell = Cell(BOUND, bounded=True, footprint_bytes=300 * MB).run(4, own_out=0)
    cell.run(20, step_s=2.2, own_out=40e6, **{**WALL, "stalled": 0.06})  # no figure on a threshold
    assert isinstance(cell.played[-1][1], Stop)

    reader, state, steps_before = SampleReader(), State(), 0
    for sample, live in cell.played:
        recorded = json.loads(json.dumps(encode_sample(sample, steps_before)))
        steps_before = sample.progress.total_steps if sample.progress else steps_before
        state, replayed = decide(BOUND, state, reader.decode(recorded))
        assert type(replayed) is type(live)
        if isinstance(replayed, Stop) and isinstance(live, Stop):
            assert replayed.cause == live.cause
            for name, value in live.evidence.items():  # times are kept to the microsecond
                assert replayed.evidence[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-3))


def test_order_of_causes_is_what_the_documents_say() -> None:
    assert CAUSES == ("swap_growth", "step_inflation", "stalled", "memory_pressure", "footprint")


def test_fast_steps_among_slow_ones_do_not_start_patience_anew() -> None:
    """Slow and fast in turn: a wall that begins."""
    cell = Cell(HOST, available_frac=0.03).run(10)
    began_s = cell.now_s
    for _ in range(10):
        cell.run(1.2, step_s=1.2, swap_out=400e6, swap_in=50e6)
        cell.run(0.2, step_s=0.2, swap_out=400e6, swap_in=50e6)

    cause, after_s = stopped(cell, began_s)
    assert cause == "swap_growth"
    assert after_s < 4.0

"""Amounts, durations and evidence in words."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.evidence import figure, figures, with_units
from orchestrator.quantities import amount, count_of, duration, printable, shortened


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (17, "17 B"),
        (96_000, "96 kB"),
        (41_200_000, "41 MB"),
        (99_499_999, "99 MB"),
        (99_500_000, "0.10 GB"),
        (700_000_000, "0.70 GB"),
        (9_994_999_999, "9.99 GB"),
        (15_600_000_000, "15.6 GB"),
        (414 * 2**30, "444.5 GB"),
        (-700_000_000, "-0.70 GB"),
    ],
)
def test_amount(count: int, text: str) -> None:
    assert amount(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.0381, "38.1 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (2.31, "2.3 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (303, "5 min 03 s"),
        (3720, "1 h 02 min"),
        (100_000, "27 h 46 min"),
        (math.inf, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_count_of() -> None:
    assert (count_of(1, "cell"), count_of(0, "cell"), count_of(1200, "cell")) == (
        "1 cell",
        "0 cells",
        "1,200 cells",
    )


@given(st.text())
def test_printable_is_harmless_and_keeps_what_is(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    if text.isprintable() and "  " not in text and text == text.strip():
        assert shown == text


@given(st.text(max_size=30), st.integers(0, 40))
def test_shortened(text: str, width: int) -> None:
    short = shortened(text, width)
    assert len(short) <= max(width, 0)
    assert short == text or len(text) > width


def test_the_figures_that_tell_most_come_first() -> None:
    evidence = {
        "rule": "slow and memory",
        "held_s": 1.0,
        "swap_soft_bytes": 4_000_000,
        "step_inflation": 11.3,
        "step_s": 2.31,
        "swap_growth_bytes": 700_000_000,
        "progress_age_s": 2.0,
        "footprint_bytes": 380_000_000,
    }
    assert figures(evidence) == "swap +0.70 GB, step 2.3 s, 11x"
    assert figures(evidence, "stalled") == "no progress for 2.0 s, swap +0.70 GB, step 2.3 s"
    assert figures(evidence, "footprint") == "footprint 0.38 GB, swap +0.70 GB, step 2.3 s"
    assert figures({"rule": "alone", "swap_growth_bytes": 0, "step_inflation": 1.0}) == ""


def test_the_watchdog_s_memory_evidence_gets_units() -> None:
    peaks = with_units({"swap_growth": 1e9, "pressure_stall_frac": 0.42, "footprint": 4e8, "watchdog_late": 1.4})
    assert figures(peaks, most=9) == "swap +1.00 GB, stalled on memory 42 %, footprint 0.40 GB, watchdog late 1.4 s"
    assert figures(with_units({"pressure_level": 4, "available_frac": 0.3})) == "pressure level 4"
    assert with_units({"something_new_bytes": 1}) == {"something_new_bytes": 1}


def test_a_mac_full_of_wired_memory_tells_what_is_available_and_no_share_of_time() -> None:
    peaks = with_units({"pressure_level": 1, "available_frac": 0.03})
    assert peaks == {"pressure_level_peak": 1, "available_least_frac": 0.03}
    assert figures(peaks) == "memory available 3 %"
    acted = {"swap_growth_bytes": 5e8, "step_s": 2.3, "pressure_level": 1, "available_frac": 0.02}
    assert figures({**acted, **peaks}, "memory_pressure") == "memory available 2 %, swap +0.50 GB, step 2.3 s"


def test_a_figure_that_nobody_named_is_told_by_its_unit() -> None:
    assert figure("swap_out_bytes_per_s", 12e6) == "swap out 12 MB/s"
    assert figure("chunk_ms", 1500) == "chunk 1.5 s"
    assert figure("text", "a\x1b[0m") == "text a\\x1b[0m"
    assert figure("tries", 3) == "tries 3"

"""What repetitions amount to, and when their numbers are not to be trusted."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_driver import make_spec

from orchestrator.metrics import is_drifting, summarise, validity, with_footprints, with_terms
from orchestrator.records import Metrics, PhaseMemory
from orchestrator.watchdog.wire import Released
from worker.protocol import ModelFacts, RepResult

MEMORY = 51_539_607_552  # 48 GiB
FACTS = ModelFacts(
    model_type="llama",
    parameters=10,
    weight_bytes=4_610_000_000,
    vocab_size=32,
    load_s=1.5,
    load_peak_bytes=4_700_000_000,
    cache_classes=["BatchKVCache"] * 2,
    cache_bytes_per_token=147_456.0,
    kv_bits=None,
    wired_limit="default",
)
CALM = Released(1, None, {}, [], False, 10, 0, 0, 0, 0.0, 0, 0.05, 100)


def rep(number: int = 0, step_s: float = 0.1, batch: int = 4, steps: int = 3, **changes: Any) -> RepResult:
    plain = RepResult(
        rep=number,
        prefill_s=2.0,
        prompt_tokens=batch * 512,
        chunk_s=[2.0],
        step_s=[step_s] * steps,
        rows_per_step=[batch] * steps,
        generated_tokens=batch * (steps + 1),
        finite_logits=True,
        constant_logits=False,
        prefill_peak_bytes=15_000_000_000,
        decode_peak_bytes=11_000_000_000,
        active_bytes=9_000_000_000,
        cache_bytes=1_000_000_000,
        kv_cache_bytes=5_100_000_000,
        started_s=10.0 * number,
        ended_s=10.0 * number + 2.3,
    )
    return dataclasses.replace(plain, **changes)


def test_the_definitions() -> None:
    metrics = summarise([rep(0, 0.1), rep(1, 0.2), rep(2, 0.1)], FACTS, batch=4, gen_tokens=4)
    assert metrics.reps == 3
    assert metrics.generation_tps == pytest.approx(4 * 3 / 0.3)
    assert metrics.generation_tps_per_stream == pytest.approx(10.0)
    assert metrics.tpot_ms == pytest.approx(100.0)
    assert metrics.step_s == pytest.approx(0.1)
    assert metrics.prompt_tps == pytest.approx(4 * 512 / 2.0)
    assert metrics.ttft_s == 2.0
    assert metrics.robust_cv == pytest.approx((40 - 30) / 40)  # of 20, 40, 40
    assert (metrics.peak_memory_bytes, metrics.peak_phase) == (15_000_000_000, "prefill")
    assert (metrics.load_peak_bytes, metrics.decode_peak_bytes) == (4_700_000_000, 11_000_000_000)
    assert (metrics.weight_bytes, metrics.kv_cache_bytes) == (4_610_000_000, 5_100_000_000)
    assert metrics.cache_classes == ("BatchKVCache", "BatchKVCache")


@given(
    batch=st.integers(1, 64),
    steps=st.integers(1, 40),
    times=st.lists(st.floats(1e-4, 100), min_size=1, max_size=7),
)
def test_the_rates_agree_with_each_other(batch: int, steps: int, times: list[float]) -> None:
    reps = [rep(i, step_s, batch, steps) for i, step_s in enumerate(times)]
    metrics = summarise(reps, None, batch, steps + 1)
    assert metrics.generation_tps is not None
    assert metrics.generation_tps_per_stream is not None
    assert metrics.tpot_ms is not None
    assert metrics.generation_tps_per_stream * batch == pytest.approx(metrics.generation_tps)
    if len(times) % 2:  # the median of a reciprocal is the reciprocal of the median only for odd counts
        assert metrics.tpot_ms * metrics.generation_tps_per_stream == pytest.approx(1000)


def test_the_spread_and_its_interval() -> None:
    times = [0.100, 0.104, 0.098, 0.102, 0.100]
    metrics = summarise([rep(i, step_s) for i, step_s in enumerate(times)], FACTS, batch=4, gen_tokens=4)
    rates = [4 / step_s for step_s in times]
    assert metrics.rep_tps == pytest.approx(rates)
    assert metrics.generation_tps == pytest.approx(40.0)
    assert metrics.iqr_tps == pytest.approx(float(np.subtract(*np.quantile(rates, [0.75, 0.25]))))
    assert metrics.robust_cv == pytest.approx(metrics.iqr_tps / 40.0)
    assert metrics.generation_tps_low is not None
    assert metrics.generation_tps_high is not None
    assert min(rates) - 1e-9 <= metrics.generation_tps_low <= 40.0 <= metrics.generation_tps_high <= max(rates) + 1e-9
    assert metrics.generation_tps_mlxlm == pytest.approx(16 / (0.3 + 2.0))  # one chunk mark: all of prefill


def test_two_repetitions_have_no_interval_no_trend_and_no_warm_up() -> None:
    metrics = summarise([rep(0), rep(1)], FACTS, batch=4, gen_tokens=4)
    assert (metrics.generation_tps_low, metrics.drift_frac, metrics.drift_p, metrics.warmup_frac) == (None,) * 4


def test_a_slow_first_repetition_and_a_slow_slide_are_told_apart() -> None:
    cold = summarise([rep(i, t) for i, t in enumerate([0.125, 0.1, 0.101, 0.1, 0.099])], FACTS, 4, 4)
    assert cold.warmup_frac == pytest.approx(0.2, abs=0.01)
    assert not is_drifting(cold)
    sliding = summarise([rep(i, 0.1 * 1.05**i) for i in range(6)], FACTS, 4, 4)
    assert sliding.drift_frac == pytest.approx(-0.24, abs=0.03)
    assert sliding.drift_p is not None
    assert sliding.drift_p < 0.01
    assert is_drifting(sliding)
    assert "drifting" in validity(sliding, [], CALM, MEMORY)[1]
    steady = summarise([rep(i, 0.1 * (1 + 0.01 * (i % 2))) for i in range(8)], FACTS, 4, 4)
    assert not is_drifting(steady)


def test_percentiles_of_few_steps_are_withheld() -> None:
    few = summarise([rep(i, steps=33) for i in range(3)], FACTS, 4, 34)  # 99 steps
    assert (few.step_p95_s, few.step_p99_s) == (None, None)
    some = summarise([rep(i, steps=34) for i in range(3)], FACTS, 4, 35)
    assert some.step_p95_s == pytest.approx(0.1)
    assert some.step_p99_s is None
    many = summarise([rep(i, steps=125) for i in range(4)], FACTS, 4, 126)
    assert many.step_p99_s == pytest.approx(0.1)


def test_memory_by_phase_and_by_term() -> None:
    facts = dataclasses.replace(
        FACTS,
        load_active_bytes=4_610_000_000,
        load_cache_bytes=7,
        shape={"intermediate_size": 12288, "vocab_size": 151_936, "dtype_bytes": 2},
    )
    reps = [rep(0, prefill_active_bytes=10**10, prefill_cache_bytes=5), rep(1, decode_peak_bytes=12_000_000_000)]
    plain = summarise(reps, facts, batch=4, gen_tokens=4)
    assert plain.phases["load"] == PhaseMemory(4_700_000_000, 4_610_000_000, 7)
    assert plain.phases["prefill"] == PhaseMemory(15_000_000_000, 10**10, 5)
    assert plain.phases["decode"] == PhaseMemory(12_000_000_000, 9_000_000_000, 1_000_000_000)
    seen = with_footprints(plain, {"load": 6 * 10**9, "decode": 16 * 10**9, "warmup": 99})
    footprints = [seen.phases[name].footprint_bytes for name in ("load", "prefill", "decode")]
    assert footprints == [
        6 * 10**9,
        None,
        16 * 10**9,
    ]
    assert seen.phases["decode"].peak_bytes == 12_000_000_000
    terms = with_terms(seen, facts, make_spec(batch=4, context=9000, prefill_step_size=2048))
    assert sum(terms.peak_terms.values()) == terms.peak_memory_bytes == 15_000_000_000
    assert terms.peak_term == "kv"
    assert with_terms(plain, FACTS, make_spec()) == plain  # without the config's sizes nothing is made up
    broken = dataclasses.replace(summarise([], facts, batch=4, gen_tokens=4), peak_phase="prefill")
    assert with_terms(broken, facts, make_spec()) == broken  # nor of caches that nobody saw full


def test_a_random_fill_says_nothing_about_the_prompt() -> None:
    metrics = summarise([rep(filled_tokens=2044, prompt_tokens=4)], FACTS, batch=4, gen_tokens=4)
    assert metrics.filled_tokens == 2044
    assert metrics.prompt_tps is None
    assert metrics.ttft_s is None
    assert metrics.generation_tps is not None


def test_one_token_has_no_decode_window() -> None:
    metrics = summarise([rep(steps=0)], FACTS, batch=4, gen_tokens=1)
    assert (metrics.reps, metrics.generation_tps, metrics.tpot_ms, metrics.robust_cv) == (1, None, None, None)
    assert metrics.ttft_s == 2.0


def test_nothing_measured() -> None:
    assert summarise([], None, batch=4, gen_tokens=4) == Metrics()
    loaded = summarise([], FACTS, batch=4, gen_tokens=4)
    assert (loaded.reps, loaded.peak_phase, loaded.peak_memory_bytes) == (0, "load", 4_700_000_000)


def test_a_repetition_that_lost_rows_is_not_counted() -> None:
    reps = [rep(0), rep(1, 0.01, rows_per_step=[4, 4, 3]), rep(2)]
    metrics = summarise(reps, FACTS, batch=4, gen_tokens=4)
    assert metrics.reps == 2
    assert metrics.generation_tps == pytest.approx(40.0)
    assert validity(metrics, reps, CALM, MEMORY) == (False, ("rows_short",))


def test_a_calm_cell_is_valid() -> None:
    reps = [rep(0, 0.1), rep(1, 0.101), rep(2, 0.1)]
    assert validity(summarise(reps, FACTS, 4, 4), reps, CALM, MEMORY) == (True, ())


@pytest.mark.parametrize(
    ("reasons", "reps", "released"),
    [
        (("noisy",), [rep(0, 0.1), rep(1, 0.2), rep(2, 0.1)], CALM),
        ((), [rep(0, 0.1), rep(1, 0.9)], CALM),  # two repetitions are not judged
        (("swapped",), [rep()], dataclasses.replace(CALM, swap_growth_bytes=300_000_000)),
        ((), [rep()], dataclasses.replace(CALM, swap_growth_bytes=200_000_000)),
        ((), [rep()], dataclasses.replace(CALM, swap_growth_bytes=None, pressure_stall_s=None)),
        (("pressure",), [rep()], dataclasses.replace(CALM, pressure_stall_s=0.2)),
        (("pressure",), [rep()], dataclasses.replace(CALM, memory_evidence={"pressure_level": 2})),
        (("pressure",), [rep()], dataclasses.replace(CALM, memory_evidence={"available_frac": 0.01})),
        ((), [rep()], dataclasses.replace(CALM, memory_evidence={"footprint": 9})),
        ((), [rep()], dataclasses.replace(CALM, pressure_stall_s=0.1)),  # of 2.3 s measured
        (("watchdog_late",), [rep()], dataclasses.replace(CALM, late_max_s=1.2)),
        (("suspended",), [rep()], dataclasses.replace(CALM, suspended_s=3.0)),
        (("unwatched",), [rep()], None),
        (("bad_logits",), [rep(finite_logits=False)], CALM),
        (("bad_logits",), [rep(constant_logits=True)], CALM),
        (
            ("bad_logits", "swapped", "watchdog_late"),
            [rep(constant_logits=True)],
            dataclasses.replace(CALM, swap_growth_bytes=10**10, late_max_s=9.0),
        ),
    ],
)
def test_reasons(reasons: tuple[str, ...], reps: list[RepResult], released: Released | None) -> None:
    metrics = summarise(reps, FACTS, batch=4, gen_tokens=4)
    assert validity(metrics, reps, released, MEMORY) == (not reasons, reasons)

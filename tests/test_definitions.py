"""The figures of one repetition, against traces computed by hand."""

from __future__ import annotations

import pytest
from test_metrics import rep

from orchestrator import definitions

# B = 4 rows, C = 512 tokens, G = 4: three steps after the first tokens. The prompts take 2 s: one chunk to 1.0 s, the
# merging of caches to 1.9 s, and 0.1 s until all first tokens exist.
TRACE = rep(step_s=0.1, batch=4, steps=3, chunk_s=[1.0, 0.9])


def test_our_figures() -> None:
    assert definitions.is_whole(TRACE, 4, 4)
    assert definitions.window_s(TRACE) == pytest.approx(0.3)
    assert definitions.generation_tps(TRACE, 4) == pytest.approx(4 * 3 / 0.3)
    assert definitions.tpot_ms(TRACE) == pytest.approx(100.0)
    assert definitions.ttft_s(TRACE) == 2.0
    assert definitions.prompt_tps(TRACE) == pytest.approx(4 * 512 / 2.0)


def test_uneven_steps_add_up_to_the_window() -> None:
    uneven = rep(batch=2, steps=3, step_s=0.0)
    uneven = type(uneven)(**{**{f: getattr(uneven, f) for f in uneven.__slots__}, "step_s": [0.25, 0.05, 0.1]})
    assert definitions.generation_tps(uneven, 2) == pytest.approx(2 * 3 / 0.4)
    assert definitions.tpot_ms(uneven) == pytest.approx(400 / 3)


def test_mlx_lm_counts_the_first_token_too() -> None:
    # batch_generate: B * G tokens over all time but that in prompt chunks, of which the last mark is none: it merges
    assert definitions.generation_tps_mlxlm(TRACE, 4, "batched") == pytest.approx(4 * 4 / (0.3 + 1.0))
    # stream_generate, which mlx_lm.benchmark takes for one row: G tokens over the time since the first
    alone = rep(step_s=0.1, batch=1, steps=3, chunk_s=[1.0, 0.9])
    assert definitions.generation_tps_mlxlm(alone, 1, "batched") == pytest.approx(4 / 0.3)
    assert definitions.generation_tps_mlxlm(TRACE, 4, "lockstep") is None


def test_what_there_is_not() -> None:
    filled = rep(filled_tokens=2044, prompt_tokens=4)
    assert (definitions.ttft_s(filled), definitions.prompt_tps(filled)) == (None, None)
    alone = rep(steps=0)
    assert (definitions.generation_tps(alone, 4), definitions.tpot_ms(alone)) == (None, None)
    assert definitions.generation_tps_mlxlm(alone, 4, "batched") is None


@pytest.mark.parametrize(
    "changes",
    [{"rows_per_step": [4, 3, 4]}, {"rows_per_step": [4, 4, 5]}, {"step_s": [0.1, 0.1], "rows_per_step": [4, 4]}],
)
def test_a_repetition_that_is_not_whole(changes: dict[str, list[float]]) -> None:
    broken = {**{f: getattr(TRACE, f) for f in TRACE.__slots__}, **changes}
    assert not definitions.is_whole(type(TRACE)(**broken), 4, 4)


def test_the_row_of_llama_batched_bench() -> None:
    row = definitions.llama_bench_row(512, 3, 4, 2.0, 0.3)
    assert (row.pp, row.tg, row.b, row.n_kv) == (512, 3, 4, 4 * 515)
    assert (row.t_pp, row.s_pp) == (2.0, pytest.approx(1024.0))
    assert (row.t_tg, row.s_tg) == (0.3, pytest.approx(40.0))
    assert (row.t, row.s) == (pytest.approx(2.3), pytest.approx(4 * 515 / 2.3))
    filled = definitions.llama_bench_row(512, 3, 4, None, 0.3)
    assert (filled.t_pp, filled.s_pp, filled.t, filled.s) == (None, None, None, None)
    assert filled.s_tg == pytest.approx(40.0)

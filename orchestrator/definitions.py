"""Owns what the figures of one repetition are, each in one place; docs/measurement.md says the same in words.

Does not sum repetitions up (metrics.py). Pure. B is the batch, C the context, G the generated tokens per row, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from worker.protocol import RepResult


def is_whole(rep: RepResult, batch: int, gen_tokens: int) -> bool:
    """Whether the repetition has all its G-1 steps, and all B rows in each of them. Only such have rates."""
    return len(rep.step_s) == gen_tokens - 1 and all(rows == batch for rows in rep.rows_per_step)


def measured_s(reps: Iterable[RepResult]) -> float:
    """Seconds that the repetitions took, prefill and decode."""
    return sum(rep.ended_s - rep.started_s for rep in reps)


def window_s(rep: RepResult) -> float:
    """The decode window in seconds: from the first tokens of all rows to the last, G-1 steps."""
    return sum(rep.step_s)


def generation_tps(rep: RepResult, batch: int) -> float | None:
    """Tokens per second over all rows: B * (G-1) / window; None where there is no window."""
    window = window_s(rep)
    return batch * len(rep.step_s) / window if window > 0 else None


def tpot_ms(rep: RepResult) -> float | None:
    """Milliseconds per token of one row: window / (G-1); None where there is no window."""
    window = window_s(rep)
    return window / len(rep.step_s) * 1e3 if window > 0 else None


def ttft_s(rep: RepResult) -> float | None:
    """Seconds until all B first tokens exist; None where the context was filled at random."""
    return rep.prefill_s if rep.filled_tokens == 0 and rep.prefill_s > 0 else None


def prompt_tps(rep: RepResult) -> float | None:
    """Prompt tokens per second over all rows: B * C / time to first token; None where that is None."""
    seconds = ttft_s(rep)
    return None if seconds is None else rep.prompt_tokens / seconds


def generation_tps_mlxlm(rep: RepResult, batch: int, engine: str) -> float | None:
    """What `mlx_lm.benchmark` (0.32) would call generation_tps; None of other engines than `batched`.

    It counts all G tokens per row. At B = 1 (`stream_generate`) it divides them by the time since the first token,
    which is the window; at larger B (`batch_generate`) by all time but that in prompt chunks, which is the window and
    what comes before it behind the last chunk: the caches are merged, and the last prompt token goes through the
    model.
    """
    window = window_s(rep)
    if engine != "batched" or window <= 0:
        return None
    first_s = max(0.0, rep.prefill_s - sum(rep.chunk_s[:-1])) if batch > 1 else 0.0
    return batch * (len(rep.step_s) + 1) / (window + first_s)


@dataclass(frozen=True, slots=True)
class LlamaBenchRow:
    """One row of llama.cpp's `llama-batched-bench`, under its names: tokens, seconds, tokens per second.

    PP prompt tokens per row, TG decode steps, B rows, N_KV = B * (PP + TG) tokens in the cache at the end; T_PP and
    S_PP of the prompts, T_TG and S_TG of the decode steps, T and S of both.
    """

    pp: int
    tg: int
    b: int
    n_kv: int
    t_pp: float | None
    s_pp: float | None
    t_tg: float
    s_tg: float
    t: float | None
    s: float | None


def llama_bench_row(
    context: int, steps: int, batch: int, prefill_s: float | None, decode_window_s: float
) -> LlamaBenchRow:
    """The row of a cell whose prefill took `prefill_s` (None: filled at random) and whose `steps` decode steps took
    so long.

    llama-batched-bench decodes TG tokens per row after the prompt, each in a step: our window's G-1 steps. Its T_PP
    ends with the prompt's logits, ours when the first tokens exist as numbers.
    """
    kv = batch * (context + steps)
    total = None if prefill_s is None else prefill_s + decode_window_s
    return LlamaBenchRow(
        pp=context,
        tg=steps,
        b=batch,
        n_kv=kv,
        t_pp=prefill_s,
        s_pp=None if prefill_s is None else batch * context / prefill_s,
        t_tg=decode_window_s,
        s_tg=batch * steps / decode_window_s,
        t=total,
        s=None if total is None else kv / total,
    )

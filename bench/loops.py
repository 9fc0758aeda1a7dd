"""Owns the rivals of a cell: a bare loop over mlx-lm's generator, and mlx-lm's own batch_generate, each in a process.

    python -m bench.loops bare|mlx-lm MODEL BATCH CONTEXT TOKENS

Compares nothing. Such a process decodes once for every line on its standard input and answers with a line of JSON, so
that whoever started it says when it works.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from mlx_lm import load
from mlx_lm.generate import BatchGenerator, GenerationBatch, batch_generate

from worker.measure import random_prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main(arguments: Sequence[str]) -> int:
    """Loads the model, then answers until there are no more lines."""
    name, folder = arguments[:2]
    batch, context, tokens = map(int, arguments[2:])
    model, tokenizer, config = load(folder, return_config=True)
    tokenizer.eos_token_ids = None
    prompts = random_prompts(0, batch, context, config["vocab_size"])
    for _ in sys.stdin:
        made = bare(model, prompts, tokens) if name == "bare" else by_mlx_lm(model, tokenizer, prompts, tokens)
        print(json.dumps(made), flush=True)
    return 0


def bare(model: Any, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """One repetition with the clock read after each step.

    As in a cell, no row is at its end at the last of them, so that nothing is cleared away before.
    """
    rows = len(prompts)
    generator = BatchGenerator(model, max_tokens=tokens + 1, completion_batch_size=rows, prefill_batch_size=rows)
    uids = generator.insert(prompts)
    steps = [[response.token for response in generator.next_generated()]]
    ends_s = [time.perf_counter()]
    for _ in range(tokens - 1):
        _, responses = generator.next()
        steps.append([response.token for response in responses])
        ends_s.append(time.perf_counter())
    generator.remove(uids)
    generator.close()
    return {"step_s": _steps(ends_s), "generation_s": None, "tokens": sum(map(len, steps)), "digest": digest(steps)}


def by_mlx_lm(model: Any, tokenizer: Any, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """One repetition of `batch_generate`, and when its steps ended."""
    rows, plain = len(prompts), GenerationBatch.next
    ends_s: list[float] = []
    GenerationBatch.next = _clocked(ends_s)
    try:
        made = batch_generate(
            model,
            tokenizer,
            prompts,
            max_tokens=tokens,
            completion_batch_size=rows,
            prefill_batch_size=rows,
            return_token_ids=True,
        )
    finally:
        GenerationBatch.next = plain
    if len(ends_s) != tokens:
        raise RuntimeError(f"{len(ends_s)} steps for {tokens} tokens: the rows did not go together")
    return {
        "step_s": _steps(ends_s),
        "generation_s": made.stats.generation_tokens / made.stats.generation_tps,
        "tokens": made.stats.generation_tokens,
        "digest": digest([list(step) for step in zip(*made.token_ids, strict=True)]),
    }


def digest(steps: list[list[int]]) -> str:
    """What stands for the tokens, step by step, of all rows: as a worker's `tokens_digest`."""
    return hashlib.sha256(repr(steps).encode()).hexdigest()[:16]


def _steps(ends_s: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(ends_s)]


def _clocked(ends_s: list[float]) -> Callable[[Any], Any]:
    plain = GenerationBatch.next

    def stepped(batch: Any) -> Any:
        responses = plain(batch)
        ends_s.append(time.perf_counter())
        return responses

    return stepped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

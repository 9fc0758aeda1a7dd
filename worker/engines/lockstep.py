"""Owns the lockstep engine: one plain model call per chunk and per step, all rows together, greedy.

Does not pipeline: each step is evaluated before the next begins. mlx-lm's one-row caches hold B rows of one
length as they are. `prefill_logits: all` repeats the method of sweeps that evaluate a whole chunk's logits,
memory included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from worker import fill, kv_quant
from worker.caches import Cache, held_bytes
from worker.engines.logits import judge
from worker.measure import RepEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from worker.protocol import WorkerSpec


class LockstepEngine:
    """See `measure.Engine`. `pattern` (`fill.learn`) makes it fill the context at random."""

    launches_ahead = False

    def __init__(self, model: nn.Module, spec: WorkerSpec, pattern: Sequence[Cache] | None = None) -> None:
        self._model = model
        self._spec = spec
        self._pattern = pattern
        self._filled_tokens = 0
        self.caches: list[Cache] = []
        self._logits: mx.array | None = None
        self._tokens: list[mx.array] = []

    def prefill(self, prompts: list[list[int]], chunk_done: Callable[[], None]) -> int:
        """One model call (B, chunk) per chunk, up to the first tokens."""
        self.caches = self._new_caches()
        tokens = mx.array(prompts)
        if self._pattern is not None:
            rows, held = tokens.shape[0], tokens.shape[1] - 1
            chunk = self._spec.prefill_step_size
            fill.fill(self.caches, self._pattern, rows, held, chunk, self._spec.seed, chunk_done)
            self._filled_tokens = rows * held
            tokens = tokens[:, held:]
        if self._spec.prefill_logits == "all":
            logits = self._prefill_all(tokens, chunk_done)
        else:
            logits = self._prefill_last(tokens, chunk_done)
        rows = self._take(logits)
        del logits
        mx.synchronize()  # what is evaluated may still be held by MLX's own thread, and would be decode's peak
        return rows

    def step(self) -> int:
        """One model call (B, 1)."""
        return self._take(self._model(self._tokens[-1][:, None], cache=self.caches))

    def finish(self) -> RepEnd:
        """Checks the last logits and drops the caches."""
        assert self._logits is not None
        finite, constant = judge(list(self._logits))
        if self._spec.kv_bits is not None:
            kv_quant.demand_quantized(self.caches, self._spec.kv_bits)
        end = RepEnd(
            finite_logits=finite,
            constant_logits=constant,
            kv_cache_bytes=held_bytes(self.caches),
            filled_tokens=self._filled_tokens,
            tokens=[_ids(tokens) for tokens in self._tokens],
        )
        self.caches, self._logits, self._tokens, self._filled_tokens = [], None, [], 0
        mx.clear_cache()
        return end

    def _new_caches(self) -> list[Cache]:
        caches = make_prompt_cache(self._model)
        if self._spec.kv_bits is None:
            return list(caches)
        return kv_quant.quantized(caches, self._spec.kv_bits, self._spec.kv_group_size, batched=False)

    def _prefill_last(self, tokens: mx.array, chunk_done: Callable[[], None]) -> mx.array:
        """Only the caches are evaluated, up to the last token, which goes alone, as in mlx-lm."""
        size = self._spec.prefill_step_size
        for start in range(0, tokens.shape[1] - 1, size):
            self._model(tokens[:, start : min(start + size, tokens.shape[1] - 1)], cache=self.caches)
            mx.eval([cache.state for cache in self.caches])
            mx.clear_cache()
            chunk_done()
        logits: mx.array = self._model(tokens[:, -1:], cache=self.caches)
        mx.eval(logits)
        chunk_done()
        return logits

    def _prefill_all(self, tokens: mx.array, chunk_done: Callable[[], None]) -> mx.array:
        size = self._spec.prefill_step_size
        logits: mx.array
        for start in range(0, tokens.shape[1], size):
            logits = self._model(tokens[:, start : start + size], cache=self.caches)
            mx.eval(logits)
            chunk_done()
        return logits

    def _take(self, logits: mx.array) -> int:
        last = logits[:, -1, :]
        tokens = mx.argmax(last, axis=-1)
        mx.eval(tokens, last)
        self._logits = last
        self._tokens.append(tokens)
        return int(tokens.shape[0])


def _ids(tokens: mx.array) -> list[int]:
    return [int(token) for token in tokens.tolist()]  # type: ignore[union-attr, arg-type]  # a vector of integers

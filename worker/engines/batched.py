"""Owns the batched engine: mlx-lm's own BatchGenerator, driven so that every step holds all B rows.

Does not change what mlx-lm does: both batch sizes are B for all B, no stop tokens, greedy. mlx-lm launches
step k+1 before it evaluates step k; the step beyond the last one asked for is waited for and thrown away
outside the window.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import CacheList, make_prompt_cache

from worker import fill, kv_quant
from worker.caches import Cache, class_name, held_bytes
from worker.engines.logits import judge
from worker.failures import AttemptError
from worker.measure import RepEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from worker.protocol import WorkerSpec


class FilledCache:
    """A layer's batch cache that is filled already, in the place of one row's cache.

    BatchGenerator makes its batch by merging the rows' caches; this one's merge hands the finished batch
    over, so the context is never held once per row and once more merged.
    """

    def __init__(self, batch_cache: Cache) -> None:
        self._batch_cache: Cache | None = batch_cache

    def merge(self, _rows: Sequence[Cache]) -> Cache:
        """The filled batch cache, and no reference to it kept."""
        handed, self._batch_cache = self._batch_cache, None
        return handed


class BatchedEngine:
    """See `measure.Engine`. `pattern` (`fill.learn`) makes it fill the context at random."""

    launches_ahead = True

    def __init__(self, model: nn.Module, spec: WorkerSpec, pattern: Sequence[Cache] | None = None) -> None:
        self._model = model
        self._spec = spec
        self._pattern = pattern
        self._filled_tokens = 0
        self._generator: Any = None
        self._uids: list[int] = []
        self._responses: list[Any] = []
        self._tokens: list[list[int]] = []

    @property
    def caches(self) -> list[Cache]:
        """The caches of the rows that decode now."""
        return list(self._generator._generation_batch.prompt_cache)  # noqa: SLF001 - mlx-lm shows them nowhere else

    def prefill(self, prompts: list[list[int]], chunk_done: Callable[[], None]) -> int:
        """Lets the generator take the prompts chunk by chunk, up to the first tokens."""
        rows = len(prompts)
        with _wired_limit(self._spec.wired_limit):
            self._generator = BatchGenerator(
                self._model,
                max_tokens=self._spec.gen_tokens + 1,
                completion_batch_size=rows,
                prefill_batch_size=rows,
                prefill_step_size=self._spec.prefill_step_size,
            )
        caches = None
        if self._pattern is not None:
            held = len(prompts[0]) - 1
            caches = self._filled(self._pattern, rows, held, chunk_done)
            prompts = [prompt[held:] for prompt in prompts]
        elif self._spec.kv_bits is not None:
            caches = [self._row_caches() for _ in prompts]
        self._uids = self._generator.insert(prompts, caches=caches)
        del caches
        while True:
            progress, responses = self._generator.next()
            if responses:
                return self._take(responses)
            if not progress:
                return 0
            chunk_done()

    def step(self) -> int:
        """One more token per row."""
        _, responses = self._generator.next()
        return self._take(responses)

    def finish(self) -> RepEnd:
        """Waits for the surplus step, checks the last logits, and drops rows and caches."""
        mx.synchronize(self._generator.stream)
        finite, constant = judge([response.logprobs for response in self._responses])
        if self._spec.kv_bits is not None:
            kv_quant.demand_quantized(self.caches, self._spec.kv_bits)
        end = RepEnd(
            finite_logits=finite,
            constant_logits=constant,
            kv_cache_bytes=held_bytes(self.caches),
            filled_tokens=self._filled_tokens,
            tokens=self._tokens,
        )
        self._generator.remove(self._uids)
        self._generator.close()
        self._generator, self._uids, self._responses, self._tokens = None, [], [], []
        self._filled_tokens = 0
        mx.clear_cache()
        return end

    def _take(self, responses: list[Any]) -> int:
        self._responses = responses
        self._tokens.append([response.token for response in responses])
        return len(responses)

    def _row_caches(self) -> list[Cache]:
        caches = make_prompt_cache(self._model)
        if self._spec.kv_bits is None:
            return list(caches)
        return kv_quant.quantized(caches, self._spec.kv_bits, self._spec.kv_group_size, batched=True)

    def _filled(
        self, pattern: Sequence[Cache], rows: int, tokens: int, chunk_done: Callable[[], None]
    ) -> list[list[FilledCache]]:
        empty = [self._row_caches() for _ in range(rows)]
        batch = [layer[0].merge(list(layer)) for layer in zip(*empty, strict=True)]
        chunk = self._spec.prefill_step_size
        fill.fill(batch, pattern, rows, tokens, chunk, self._spec.seed, chunk_done)
        self._filled_tokens = rows * tokens
        return [[FilledCache(cache) for cache in batch]] * rows


def demand_batchable(model: nn.Module) -> None:
    """Checks that mlx-lm can make a batch of the model's caches.

    Raises:
        AttemptError: one of them has no `merge`, by its class.
    """
    for cache in make_prompt_cache(model):
        if not _mergeable(cache):
            raise AttemptError(
                "not_batchable",
                f"mlx-lm's {class_name(cache)} does not yet support batching",
                "use `engine: lockstep` for this model",
            )


def wired_limit_in_force(wish: str) -> str:
    """What becomes of MLX's wired limit while this engine runs."""
    recommended = mx.device_info().get("max_recommended_working_set_size")
    if wish == "off" or recommended is None:
        return "untouched"
    return f"set by mlx-lm to {recommended} bytes"


def _mergeable(cache: Cache) -> bool:
    if isinstance(cache, CacheList):
        return all(_mergeable(part) for part in cache.caches)
    return hasattr(cache, "merge")


@contextmanager
def _wired_limit(wish: str) -> Iterator[None]:
    """With `off`, a BatchGenerator made inside leaves MLX's wired limit alone.

    It has no option for that: it calls this module-level function, and puts the limit back where that
    returned one.
    """
    if wish != "off":
        yield
        return
    module: Any = sys.modules[BatchGenerator.__module__]
    real = module.maybe_set_recommended_wired_limit
    module.maybe_set_recommended_wired_limit = lambda: None
    try:
        yield
    finally:
        module.maybe_set_recommended_wired_limit = real

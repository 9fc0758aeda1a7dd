"""Owns filling caches with random keys and values in place of a long prefill.

Does not own how a cache grows: everything goes through the cache's own `update_and_fetch`, in the chunks that
a real prefill would use, so that capacity, rounding and growth are the real ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import CacheList, QuantizedKVCache

from worker.caches import GROWING, SLIDING, STATE, Cache, class_name, leaves, state_arrays
from worker.failures import AttemptError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def demand_fillable(caches: Sequence[Cache]) -> None:
    """Checks that every cache is of a class that can be filled.

    Raises:
        AttemptError: one is not, by its class.
    """
    for cache in caches:
        if isinstance(cache, CacheList):
            demand_fillable(cache.caches)
        elif not isinstance(cache, GROWING + SLIDING + STATE):
            raise AttemptError(
                "fill_unsupported",
                f"context_fill random: it is not known how to fill a {class_name(cache)}",
                "use `context_fill: prefill` for this model",
            )


def learn(caches: Sequence[Cache]) -> list[Cache]:
    """The pattern of caches that have held tokens of one row: their state, and one token of keys and values.

    Takes the caches over, and lets their unused capacity go, so that the pattern adds next to nothing to a
    cell.
    """
    for cache in leaves(caches):
        if not isinstance(cache, STATE) and not cache.empty():
            cache.keys, cache.values = tree_map(
                lambda array: mx.contiguous(array[:, :, :1]), (cache.keys, cache.values)
            )
            mx.eval(cache.keys, cache.values)
    return list(caches)


def fill(
    caches: Sequence[Cache],
    pattern: Sequence[Cache],
    rows: int,
    tokens: int,
    chunk: int,
    seed: int,
    chunk_done: Callable[[], None],
) -> None:
    """Writes `tokens` random tokens of `rows` rows into empty `caches`.

    `pattern` (see `learn`) gives shapes and dtypes; state caches get its state in every row. Layer by layer,
    so that only one layer's chunk of random values exists besides the caches.
    """
    mx.random.seed(seed)
    for cache, one in zip(caches, pattern, strict=True):
        _copy_state(cache, one, rows)
    for start in range(0, tokens, chunk):
        size = min(chunk, tokens - start)
        for cache, one in zip(caches, pattern, strict=True):
            _write(cache, one, rows, size)
        mx.clear_cache()
        chunk_done()


def _copy_state(cache: Cache, one: Cache, rows: int) -> None:
    if isinstance(cache, CacheList):
        for part, part_of_one in zip(cache.caches, one.caches, strict=True):
            _copy_state(part, part_of_one, rows)
    elif isinstance(cache, STATE):
        for index, array in enumerate(one.cache):
            cache[index] = None if array is None else mx.repeat(array, rows, axis=0)
        mx.eval(state_arrays(cache))


def _write(cache: Cache, one: Cache, rows: int, tokens: int) -> None:
    if isinstance(cache, CacheList):
        for part, part_of_one in zip(cache.caches, one.caches, strict=True):
            _write(part, part_of_one, rows, tokens)
    elif not isinstance(cache, STATE) and not one.empty():
        keys, values = (_random_like(array, one, rows, tokens) for array in (one.keys, one.values))
        cache.update_and_fetch(keys, values)
        mx.eval(state_arrays(cache))


def _random_like(one_row: Any, owner: Cache, rows: int, tokens: int) -> mx.array:
    if isinstance(owner, QuantizedKVCache):
        packed, scales, _ = one_row
        width, dtype = packed.shape[3] * 32 // owner.bits, scales.dtype
        heads = packed.shape[1]
    else:
        heads, width, dtype = one_row.shape[1], one_row.shape[3], one_row.dtype
    return mx.random.normal((rows, heads, tokens, width), dtype=dtype)

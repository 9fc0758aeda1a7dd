"""Owns what is read off a model's caches: classes as they ran, and bytes of each kind.

Does not create, fill or quantize caches (engines/, fill.py, kv_quant.py).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# mlx-lm's caches share no public type; what is used of each is checked by the tests against the installed
# version.
Cache: TypeAlias = Any

GROWING = (KVCache, BatchKVCache, QuantizedKVCache)
SLIDING = (RotatingKVCache, BatchRotatingKVCache)
STATE = (ArraysCache,)


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """What one row's caches take, summed over the layers.

    `bytes_per_token` grows with every token; `window_bytes_per_token` grows up to a window of so many tokens;
    `state_bytes` has one size from the first token on, caches of unknown classes included.
    """

    classes: tuple[str, ...]
    bytes_per_token: float
    window_bytes_per_token: dict[int, float] = field(default_factory=dict)
    state_bytes: int = 0


def leaves(caches: Iterable[Cache]) -> Iterator[Cache]:
    """The caches that hold arrays, those inside CacheLists in place of the lists."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches)
        else:
            yield cache


def class_name(cache: Cache) -> str:
    """The class of a layer's cache, with those of its parts where it is a list of caches."""
    if isinstance(cache, CacheList):
        return f"CacheList({', '.join(class_name(c) for c in cache.caches)})"
    return type(cache).__name__


def state_arrays(cache: Cache) -> list[mx.array]:
    """Every array of a cache's state."""
    return [leaf for _, leaf in tree_flatten(cache.state) if isinstance(leaf, mx.array)]


def held_bytes(caches: Iterable[Cache]) -> int:
    """What the caches take as allocated, unused capacity included."""
    return sum(_bytes_of(cache) for cache in leaves(caches))


def describe(caches: Sequence[Cache], rows: int) -> CacheFacts:
    """The facts of caches that have held at least one token of `rows` rows.

    Bytes per token are exact: the bytes of the arrays over their capacity in tokens.
    """
    per_token = 0.0
    windows: dict[int, float] = defaultdict(float)
    state = 0
    for cache in leaves(caches):
        if cache.empty():
            continue
        if isinstance(cache, GROWING):
            per_token += _bytes_of(cache) / capacity(cache) / rows
        elif isinstance(cache, SLIDING):
            windows[cache.max_size] += _bytes_of(cache) / capacity(cache) / rows
        else:
            state += _bytes_of(cache) // rows
    return CacheFacts(tuple(class_name(c) for c in caches), per_token, dict(windows), state)


def capacity(cache: Cache) -> int:
    """How many tokens fit into a growing or sliding cache's arrays as they are."""
    keys = cache.keys[0] if isinstance(cache, QuantizedKVCache) else cache.keys
    return int(keys.shape[2])


def _bytes_of(cache: Cache) -> int:
    if cache.empty():
        return 0
    if isinstance(cache, GROWING + SLIDING + STATE):
        return int(cache.nbytes)
    return sum(array.nbytes for array in state_arrays(cache))

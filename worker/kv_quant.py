"""Owns quantized key-value caches: which models may have them, and a batch of them for mlx-lm's generator.

Does not own the quantized attention itself, which is mlx-lm's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache

from worker.caches import GROWING, SLIDING, Cache, class_name, leaves
from worker.failures import AttemptError

if TYPE_CHECKING:
    from collections.abc import Sequence

_REMEDY = "run this model without kv_bits (`kv_bits: null`, or a variant without it)"


class EqualRowsQuantizedKVCache(QuantizedKVCache):  # type: ignore[misc]  # mlx-lm has no types
    """A quantized cache of rows of equal length, with what BatchGenerator asks of a cache.

    mlx-lm's own QuantizedKVCache cannot be merged, filtered or extended. Rows of one length need no padding,
    so the scalar offset and the masks of the one-row cache hold for all of them.
    """

    keys: Any
    values: Any
    offset: int

    @classmethod
    def merge(cls, caches: Sequence[Self]) -> Self:
        """One cache of all rows.

        Raises:
            ValueError: the rows are not of one length.
        """
        first = caches[0]
        if any(c.offset != first.offset for c in caches):
            raise ValueError(f"{cls.__name__} holds rows of one length, not {[c.offset for c in caches]}")
        merged = cls(group_size=first.group_size, bits=first.bits)
        for cache in caches:
            if not cache.empty():
                merged.extend(cache)
        return merged

    def extend(self, other: Self) -> None:
        """Appends the other's rows.

        Raises:
            ValueError: they are not of this cache's length.
        """
        if other.empty():
            return
        if self.empty():
            self.keys, self.values, self.offset = other.keys, other.values, other.offset
            return
        if self.offset != other.offset:
            raise ValueError(f"cannot put rows of {other.offset} tokens to rows of {self.offset}")
        size = max(self.keys[0].shape[2], other.keys[0].shape[2])

        def joined(mine: mx.array, others: mx.array) -> mx.array:
            return mx.concatenate([_grown(mine, size), _grown(others, size)])

        self.keys = tree_map(joined, self.keys, other.keys)
        self.values = tree_map(joined, self.values, other.values)

    def filter(self, batch_indices: Any) -> None:
        """Keeps the rows of these indices."""
        if not self.empty():
            self.keys, self.values = tree_map(lambda x: x[batch_indices], (self.keys, self.values))

    def extract(self, idx: int) -> QuantizedKVCache:
        """One row as mlx-lm's own cache, without unused capacity."""
        row = QuantizedKVCache(group_size=self.group_size, bits=self.bits)
        row.offset = self.offset
        if not self.empty():
            row.keys, row.values = tree_map(
                lambda x: mx.contiguous(x[idx : idx + 1, :, : self.offset]), (self.keys, self.values)
            )
        return row

    def prepare(self, *, left_padding: Any = None, lengths: Any = None, right_padding: Any = None) -> None:
        """Accepts rows of equal length only.

        Raises:
            ValueError: some row would have to be padded.
        """
        if any(padding and max(padding) > 0 for padding in (left_padding, right_padding)):
            raise ValueError(f"{type(self).__name__} holds rows of one length, not {lengths}")

    def finalize(self) -> None:
        """Nothing was padded, so nothing is to be undone."""

    def size(self) -> int:
        """Tokens held per row."""
        return int(self.offset)


def quantized(caches: Sequence[Cache], bits: int, group_size: int, *, batched: bool) -> list[Cache]:
    """The same empty caches with every growing key-value cache quantized; state caches stay as they are.

    Raises:
        AttemptError: a cache cannot be quantized, by its class.
    """
    made = EqualRowsQuantizedKVCache if batched else QuantizedKVCache

    def replaced(cache: Cache) -> Cache:
        if type(cache) is KVCache:
            return made(group_size=group_size, bits=bits)
        if isinstance(cache, ArraysCache):
            return cache
        if isinstance(cache, CacheList):
            return CacheList(*(replaced(part) for part in cache.caches))
        raise AttemptError(
            "kv_bits_unsupported",
            f"kv_bits {bits}: mlx-lm cannot quantize a {class_name(cache)}; this model has {_kinds(caches)}",
            _REMEDY,
        )

    result = [replaced(cache) for cache in caches]
    if not any("Quantized" in class_name(cache) for cache in result):
        raise AttemptError(
            "kv_bits_unsupported",
            f"kv_bits {bits}: this model keeps no keys and values that grow; its caches are {_kinds(caches)}",
            _REMEDY,
        )
    return result


def demand_quantized(caches: Sequence[Cache], bits: int) -> None:
    """Checks caches that have held tokens: what grows is quantized, as it was asked for.

    A generator that puts caches of its own in the place of those it was given decodes all the same, and its figures
    would pass for those of a quantized cache.

    Raises:
        AttemptError: some cache is not quantized, or to other bits, by its class.
    """
    for cache in leaves(caches):
        if isinstance(cache, GROWING + SLIDING) and not (
            isinstance(cache, QuantizedKVCache) and cache.bits == bits and not _is_plain(cache)
        ):
            raise AttemptError(
                "kv_bits_unsupported",
                f"kv_bits {bits} were asked for, but keys and values ran in {_kinds(caches)}",
                _REMEDY,
            )


def _is_plain(cache: QuantizedKVCache) -> bool:
    """Whether a cache of the quantized class holds values that are not packed into whole numbers."""
    return not cache.empty() and cache.keys[0].dtype != mx.uint32


def unsupported(bits: int, group_size: int, caches: Sequence[Cache], error: Exception) -> AttemptError:
    """The failure of a model that ran with plain caches but not with these quantized ones."""
    return AttemptError(
        "kv_bits_unsupported",
        f"kv_bits {bits} in groups of {group_size} do not fit this model, which runs with {_kinds(caches)}: "
        f"{type(error).__name__}: {error}",
        _REMEDY,
    )


def _kinds(caches: Sequence[Cache]) -> str:
    return ", ".join(sorted({class_name(cache) for cache in caches}))


def _grown(array: mx.array, size: int) -> mx.array:
    missing = size - array.shape[2]
    return array if missing == 0 else mx.pad(array, [(0, 0), (0, 0), (0, missing), (0, 0)])

"""Owns importing mlx-lm without what it imports for tokenizers and downloads, of which a worker has no use.

Does not import anything by itself. Of 1.15 s that `import mlx_lm` takes, transformers took 0.87 s and the hub's client
0.15 s; a worker, whose prompts are token ids and whose models are folders, needs neither, and there is one per cell.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNUSED = ("transformers", "transformers.tokenization_utils_base", "huggingface_hub")


class _StandIn(ModuleType):
    """Has every name that somebody imports from it: a class that can be inherited and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"register": staticmethod(lambda *_, **__: None)})
        setattr(self, name, made)
        return made


@contextmanager
def without_tokenizers() -> Iterator[None]:
    """Inside, `import mlx_lm` gets stand-ins for packages that a worker does not use.

    Outside they are gone: a model's own code that imports transformers gets the real one. What is imported already
    stays as it is.
    """
    placed = {name: _StandIn(name) for name in _UNUSED if name.partition(".")[0] not in sys.modules}
    sys.modules.update(placed)
    try:
        yield
    finally:
        for name in placed:
            sys.modules.pop(name, None)

"""Owns MLX as a library inside this process: a safe import, its memory figures, its device, its versions.

Does not own models, caches or decoding. Importing this module imports MLX and mlx-lm.
"""

from __future__ import annotations

import os
import platform
import resource
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING

from worker.lean_import import without_tokenizers
from worker.measure import MemoryReading
from worker.protocol import PROTOCOL, Hello

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def _tolerant_file_limit() -> Iterator[None]:
    """Keeps an import from lowering the limit of open files, or failing where the hard limit is lower.

    mlx_lm.utils asks for (2048, 4096) when it is imported; only root may raise a hard limit.
    """
    real = resource.setrlimit

    def bounded(which: int, limits: tuple[int, int]) -> None:
        if which != resource.RLIMIT_NOFILE:
            real(which, limits)
            return
        soft, hard = resource.getrlimit(which)
        wish = limits[0] if hard == resource.RLIM_INFINITY else min(limits[0], hard)
        if soft != resource.RLIM_INFINITY and wish > soft:
            real(which, (wish, hard))

    resource.setrlimit = bounded
    try:
        yield
    finally:
        resource.setrlimit = real


# Workers get a folder; nothing they import may wait for a network. Set before the import that reads it.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
with _tolerant_file_limit(), without_tokenizers():
    import mlx.core as mx
    from mlx_lm.generate import (
        generation_stream,  # also for everybody else: the first import is this guarded one
    )

_SWITCHES = ("MLX_", "AGX_", "MTL_", "METAL_")  # whose environment variables change what the GPU does
_PACKAGES = ("mlx", "mlx-lm", "mlx-metal", "mlx-cpu", "mlx-cuda", "transformers", "numpy")


class MlxMemory:
    """MLX's allocator. Its buffer cache is not in the peak; the system's footprint holds both."""

    def reset_peak(self) -> None:
        """Starts a new peak."""
        mx.reset_peak_memory()

    def read(self) -> MemoryReading:
        """The figures now, in bytes."""
        return MemoryReading(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())


def hello(backstops: dict[str, str]) -> Hello:
    """Who this worker is, what it runs on, and what ends it when nobody else does."""
    info = {str(key): value for key, value in mx.device_info().items() if isinstance(value, int | str)}
    return Hello(
        pid=os.getpid(),
        protocol=PROTOCOL,
        device=str(mx.default_device()),
        versions=_versions(),
        backstops=backstops,
        device_info=info,
        switches={key: value for key, value in sorted(os.environ.items()) if key.startswith(_SWITCHES)},
    )


def release() -> None:
    """Waits for what is still running and gives cached buffers back; callers drop their arrays first."""
    mx.synchronize(generation_stream)
    mx.synchronize()
    mx.clear_cache()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # a build for another platform
    return found

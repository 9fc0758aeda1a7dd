"""One sweep over models of every kind of cache that mlx-lm has, and one that it cannot batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
import yaml
from sweeps import desk

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# What each model's layers keep, by the classes of mlx-lm's batch caches.
KINDS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "llama": (tiny.LLAMA, {"BatchKVCache"}),
    "qwen3": (tiny.QWEN3, {"BatchKVCache"}),
    "mixture-of-experts": (tiny.QWEN3_MOE, {"BatchKVCache"}),
    "gemma3-sliding-window": (tiny.GEMMA3, {"BatchKVCache", "BatchRotatingKVCache"}),
    "deepseek-v3-latent-attention": (tiny.DEEPSEEK_V3, {"BatchKVCache"}),
    "mamba2-state": (tiny.MAMBA2, {"ArraysCache"}),
    "rwkv7-state": (tiny.RWKV7, {"ArraysCache"}),
    "qwen3-next-hybrid": (tiny.QWEN3_NEXT, {"ArraysCache", "BatchKVCache"}),
    "falcon-h1-hybrid": (tiny.FALCON_H1, {"CacheList(ArraysCache, BatchKVCache)"}),
    "gpt-oss-sinks": (tiny.GPT_OSS, {"BatchKVCache", "BatchRotatingKVCache"}),
}


def test_a_sweep_over_models_of_every_kind(tmp_path: Path) -> None:
    variants = [{"name": name, "model": {"synthetic": _plain(config)}} for name, (config, _) in KINDS.items()]
    llama4 = {"synthetic": _plain(tiny.LLAMA4)}
    plan = {
        "model": llama4,
        "batches": [3],
        "contexts": [40],
        "gen_tokens": 4,
        "reps": 1,
        "warmup": 0,
        "order": "as_written",
        # What mlx-lm cannot batch comes first: the sweep has to go on after it.
        "variants": [{"name": "llama4-chunks"}, {"name": "llama4-lockstep", "engine": "lockstep"}, *variants],
    }
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(plan))
    with desk(tmp_path) as at:
        done = at.run(tmp_path / "night.yaml", "--plain")
        cells = {cell["variant"]: cell for cell in at.status()["cells"]}
        assert done.returncode == 1, done.stderr  # one cell failed
    refused = cells.pop("llama4-chunks")
    assert (refused["verdict"], refused["cause"]) == ("failed", "not_batchable")
    assert "ChunkedKVCache does not yet support batching" in refused["detail"]
    assert {name: cell["verdict"] for name, cell in cells.items()} == dict.fromkeys(
        ["llama4-lockstep", *KINDS], "completed"
    )
    for name, (_, classes) in KINDS.items():
        result = json.loads((tmp_path / f"runs/night/cells/{name}/c00040-b003/attempt-1/result.json").read_bytes())
        assert set(result["model"]["cache_classes"]) == classes, name
        assert result["reps"][0]["rows_per_step"] == [3, 3, 3]
        assert cells[name]["peak_term"] in ("weights", "kv", "logits", "activations", "rest")


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """The config as a plan holds it. In float32: MLX's CPU build has no experts in bfloat16."""
    return {**config, "dtype": "float32"}

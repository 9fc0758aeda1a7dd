"""What the worker uses of mlx-lm beyond its documented interface: a version that changes it breaks here."""

from __future__ import annotations

import inspect
import resource
import subprocess
import sys
from typing import Any

import mlx.core as mx
import pytest
import tiny_models as tiny
from mlx_lm import utils
from mlx_lm.generate import BatchGenerator, GenerationBatch
from mlx_lm.models import cache as caches
from worker_driver import ROOT, make_spec

from worker import mlx_runtime, models
from worker.engines import batched
from worker.engines.batched import BatchedEngine, wired_limit_in_force


def test_architectures_are_found_by_config() -> None:
    model_class, args_class = utils._get_classes({"model_type": "llama"})
    assert model_class.__module__ == "mlx_lm.models.llama"
    assert "hidden_size" in inspect.signature(args_class).parameters


def test_the_generator_takes_what_is_given_to_it() -> None:
    made = inspect.signature(BatchGenerator.__init__).parameters
    assert {"max_tokens", "completion_batch_size", "prefill_batch_size", "prefill_step_size"} <= made.keys()
    assert "caches" in inspect.signature(BatchGenerator.insert).parameters
    assert {"token", "logprobs"} <= GenerationBatch.Response.__dataclass_fields__.keys()


@pytest.mark.parametrize("name", ["KVCache", "RotatingKVCache", "ArraysCache", "CacheList"])
def test_caches_of_one_row_merge(name: str) -> None:
    assert hasattr(getattr(caches, name), "merge")


def test_quantized_caches_still_do_not_merge() -> None:
    """Once they do, EqualRowsQuantizedKVCache can go."""
    assert not hasattr(caches.QuantizedKVCache, "merge")


def test_caches_grow_by_256() -> None:
    """docs/measurement.md and the footprint model rely on it."""
    assert caches.KVCache.step == caches.BatchKVCache.step == caches.QuantizedKVCache.step == 256


def _generator_calls(monkeypatch: pytest.MonkeyPatch, wired_limit: str) -> list[int]:
    """How often mlx-lm was made to touch the wired limit by one short repetition."""
    calls: list[int] = []
    module: Any = sys.modules[BatchGenerator.__module__]
    monkeypatch.setattr(module, "maybe_set_recommended_wired_limit", lambda: calls.append(1))
    spec = make_spec(engine="batched", wired_limit=wired_limit, model=tiny.source(tiny.LLAMA))
    loaded = models.load(spec.model, 0, tiny.make_progress()[0])
    engine = BatchedEngine(loaded.model, spec)
    engine.prefill([[1, 2, 3]], lambda: None)
    engine.finish()
    return calls


def test_wired_limit_off_leaves_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _generator_calls(monkeypatch, "off") == []


def test_wired_limit_default_is_mlx_lms_own_affair(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _generator_calls(monkeypatch, "default") == [1]


def test_the_record_says_what_became_of_the_wired_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched.mx, "device_info", lambda: {"max_recommended_working_set_size": 40_000})
    assert wired_limit_in_force("default") == "set by mlx-lm to 40000 bytes"
    assert wired_limit_in_force("off") == "untouched"
    monkeypatch.setattr(batched.mx, "device_info", dict)
    assert wired_limit_in_force("default") == "untouched"


@pytest.mark.parametrize(("soft", "hard", "kept"), [(512, 1024, (1024, 1024)), (3000, 8192, (3000, 8192))])
def test_the_import_survives_any_limit_of_open_files(soft: int, hard: int, kept: tuple[int, int]) -> None:
    """Under a hard limit that mlx-lm would have to raise, and without lowering a higher one."""
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < hard:
        pytest.skip(f"this machine's hard limit is {allowed}")
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({}, {})); import worker.mlx_runtime; "
        "print(r.getrlimit(r.RLIMIT_NOFILE), r.setrlimit.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code.format(soft, hard)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{kept} setrlimit\n"


def test_hello_names_device_and_versions() -> None:
    hello = mlx_runtime.hello({"timer": "on"})
    assert hello.device == str(mx.default_device())
    assert hello.versions["mlx"] == mx.__version__
    assert {"python", "mlx-lm"} <= hello.versions.keys()
    assert hello.backstops == {"timer": "on"}
    assert hello.device_info


def test_hello_names_the_switches_that_change_what_the_gpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_MAX_OPS_PER_BUFFER", "4")
    monkeypatch.setenv("AGX_RELAX_CDM_CTXSTORE_TIMEOUT", "1")
    monkeypatch.setenv("HF_TOKEN", "secret")
    switches = mlx_runtime.hello({}).switches
    assert switches["MLX_MAX_OPS_PER_BUFFER"] == "4"
    assert switches["AGX_RELAX_CDM_CTXSTORE_TIMEOUT"] == "1"
    assert "HF_TOKEN" not in switches

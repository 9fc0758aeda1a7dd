"""What a worker's environment holds, whatever that of the sweep holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.child import _worker_env

if TYPE_CHECKING:
    import pytest

SWITCH = "MLX_METAL_FAST_SYNCH"


def test_switches_that_wedge_the_gpu_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setenv("MLX_MAX_OPS_PER_BUFFER", "4")
    env = _worker_env({})
    assert SWITCH not in env
    assert "PYTHONINSPECT" not in env  # a worker that fell into a prompt would never end
    assert env["MLX_MAX_OPS_PER_BUFFER"] == "4"
    assert _worker_env({SWITCH: "1"})[SWITCH] == "1", "a plan that names it means it"


def test_no_plan_lets_a_worker_talk_to_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    env = _worker_env({"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0", "OMP_NUM_THREADS": "1"})
    assert (env["HF_HUB_OFFLINE"], env["TRANSFORMERS_OFFLINE"], env["OMP_NUM_THREADS"]) == ("1", "1", "1")

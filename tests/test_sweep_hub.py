"""A sweep over a hub model: downloaded once, before the first cell; its commit pinned; workers offline."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
import yaml
from fake_hub import COMMIT, fake_hub
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from sweeps import desk, wait_until

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "rms_norm_eps": 0.001,
    "tie_word_embeddings": True,
}


@pytest.fixture(autouse=True)
def fresh_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, and nothing of the caller's that would change where the client looks."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))


def hub_files(folder: Path) -> dict[str, bytes]:
    model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors": (folder / "model.safetensors").read_bytes(),
    }


@pytest.mark.slow
def test_a_hub_model_is_downloaded_once_and_measured_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"model": "org/tiny", "contexts": [8], "gen_tokens": 4, "reps": 1, "warmup": 0}
    absent = {"name": "absent", "model": "org/absent"}
    plan = tmp_path / "night.yaml"
    plan.write_text(yaml.safe_dump({**keys, "batches": [1, 2], "variants": [{"name": "tiny"}, absent]}))
    with fake_hub("org/tiny", hub_files(tmp_path)) as (address, asked), desk(tmp_path) as at:
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert at.run(plan).returncode == 1
        cells = {cell["cell_id"]: cell for cell in at.status()["cells"]}
        assert [cells[f"tiny/c00008-b00{n}"]["verdict"] for n in (1, 2)] == ["completed", "completed"]
        assert [cells[f"absent/c00008-b00{n}"]["cause"] for n in (1, 2)] == ["model_unavailable"] * 2
        assert "RepositoryNotFoundError" in cells["absent/c00008-b001"]["detail"]
        events = at.journal()
        names = [e["event"] for e in events]
        assert names.index("model.resolved") < names.index("cell.started")
        assert next(e for e in events if e["event"] == "model.resolved")["revision"] == COMMIT
        downloads = [path for path in asked if path.startswith("GET") and "model.safetensors" in path]
        assert len(downloads) == 1


def test_a_hub_that_was_not_reached_leaves_the_cells_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with desk(tmp_path) as at:
        plan = at.plan(batches=[1], model="org/tiny")
        stopped = at.run(plan)
        assert stopped.returncode == 3, stopped.stderr
        assert "network" in stopped.stderr
        assert at.status()["state"] == "stopped"
        assert at.verdicts() == {"c00064-b001": (None, None)}
        with fake_hub("org/tiny", {"config.json": b"{}"}) as (address, _):
            monkeypatch.setenv("HF_ENDPOINT", address)
            assert at.resume().returncode == 0
        assert at.verdicts() == {"c00064-b001": ("completed", None)}


def test_a_model_that_is_not_there_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub("org/tiny", {"config.json": b"{}"}) as (address, _), desk(tmp_path) as at:
        monkeypatch.setenv("HF_ENDPOINT", address)
        done = at.run(at.plan(batches=[1, 2], model="org/absent", retries={"crashed": 0, "failed": 2}))
        assert done.returncode == 1, done.stderr
        assert set(at.verdicts().values()) == {("failed", "model_unavailable")}
        assert [event["event"] for event in at.journal()].count("cell.ended") == 2


def test_a_download_does_not_outlive_its_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, desk(tmp_path) as at:  # takes connections, never answers
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        process = at.start("run", at.plan(batches=[1], model="org/tiny"), "-o", at.runs)
        wait_until(lambda: any("orchestrator.download" in line for line in at.command_lines()))
        process.kill()
        process.communicate()
        wait_until(lambda: not at.left_behind(), limit_s=5.0)


def test_a_deadline_ends_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, desk(tmp_path) as at:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        done = at.run(at.plan(batches=[1], model="org/tiny", deadline="2s"))
        assert done.returncode == 124, done.stderr
        assert at.verdicts() == {"c00064-b001": (None, None)}

"""Where a model comes from: a folder, or a hub (a real client against a hub on loopback)."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from fake_hub import COMMIT, fake_hub

from orchestrator.download import Standstill
from orchestrator.errors import ModelUnavailable, ModelUnreachable
from orchestrator.model_store import resolve_folder, resolve_hub

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"other",
}


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_hub_model_is_downloaded_and_pinned(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub("org/tiny", FILES) as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        resolved = resolve_hub("org/tiny", None)
        assert resolved.revision == COMMIT
        assert (resolved.path / "config.json").read_bytes() == FILES["config.json"]
        assert (resolved.path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
        assert not (resolved.path / "pytorch_model.bin").exists()
        downloads = [path for path in asked if path.startswith("GET") and "/resolve/" in path]
        assert resolve_hub("org/tiny", COMMIT) == resolved
        again = [path for path in asked if path.startswith("GET") and "/resolve/" in path]
        assert again == downloads
    # the pinned commit is found in the cache when the hub is gone
    assert resolve_hub("org/tiny", COMMIT) == resolved


def test_a_gated_model_says_what_to_do(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub("org/gated", FILES, gated=True) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(ModelUnavailable, match=r"GatedRepoError.*ask for access"):
            resolve_hub("org/gated", None)


def test_a_model_that_is_not_there_says_so(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub("org/tiny", FILES) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(ModelUnavailable, match=r"org/missing: RepositoryNotFoundError.*spelling"):
            resolve_hub("org/missing", None)


def test_a_hub_that_is_not_reached_says_so(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelUnreachable, match=r"org/tiny: .*network"):
        resolve_hub("org/tiny", None)


def test_a_download_that_stalls_is_begun_again(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub("org/tiny", FILES, stalls="model.safetensors") as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        resolved = resolve_hub("org/tiny", None, stall_s=3.0)
        assert (resolved.path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert len([path for path in asked if path.startswith("GET") and path.endswith("/model.safetensors")]) == 2


def test_a_hub_that_never_answers_does_not_hold_the_night(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ModelUnreachable, match=r"org/tiny: no byte came for 0\.5 s"):
            resolve_hub("org/tiny", None, stall_s=0.5)


def test_standing_still_is_counted_from_the_last_change() -> None:
    standstill = Standstill(10.0, now_s=100.0)
    looks = [("a", 101), ("a", 111), ("b", 111.5), ("b", 121), ("b", 121.6), ("c", 122), ("c", 133)]
    assert [standstill.over(seen, at_s) for seen, at_s in looks] == [False, False, False, False, True, False, True]


def test_a_folder_has_to_be_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="no such folder"):
        resolve_folder(tmp_path / "absent")
    with pytest.raises(ModelUnavailable, match=r"no config\.json"):
        resolve_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert resolve_folder(tmp_path).path == tmp_path


def test_a_download_is_ended_when_a_stop_is_wanted(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and never answers
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ModelUnreachable, match="org/tiny"):
            resolve_hub("org/tiny", None, lambda: True)

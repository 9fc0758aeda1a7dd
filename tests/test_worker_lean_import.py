"""A worker imports mlx-lm without what it has no use for, and whoever asks for that later gets the real thing."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_worker_imports_neither_tokenizers_nor_the_hub() -> None:
    found = run(
        "import sys, worker.engines.cell\n"
        "print(*sorted(name for name in sys.modules if name.partition('.')[0] in "
        "('transformers', 'tokenizers', 'huggingface_hub', 'torch')))"
    )
    assert found == ""


def test_the_real_package_comes_to_who_asks_for_it_later() -> None:
    found = run(
        "import worker.mlx_runtime\n"
        "import transformers, huggingface_hub\n"
        "print(transformers.__version__ != '', callable(huggingface_hub.snapshot_download), "
        "transformers.PreTrainedTokenizerFast.__module__.startswith('transformers'))"
    )
    assert found == "True True True"


def test_what_is_there_already_stays() -> None:
    found = run(
        "import transformers; real = transformers.AutoTokenizer\n"
        "import worker.mlx_runtime, mlx_lm.tokenizer_utils as lm\n"
        "print(lm.AutoTokenizer is real)"
    )
    assert found == "True"

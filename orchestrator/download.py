"""Owns the download of a model from the Hugging Face hub, as a process of its own.

Run as `python -P -m orchestrator.download REPO [REVISION]`; prints one JSON object on stdout, progress on stderr.
A process, so that the hub client's memory is given back before the first cell, and a hung download can be ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading

# What mlx-lm's own loader looks for; the weights of other frameworks in the same repository are left out.
_PATTERNS = [
    "*.json",
    "model*.safetensors",
    "*.py",
    "tokenizer.model",
    "*.tiktoken",
    "*.txt",
    "*.jsonl",
    "*.jinja",
]


def fetch(repo: str, revision: str | None) -> dict[str, str | bool]:
    """Brings a repository's files into the hub cache, or finds them there.

    Returns:
        `{"path": folder, "revision": commit}`, or `{"error": text, "remedy": text}`, with `"transient": true` where
        another try may end otherwise.
    """
    from huggingface_hub import snapshot_download  # costs 30 MB and 0.3 s: only in this process
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        path = snapshot_download(repo, revision=revision, allow_patterns=_PATTERNS)
    except GatedRepoError as error:
        remedy = "ask for access on the model's page, then `hf auth login`"
        return _refusal(error, remedy)
    except RepositoryNotFoundError as error:
        remedy = "check the spelling of `model`, or `hf auth login` if the repository is private"
        return _refusal(error, remedy)
    except RevisionNotFoundError as error:
        return _refusal(error, "check `revision`: a branch, a tag or a commit of that repository")
    except LocalEntryNotFoundError as error:
        return _refusal(error, "the hub was not reached and the model is not in the cache; check the network", True)
    # The boundary of this process: whatever the hub client and its HTTP library raise has to become an answer.
    except Exception as error:  # noqa: BLE001 - see above
        return _refusal(error, "check the network and the disk; finished files are kept", True)
    return {"path": path, "revision": path.rstrip("/").rsplit("/", 1)[-1]}


def _refusal(error: Exception, remedy: str, transient: bool = False) -> dict[str, str | bool]:
    said = str(error).strip().splitlines() or ["no reason given"]
    return {"error": f"{type(error).__name__}: {said[0]}", "remedy": remedy, "transient": transient}


def _end_with_parent() -> None:
    """Ends this process when whoever started it is gone: that closes our stdin."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    print(json.dumps(fetch(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)))

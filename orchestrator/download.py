"""Owns the download of a model from the Hugging Face hub, as a process of its own.

Run as `python -P -m orchestrator.download REPO STALL_S [REVISION]`; prints one JSON object on stdout, progress on
stderr. A process, so that the hub client's memory is given back before the first cell, and a hung one can be ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

_LOOKS = 10  # per stall limit
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


class Standstill:
    """Tells when what is looked at has not changed for so many seconds."""

    def __init__(self, limit_s: float, now_s: float) -> None:
        self._limit_s, self._changed_at_s = limit_s, now_s
        self._seen: object = None

    def over(self, seen: object, now_s: float) -> bool:
        """Whether nothing has changed for longer than the limit."""
        if seen != self._seen:
            self._seen, self._changed_at_s = seen, now_s
        return now_s - self._changed_at_s > self._limit_s


def fetch(repo: str, revision: str | None, stall_s: float) -> dict[str, str | bool]:
    """Brings a repository's files into the hub cache, or finds them there.

    Ends this process, with an answer, where no byte has come for `stall_s` seconds: the client's own time limits hold
    for single requests only.

    Returns:
        `{"path": folder, "revision": commit}`, or `{"error": text, "remedy": text}`, with `"transient": true` where
        another try may end otherwise (and `"stalled": true` where it may do so at once).
    """
    from huggingface_hub import constants, snapshot_download  # costs 30 MB and 0.3 s: only in this process
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    caches = (Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}", Path(constants.HF_XET_CACHE))
    threading.Thread(target=_end_at_standstill, args=(caches, stall_s), daemon=True).start()
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


def _end_at_standstill(caches: tuple[Path, ...], limit_s: float) -> None:
    standstill = Standstill(limit_s, time.monotonic())
    while not standstill.over(_look(caches), time.monotonic()):
        time.sleep(limit_s / _LOOKS)
    answer = {"error": f"no byte came for {limit_s:g} s", "remedy": "finished files are kept; check the network"}
    print(json.dumps({**answer, "transient": True, "stalled": True}), flush=True)
    os._exit(1)


def _look(caches: tuple[Path, ...]) -> tuple[int, int, int]:
    """Number of files, their bytes and the time of the last change: any byte that comes changes one of them."""
    found = []
    for path in (path for cache in caches for path in cache.rglob("*")):
        with contextlib.suppress(OSError):  # a part that was renamed into its place meanwhile
            found.append(path.lstat())
    return len(found), sum(s.st_size + s.st_blocks for s in found), max((s.st_mtime_ns for s in found), default=0)


def _end_with_parent() -> None:
    """Ends this process when whoever started it is gone: that closes our stdin."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    print(json.dumps(fetch(sys.argv[1], sys.argv[3] if len(sys.argv) > 3 else None, float(sys.argv[2]))))

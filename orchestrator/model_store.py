"""Owns where a model comes from before the first cell: a folder, made-up weights, or a download that is pinned.

Does not load anything (the worker does).
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ModelUnavailable


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model on this disk. `revision` is the hub's commit, None for a folder."""

    source: str
    path: Path
    revision: str | None


def resolve_hub(repo: str, revision: str | None) -> Resolved:
    """Downloads a hub model, or finds it in the cache; progress goes to stderr.

    A Ctrl-C reaches the downloading process as well as us; what it had finished is kept.

    Raises:
        ModelUnavailable: it cannot be had; the message says why and what to do.
    """
    command = [sys.executable, "-P", "-m", "orchestrator.download", repo]
    done = subprocess.run([*command, *([revision] if revision else [])], stdout=subprocess.PIPE, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise ModelUnavailable(
            f"model: {repo}: the download ended without an answer (status {done.returncode}); run again, it goes on"
        ) from None
    if "error" in answer:
        raise ModelUnavailable(f"model: {repo}: {answer['error']}; {answer['remedy']}")
    return Resolved(repo, Path(answer["path"]), answer["revision"])


def resolve_folder(path: Path) -> Resolved:
    """Takes a local folder.

    Raises:
        ModelUnavailable: it is not there, or holds no model.
    """
    if not path.is_dir():
        raise ModelUnavailable(f"model: {path}: no such folder; give a folder with config.json, or a hub id `org/name`")
    if not (path / "config.json").is_file():
        raise ModelUnavailable(f"model: {path}: there is no config.json in it; give an MLX model folder")
    return Resolved(str(path), path, None)

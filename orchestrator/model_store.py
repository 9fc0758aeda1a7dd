"""Owns where a model comes from before the first cell: a folder, made-up weights, or a download that is pinned.

Does not load anything (the worker does).
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ModelUnavailable
from worker.protocol import ModelSource

if TYPE_CHECKING:
    from orchestrator.ledger import Ledger
    from orchestrator.plan import Settings


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model on this disk. `revision` is the hub's commit, None for a folder."""

    source: str
    path: Path
    revision: str | None


class ModelStore:
    """The models of one sweep. What the hub gave is pinned in the ledger, so that a resumed sweep takes the same."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[tuple[str, str | None], Path] = {}

    def source(self, settings: Settings) -> ModelSource:
        """The model of a cell on this disk; a hub model is downloaded once.

        Raises:
            ModelUnavailable: it cannot be had.
        """
        model = settings.model_ref
        if model.synthetic is not None:
            return ModelSource(
                config_json=model.synthetic.config_json,
                dtype=model.synthetic.dtype,
                quantization_bits=model.synthetic.quantization_bits,
                quantization_group_size=model.synthetic.quantization_group_size,
            )
        name = model.name or ""
        key = (name, settings.revision)
        if key not in self._known:
            self._known[key] = (
                resolve_folder(Path(name)) if model.kind == "folder" else self._pinned(name, settings.revision)
            ).path
        return ModelSource(path=str(self._known[key]), trust_remote_code=settings.trust_remote_code)

    def _pinned(self, name: str, revision: str | None) -> Resolved:
        key = f"{name}@{revision or 'main'}"
        pinned = self._ledger.history.models.get(key, {}).get("revision")
        resolved = resolve_hub(name, pinned or revision)
        if pinned is None:
            self._ledger.append("model.resolved", source=key, revision=resolved.revision)
        return resolved


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

"""Owns where a model comes from before the first cell: a folder, made-up weights, or a download that is pinned.

Does not load anything (the worker does).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ModelChanged, ModelUnavailable, ModelUnreachable
from orchestrator.model_files import StopWanted, changed_files, files_digest, model_files, quantization_of
from worker.protocol import ModelSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.ledger import Ledger
    from orchestrator.plan import Settings


_NAMED = 3
_LOOK_S = 0.25
_STALL_S = 600.0  # without a byte; the client writes in pieces of 10 MB, so this is 17 kB/s
_TRIES = 3  # of a download that stalls: the next one often does not, and goes on where that one was


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model on this disk. `revision` is the hub's commit, None for a folder."""

    source: str
    path: Path
    revision: str | None


class ModelStore:
    """The models of one sweep. Revision and files are pinned in the ledger, so that a resumed sweep has the same."""

    def __init__(
        self, ledger: Ledger, stop_wanted: Callable[[], bool], is_measured: Callable[[Settings], bool]
    ) -> None:
        """`is_measured` says whether some cell was measured with a model of these settings."""
        self._ledger, self._stop_wanted, self._is_measured = ledger, stop_wanted, is_measured
        self._known: dict[tuple[str, str | None], Path] = {}

    def source(self, settings: Settings) -> ModelSource:
        """The model of a cell on this disk; a hub model is downloaded once.

        Raises:
            ModelUnavailable: there is no such model, or it may not be had.
            ModelUnreachable: it could not be brought this time.
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
            if model.kind == "folder":
                resolved = resolve_folder(Path(name))
                self._pin(name, resolved, settings)
            else:
                resolved = self._pinned(name, settings)
            self._known[key] = resolved.path
        return ModelSource(path=str(self._known[key]), trust_remote_code=settings.trust_remote_code)

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """What is known of the models, by the names that the plan has for them, folders by their last part only."""
        kept = ("revision", "digest", "quantization")
        models = self._ledger.history.models.items()
        return {Path(name).name if name.startswith("/") else name: {k: m.get(k) for k in kept} for name, m in models}

    def _pinned(self, name: str, settings: Settings) -> Resolved:
        key = f"{name}@{settings.revision or 'main'}"
        pinned = self._ledger.history.models.get(key, {}).get("revision")
        resolved = resolve_hub(name, pinned or settings.revision, self._stop_wanted)
        self._pin(key, resolved, settings)
        return resolved

    def _pin(self, key: str, resolved: Resolved, settings: Settings) -> None:
        """Writes down what the model is; once something was measured with it, it has to stay the same.

        Raises:
            ModelChanged: its files are others.
            ModelUnreachable: a stop is wanted, or a file cannot be read.
        """
        known = self._ledger.history.models.get(key, {}).get("files") or ()
        try:
            files = model_files(resolved.path, known, self._stop_wanted)
        except StopWanted:
            raise ModelUnreachable(f"model: {key}: its files were not read to their end; resume, it goes on") from None
        except OSError as error:
            raise ModelUnreachable(f"model: {key}: {error.filename}: cannot be read: {error.strerror}") from error
        changed = changed_files(known, files)
        if known and changed and self._is_measured(settings):
            raise ModelChanged(
                f"model: {key}: {', '.join(changed[:_NAMED])} changed since this run began, so its cells would not be "
                "comparable; put that back, or start a run under another --name"
            )
        if changed:
            self._ledger.append(
                "model.resolved",
                source=key,
                revision=resolved.revision,
                digest=files_digest(files),
                quantization=quantization_of(resolved.path),
                files=[file.to_json() for file in files],
            )


def resolve_hub(
    repo: str,
    revision: str | None,
    stop_wanted: Callable[[], bool] = lambda: False,
    *,
    stall_s: float = _STALL_S,
) -> Resolved:
    """Downloads a hub model, or finds it in the cache; progress goes to stderr.

    Where a stop is wanted the download is ended; the files that it had finished are kept. One that stands still for
    `stall_s` seconds is ended too, and begun again a few times.

    Raises:
        ModelUnavailable: there is no such model, or it may not be had; the message says what to do.
        ModelUnreachable: it could not be brought this time.
    """
    for _ in range(_TRIES):
        answer = _asked(repo, revision, stop_wanted, stall_s)
        if not answer.get("stalled"):
            break
    if "error" in answer:
        kind = ModelUnreachable if answer["transient"] else ModelUnavailable
        raise kind(f"model: {repo}: {answer['error']}; {answer['remedy']}")
    return Resolved(repo, Path(answer["path"]), answer["revision"])


def _asked(repo: str, revision: str | None, stop_wanted: Callable[[], bool], stall_s: float) -> dict[str, Any]:
    """What one download process answers (download.py).

    Raises:
        ModelUnreachable: it ended without an answer.
    """
    command = [sys.executable, "-P", "-m", "orchestrator.download", repo, str(stall_s)]
    # The child reads its stdin for our end, and is in a session of its own: a terminal's Ctrl-C is ours to pass on.
    child_stdin, lifeline = os.pipe()
    try:
        process = subprocess.Popen(
            [*command, *([revision] if revision else [])],
            stdin=child_stdin,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        os.close(child_stdin)
        with process:
            told = _answer_of(process, stop_wanted)
    finally:
        os.close(lifeline)
    try:
        answer: dict[str, Any] = json.loads(told)
    except ValueError:
        raise ModelUnreachable(
            f"model: {repo}: the download ended without an answer (status {process.returncode}); resume, it goes on"
        ) from None
    return answer


def _answer_of(process: subprocess.Popen[bytes], stop_wanted: Callable[[], bool]) -> bytes:
    while True:
        try:
            return process.communicate(timeout=_LOOK_S)[0]
        except subprocess.TimeoutExpired:
            if stop_wanted():
                process.kill()


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

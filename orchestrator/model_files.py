"""Owns what a model's files are: which of them decide what is measured, their SHA-256, its quantization.

Does not bring models here (model_store.py) and does not load them.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_KINDS = ("config.json", "*.safetensors", "*.safetensors.index.json", "*.py")
_PIECE_BYTES = 8 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file: its name, bytes, time of its last change in nanoseconds, and SHA-256 in hexadecimal."""

    name: str
    size_bytes: int
    changed_ns: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return {"name": self.name, "size_bytes": self.size_bytes, "changed_ns": self.changed_ns, "sha256": self.sha256}


class StopWanted(Exception):
    """Somebody wants to stop; the files were not read to their end."""


def model_files(folder: Path, known: Sequence[Mapping[str, Any]], stop_wanted: Callable[[], bool]) -> list[ModelFile]:
    """The files of a model folder that decide what is measured.

    One that is as large and as old as in `known` (what an earlier sweep found) is not read again. The hub's cache
    names a weight file by its SHA-256, and is taken at its word.

    Raises:
        OSError: a file cannot be read.
        StopWanted: as it says.
    """
    earlier = {(str(k["name"]), int(k["size_bytes"]), int(k["changed_ns"])): str(k["sha256"]) for k in known}
    found = []
    for path in sorted({path for kind in _KINDS for path in folder.glob(kind) if path.is_file()}):
        stat = path.stat()
        digest = earlier.get((path.name, stat.st_size, stat.st_mtime_ns)) or _named_by_digest(path)
        found.append(ModelFile(path.name, stat.st_size, stat.st_mtime_ns, digest or _sha256(path, stop_wanted)))
    return found


def files_digest(files: Sequence[ModelFile]) -> str:
    """One SHA-256 over all names and contents, whatever the files' age."""
    lines = "".join(f"{file.sha256}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def changed_files(known: Sequence[Mapping[str, Any]], files: Sequence[ModelFile]) -> list[str]:
    """The names of files that are others than those in `known`, came, or went."""
    before = {str(k["name"]): str(k["sha256"]) for k in known}
    now = {file.name: file.sha256 for file in files}
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def quantization_of(folder: Path) -> dict[str, Any] | None:
    """Bits, group size and mode that the model's config gives for all layers; None where it is not quantized."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    found = config.get("quantization") if isinstance(config, dict) else None
    if not isinstance(found, dict):
        return None
    return {key: value for key, value in found.items() if isinstance(value, int | str) and not isinstance(value, bool)}


def _named_by_digest(path: Path) -> str | None:
    name = path.resolve().name if path.is_symlink() else ""
    return name if _SHA256.fullmatch(name) else None


def _sha256(path: Path, stop_wanted: Callable[[], bool]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            if stop_wanted():
                raise StopWanted(path.name)
            digest.update(piece)
    return digest.hexdigest()

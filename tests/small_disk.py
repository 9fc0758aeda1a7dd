"""Small file systems that a test fills, and one that turns read-only under open files. Always unmounted."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK = bytes(1 << 16)


def _ran(*command: str | Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run([*map(str, command)], capture_output=True, check=False).returncode == 0
    return False


@contextlib.contextmanager
def tmpfs(place: Path, options: str = "size=100m") -> Iterator[None]:
    """Memory as a file system at `place`."""
    place.mkdir()
    if not _ran("mount", "-t", "tmpfs", "-o", options, "tmpfs", place):
        pytest.skip("takes the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Ext4:
    """A file system of its own in a file, as a disk that fails: `abort` makes it read-only, also under open files."""

    def __init__(self, place: Path, image: Path) -> None:
        self._place, self._image = place, image

    def mount(self) -> bool:
        """Puts it in its place, its own journal replayed; whether that is permitted here."""
        self._place.mkdir(exist_ok=True)
        return _ran("mount", "-o", "loop,errors=remount-ro", self._image, self._place)

    def abort(self) -> None:
        """What the kernel does at the first error of a disk."""
        assert _ran("mount", "-o", "remount,abort", self._place)

    def unmount(self) -> bool:
        """Takes it away; False while something is open on it."""
        return _ran("umount", self._place)


@contextlib.contextmanager
def ext4(place: Path, image_bytes: int = 160 << 20) -> Iterator[Ext4]:
    """An ext4 file system at `place`."""
    image = place.with_name(f"{place.name}.img")
    if sys.platform != "linux" or shutil.which("mkfs.ext4") is None:
        pytest.skip("takes ext4")
    with image.open("wb") as file:
        file.truncate(image_bytes)
    disk = Ext4(place, image)
    if not _ran("mkfs.ext4", "-q", "-m", "0", image) or not disk.mount():
        pytest.skip("takes the right to mount a file")
    try:
        yield disk
    finally:
        if place.is_mount():
            subprocess.run(["umount", "-l", str(place)], check=True)
        image.unlink()


def fill(place: Path) -> Path:
    """Takes every byte of the file system; the file that holds them."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(_BLOCK)
    return filler


def take_every_inode(place: Path) -> list[Path]:
    """Makes files until no more can be made; those that were."""
    made: list[Path] = []
    with contextlib.suppress(OSError):
        while True:
            path = place / f"taken-{len(made)}"
            path.touch()
            made.append(path)
    return made

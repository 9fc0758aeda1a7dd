"""Owns which other processes share the machine at the start of a sweep: large ones and model servers, by name.

Does not read arguments, paths or environments; so a server that is a script of Python's cannot be told on macOS.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

import psutil

_LARGE_BYTES: Final = 1 << 30
_LARGE_FRAC: Final = 0.02
_MOST: Final = 20
_SERVERS: Final = ("ollama", "lm studio", "omlx", "llama-server", "vllm")


class Process(NamedTuple):
    """A process of the machine: its name without folders, and its resident bytes where we may know them."""

    name: str
    resident_bytes: int | None


def large_processes(processes: list[Process], memory_bytes: int) -> list[str]:
    """The names of those above 1 GiB or 2 % of the memory, largest first, twenty at most.

    Resident memory on macOS lacks what the GPU holds, so a model in another process may look small.
    """
    limit_bytes = min(_LARGE_BYTES, int(memory_bytes * _LARGE_FRAC))
    large = [each for each in processes if (each.resident_bytes or 0) > limit_bytes]
    large.sort(key=lambda each: each.resident_bytes or 0, reverse=True)
    return list(dict.fromkeys(each.name for each in large))[:_MOST]


def model_servers(processes: list[Process]) -> list[str]:
    """The names of those that are known to serve models, each once; of whatever size."""
    return sorted({each.name for each in processes if each.name.lower().startswith(_SERVERS)})[:_MOST]


def other_processes() -> list[Process]:
    """All processes that are not ours; those that end meanwhile are left out."""
    try:
        me = psutil.Process()
        own = {me.pid, *(child.pid for child in me.children(recursive=True))}
        return [
            Process(told_name(_name(each)), each.info["memory_info"] and each.info["memory_info"].rss)
            for each in psutil.process_iter(["memory_info"])
            if each.pid not in own
        ]
    except (psutil.Error, OSError, RuntimeError):  # psutil raises RuntimeError where a new macOS changed a structure
        return []


def told_name(name: str, home: Path | None = None) -> str:
    """The name as it may be written: without folders, and none that holds the name of the person's home."""
    last = name.rsplit("/", 1)[-1].strip()
    person = (home or Path.home()).name
    return "withheld" if len(person) > 2 and person.lower() in last.lower() else last


@functools.cache
def _libproc() -> ctypes.CDLL:
    """macOS' library of processes; a part of the C library where it has no file of its own."""
    return ctypes.CDLL(ctypes.util.find_library("proc") or ctypes.util.find_library("c"))


def _name(process: psutil.Process) -> str:
    # psutil's name() reads the arguments of a process whose name is long, which may hang on macOS.
    if sys.platform == "darwin":
        buffer = ctypes.create_string_buffer(256)
        _libproc().proc_name(process.pid, buffer, ctypes.c_uint32(len(buffer)))
        return os.fsdecode(buffer.value)
    else:
        try:
            return Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

"""Owns reading a small text file that a person names: a plan, a config.json. Does not know what is in it."""

import os
import stat
from pathlib import Path

from orchestrator.errors import PlanError
from orchestrator.plan.yaml import shown

MAX_FILE_BYTES = 1 << 20


def file_label(path: Path) -> str:
    """The path as messages show it, printable also where its bytes are not UTF-8."""
    return shown(os.fsencode(path).decode(errors="replace"), 300)


def read_text_file(path: Path, what: str, max_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of a small regular UTF-8 file; a byte order mark is left out.

    Raises:
        PlanError: it is missing, unreadable, no regular file, too large, or not UTF-8.
    """
    label = file_label(path)
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes would wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise PlanError([f"{label}: there is no such file; give the path of {what}"]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PlanError([f"{label}: cannot be read: {reason}; give the path of {what}"]) from None
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise PlanError([f"{label}: is a folder; give the path of {what}"])
        if not stat.S_ISREG(mode):
            raise PlanError([f"{label}: is not a regular file; give the path of {what}"])
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise PlanError([f"{label}: cannot be read: {error.strerror}"]) from None
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise PlanError([f"{label}: is larger than {max_bytes} bytes, too large for {what}"])
    return _decoded(data, label)


def _decoded(data: bytes, label: str) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise PlanError([f"{label}:1: is UTF-16 text; save the file as UTF-8"])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise PlanError([f"{label}:{line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"]) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise PlanError([f"{label}:{line}: holds a NUL byte: UTF-16 or binary data; save the file as UTF-8 text"])
    return text

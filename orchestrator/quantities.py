"""Owns how amounts and foreign text are put into words: GB of 1e9 bytes, durations, printable text.

Does not own layout (report/, progress.py) or evidence (evidence.py). Pure.
"""

from __future__ import annotations

import math


def amount(count: float) -> str:
    """Bytes as people read them: `15.6 GB`, `0.70 GB`, `41 MB`, `96 kB`, `17 B`. GB is 1e9 bytes."""
    size = abs(count)
    if size >= 99.5e6:
        return f"{count / 1e9:,.2f} GB" if size < 9.995e9 else f"{count / 1e9:,.1f} GB"
    if size >= 999.5e3:
        return f"{count / 1e6:.0f} MB"
    return f"{count / 1e3:.0f} kB" if size >= 1e3 else f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Seconds as people read them: `165 ms`, `2.3 s`, `42 s`, `5 min 03 s`, `1 h 02 min`."""
    if not math.isfinite(seconds):
        return "unknown"
    if 0 < seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count_of(number: int, noun: str) -> str:
    """`1 cell`, `3 cells`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def printable(text: str) -> str:
    """The text on one line and harmless: line ends and tabs become blanks, every other character that moves a
    cursor, sets a colour or turns the reading direction becomes its escape."""
    spaced = " ".join(text.split())
    if spaced.isprintable():
        return spaced
    return "".join(c if c.isprintable() else _escaped(c) for c in spaced)


def shortened(text: str, width: int, dots: str = "...") -> str:
    """The text cut to `width` characters, with dots where something was cut."""
    if len(text) <= width:
        return text
    return text[: max(width - len(dots), 0)] + dots[:width]


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

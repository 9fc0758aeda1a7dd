"""Owns the text of large JSON documents, indented as `json.dumps(indent=...)` does it. Does not know what they hold.

Python's own encoder leaves its quick form where it is to indent, and then takes seconds for ten thousand cells. Here it
stays quick: of a mapping, all that is no list or mapping itself is encoded at once, with the line ends as separators.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NESTED = frozenset({dict, list, tuple})


def json_text(value: Any, indent: int, *, depth: int = 0, allow_nan: bool = True) -> str:
    """What `json.dumps(value, indent=indent)` gives, for a value that stands `depth` levels deep.

    Of plain dicts with text for keys, lists and tuples.

    Raises:
        ValueError: a number is not finite, and that is not allowed.
    """
    if not value or type(value) not in _NESTED:
        return json.dumps(value, allow_nan=allow_nan)
    encode, line, end = _layout(indent, depth, allow_nan)
    if type(value) is not dict:
        if any(type(item) in _NESTED and item for item in value):
            inner = [json_text(item, indent, depth=depth + 1, allow_nan=allow_nan) for item in value]
            return f"[{line}{f',{line}'.join(inner)}{end}]"
        return f"[{line}{encode(value)[1:-1]}{end}]"
    nested = [key for key, inner in value.items() if type(inner) in _NESTED and inner]
    if not nested:
        return f"{{{line}{encode(value)[1:-1]}{end}}}"
    text = line + encode({**value, **dict.fromkeys(nested)})[1:-1]
    parts, start = ["{"], 0
    for key in nested:  # each takes the place of a null; no line ends within an encoded text
        slot = _slot(line, key)
        at = text.index(f"{slot}null", start) + len(slot)
        parts += (text[start:at], json_text(value[key], indent, depth=depth + 1, allow_nan=allow_nan))
        start = at + len("null")
    return "".join((*parts, text[start:], end, "}"))


@functools.cache
def _layout(indent: int, depth: int, allow_nan: bool) -> tuple[Callable[[Any], str], str, str]:
    """An encoder that ends a line at each separator, the start of a line at this depth, and that of the last one."""
    line = "\n" + " " * (indent * (depth + 1))
    encoder = json.JSONEncoder(separators=(f",{line}", ": "), allow_nan=allow_nan)
    return encoder.encode, line, "\n" + " " * (indent * depth)


@functools.lru_cache(maxsize=256)
def _slot(line: str, key: str) -> str:
    return f"{line}{json.dumps(key)}: "

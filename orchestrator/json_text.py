"""Owns the text of large JSON documents, indented as `json.dumps(indent=...)` does it. Does not know what they hold.

Python's own encoder leaves its quick form where it is to indent, and then takes seconds for ten thousand cells. Here it
stays quick: of a mapping, all that is no list or mapping itself is encoded at once, with the line ends as separators.
"""

from __future__ import annotations

import functools
import json
from typing import Any


def json_text(value: Any, indent: int, *, depth: int = 0, allow_nan: bool = True) -> str:
    """What `json.dumps(value, indent=indent)` gives, for a value that stands `depth` levels deep; keys are text.

    Raises:
        ValueError: a number is not finite, and that is not allowed.
    """
    if not value or not isinstance(value, (dict, list, tuple)):
        return json.dumps(value, allow_nan=allow_nan)
    line = "\n" + " " * (indent * (depth + 1))
    end = "\n" + " " * (indent * depth)
    if not isinstance(value, dict):
        if any(_is_nested(item) for item in value):
            inner = [json_text(item, indent, depth=depth + 1, allow_nan=allow_nan) for item in value]
            return f"[{line}{f',{line}'.join(inner)}{end}]"
        return f"[{line}{_encoder(line, allow_nan).encode(value)[1:-1]}{end}]"
    nested = {key: inner for key, inner in value.items() if _is_nested(inner)}
    text = line + _encoder(line, allow_nan).encode({**value, **dict.fromkeys(nested)})[1:-1]
    parts, start = ["{"], 0
    for key, inner in nested.items():  # each takes the place of a null; no line ends within an encoded text
        slot = f"{line}{json.dumps(key)}: "
        at = text.index(f"{slot}null", start) + len(slot)
        parts += (text[start:at], json_text(inner, indent, depth=depth + 1, allow_nan=allow_nan))
        start = at + len("null")
    return "".join((*parts, text[start:], end, "}"))


def _is_nested(value: Any) -> bool:
    return bool(value) and isinstance(value, (dict, list, tuple))


@functools.cache
def _encoder(line: str, allow_nan: bool) -> json.JSONEncoder:
    return json.JSONEncoder(separators=(f",{line}", ": "), allow_nan=allow_nan)

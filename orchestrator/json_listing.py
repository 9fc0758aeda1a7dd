"""Owns the text of a JSON document whose one long list has an item a line. Does not know what it holds.

An item a line is what people look at and programs cut; and Python's encoder leaves its quick form where it is to indent
inside of items, and then takes seconds for ten thousand of them.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_INDENT = 1


def json_listing(head: Mapping[str, Any], key: str, items: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The text in parts, an item at a time, so that no large document is ever held whole: `head`, and the list last.

    `head` is not empty and has no such key. A number that is not finite becomes null.
    """
    line = "\n" + " " * _INDENT
    yield f"{json.dumps(head, indent=_INDENT)[:-2]},{line}{json.dumps(key)}: ["
    for number, item in enumerate(items):
        yield f"{',' if number else ''}{line} {_text(item)}"
    yield f"{line}]\n}}"


def finite(value: Any) -> Any:
    """The value with null in place of every number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def _text(item: Mapping[str, Any]) -> str:
    try:
        text = to_json(item, inf_nan_mode="null").decode()  # in a fifth of the time
    except ValueError:  # it refuses half a character, as a worker's words may hold
        text = ""
    return text if text and text.isascii() else json.dumps(finite(item))  # beyond ASCII not every terminal takes it

"""Owns how the words and numbers of a plan are written: whole numbers, truth values, text, choices.

Does not know which keys there are, and leaves durations and sizes to quantities.py. Pure: each reader
takes a Scalar of the plan's text, or a Python value of a caller, and gives the value or says what is wrong
and right.
"""

import math
import re

from orchestrator.plan.yaml import KeyPath, Scalar, shown

_INT = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("true", "True", "TRUE"))
_FALSE = frozenset(("false", "False", "FALSE"))
_YES = frozenset(("yes", "on"))
_NO = frozenset(("no", "off"))
_DIGITS = 19  # of 2**63 - 1


class UnreadableError(ValueError):
    """A value that does not belong there; `problems` are (path below the value, what is wrong and right)."""

    def __init__(self, *problems: tuple[KeyPath, str]) -> None:
        super().__init__("; ".join(text for _, text in problems))
        self.problems = problems


def wrong(text: str) -> UnreadableError:
    """The one thing that is wrong with the value itself."""
    return UnreadableError(((), text))


# -- what a value is


def described(value: object) -> str:
    """`a list`, `a mapping`, `"text"`, `12`, `no value`: the value as the subject of a complaint."""
    if is_null(value):
        return "no value"
    if isinstance(value, Scalar):
        return shown(value.text) if value.plain else f'"{shown(value.text)}"'
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return shown(str(value))


def is_null(value: object) -> bool:
    """Whether nothing is given: `null`, `~`, or an empty place."""
    return value is None or (isinstance(value, Scalar) and value.plain and value.text in _NULL)


def whole_number_meant(text: str) -> int | None:
    """The whole number that odd notations mean: `1_000`, `010`, `+5`, `1e3`, `4.0`, `0x10`, `1,000`."""
    if len(text) > 40:
        return None
    bare = text.lstrip("+").replace("_", "").replace(",", "")
    if re.fullmatch(r"-?[0-9]+", bare):
        return int(bare)
    if re.fullmatch(r"0[xob][0-9a-fA-F]+", bare):
        try:
            return int(bare, 0)
        except ValueError:  # 0b12
            return None
    if _FLOAT.fullmatch(bare) and abs(number := float(bare)) < 2**53 and number.is_integer():
        return int(number)
    return None


def read_free(value: object) -> object:
    """A value of a config.json: JSON's numbers, true, false, null, text, and `.inf`.

    Raises:
        UnreadableError: YAML 1.1 and 1.2 disagree about it (`yes`, `010`, `1_000`, `12:30`, ...).
    """
    if not isinstance(value, Scalar) or not value.plain:
        return value.text if isinstance(value, Scalar) else value
    text = value.text
    for known, meaning in ((_NULL, None), (_TRUE, True), (_FALSE, False)):
        if text in known:
            return meaning
    if text.lower() in _YES | _NO:
        raise wrong(f'{text} is true or false to some and a word to others; write true, false or "{text}"')
    if _INT.fullmatch(text):
        return _bounded_int(text)
    if _FLOAT.fullmatch(text) and not re.match(r"-?0[0-9]", text):
        return _finite(text)
    if text in (".inf", "-.inf"):
        return math.inf if text == ".inf" else -math.inf
    if text in ("Infinity", "-Infinity"):
        raise wrong(f'{text} is a word in YAML; write {text.replace("Infinity", ".inf")}, or "{text}"')
    if text.lower() == ".nan" or text == "NaN":
        raise wrong(f"{text} is not a value a model can be made of; write a number")
    meant = whole_number_meant(text)
    if meant is not None or _SEXAGESIMAL.fullmatch(text):
        instead = "the plain number" if meant is None else str(meant)
        raise wrong(f'{shown(text)} is a different number to different programs; write {instead}, or "{shown(text)}"')
    return text


def _bounded_int(text: str) -> int:
    if len(text.lstrip("-")) > _DIGITS or abs(int(text)) >= 2**63:
        raise wrong(f"{shown(text)} is too large; write a number below 2**63")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise wrong(f"{shown(text)} is too large for a number; write a smaller one")
    return number


# -- the readers


def read_whole(value: object, low: int, high: int) -> int:
    """A whole number in plain decimal, within bounds.

    Raises:
        UnreadableError: it is not, with the number it seems to mean.
    """
    if isinstance(value, Scalar):
        if not value.plain or not _INT.fullmatch(value.text):
            raise _not_whole(value)
        digits = value.text.lstrip("-")
        number = int(value.text) if len(digits) <= _DIGITS else (10**_DIGITS) * (1, -1)[value.text[0] == "-"]
    elif type(value) is int:
        number = value
    else:
        raise _not_whole(value)
    if not low <= number <= high:
        raise wrong(f"{described(value)} is out of range; write a whole number from {low} to {high}")
    return number


def _not_whole(value: object) -> UnreadableError:
    if isinstance(value, list | tuple | dict):
        return wrong(f"{described(value)} stands where one whole number belongs; write a number alone")
    if is_null(value):
        return wrong("has no value; write a whole number, or leave the key out")
    text = value.text if isinstance(value, Scalar) else str(value)
    meant = whole_number_meant(text)
    remedy = "write a whole number in plain digits" if meant is None else f"write {meant}"
    return wrong(f"{described(value)} is not a plain whole number; {remedy}")


def read_number(value: object, low: float, high: float) -> float:
    """A number such as 2.5 or 6, within bounds.

    Raises:
        UnreadableError: it is none.
    """
    number: float | None = None
    if isinstance(value, Scalar):
        text = value.text
        if value.plain and _FLOAT.fullmatch(text) and not re.match(r"-?0[0-9]", text):
            number = float(text)
    elif type(value) in (int, float):
        number = float(value)  # type: ignore[arg-type]  # its exact type was just looked at
    if number is None or math.isnan(number):
        raise wrong(f"{described(value)} stands where a number belongs; write one such as 2.5")
    if not low <= number <= high:
        raise wrong(f"{described(value)} is out of range; write a number from {low:g} to {high:g}")
    return number


def read_flag(value: object) -> bool:
    """true or false, and nothing else.

    Raises:
        UnreadableError: it is neither.
    """
    text = value.text if isinstance(value, Scalar) and value.plain else None
    if value is True or text in _TRUE:
        return True
    if value is False or text in _FALSE:
        return False
    meant = {**dict.fromkeys(_YES, "true"), **dict.fromkeys(_NO, "false")}.get((text or "").lower(), "true or false")
    raise wrong(f"{described(value)} stands where true or false belongs; write {meant}")


def read_text(value: object, what: str = "text") -> str:
    """Text; what looks like a number, a truth value or nothing has to be quoted.

    Raises:
        UnreadableError: it is something else, or empty.
    """
    if isinstance(value, Scalar) and value.plain and not is_null(value):
        try:
            meaning = read_free(value)
        except UnreadableError:
            meaning = None
        if not isinstance(meaning, str):
            raise wrong(f'{described(value)} stands where {what} belongs; write it in quotes: "{shown(value.text)}"')
    text = value.text if isinstance(value, Scalar) else value
    if is_null(value) or not isinstance(text, str) or not text.strip():
        raise wrong(f"{described(value)} stands where {what} belongs; write {what}")
    if "\0" in text:
        raise wrong(f"holds a NUL byte; write {what} without")
    return text


def read_choice(value: object, choices: tuple[object, ...]) -> object:
    """One of a few words or numbers; null where that is one of them.

    Raises:
        UnreadableError: it is none of them.
    """
    for choice in choices:
        if (choice is None and is_null(value)) or (type(choice) is type(value) and choice == value):
            return choice
        if isinstance(value, Scalar) and value.text == str(choice) and (value.plain or isinstance(choice, str)):
            return choice
    words = ["null" if choice is None else str(choice) for choice in choices]
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    raise wrong(f"{described(value)} is not possible here; write {listed}")

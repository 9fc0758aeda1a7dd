"""Owns how quantities are written in a plan: durations, sizes, and shares of memory.

Does not know which keys there are. What a renderer gives, its reader takes, and the value is the same to the
last bit.
"""

import re
from dataclasses import dataclass
from decimal import Decimal

from orchestrator.plan.values import described, wrong
from orchestrator.plan.yaml import Scalar, shown

_DURATION_UNITS = {
    "d": Decimal(86_400),
    "h": Decimal(3_600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_SIZE_UNITS = {
    "TB": 10**12, "TiB": 1 << 40, "GB": 10**9, "GiB": 1 << 30, "MB": 10**6, "MiB": 1 << 20,
    "kB": 10**3, "KB": 10**3, "KiB": 1 << 10, "B": 1,
}  # fmt: skip  # one family a line reads better
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_DURATION_PART = re.compile(rf"({_NUMBER})(ms|[dhms])")
DURATION_PATTERN = rf"^(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?$"
PERCENT_PATTERN = rf"^{_NUMBER} ?%$"
SIZE_PATTERN = rf"^{_NUMBER} ?(?:[TGMK]iB|[TGMKk]?B)$"


def read_duration(value: object, low_s: float, high_s: float) -> float:
    """`100ms`, `5s`, `30m`, `1h30m` in seconds.

    Raises:
        UnreadableError: it has no unit, or is out of bounds.
    """
    text = value.text.strip() if isinstance(value, Scalar) else value
    if not isinstance(text, str) or not text or not re.fullmatch(DURATION_PATTERN, text):
        number = text if isinstance(text, str) and re.fullmatch(_NUMBER, text) else None
        number = str(text) if type(text) in (int, float) else number
        if number is not None:
            raise wrong(f"{shown(number)} has no unit; write {shown(number)}s, {shown(number)}m, ... (ms, s, m, h, d)")
        raise wrong(f"{described(value)} is not a duration; write one such as 100ms, 5s, 30m or 1h30m")
    parts = _DURATION_PART.findall(text)
    seconds = float(sum((Decimal(number) * _DURATION_UNITS[unit] for number, unit in parts), Decimal(0)))
    if not low_s <= seconds <= high_s:
        bounds = f"{render_duration(low_s)} to {render_duration(high_s)}"
        raise wrong(f"{described(value)} is out of range; write a duration from {bounds}")
    return seconds


def render_duration(seconds: float) -> str:
    """The shortest of the forms that `read_duration` takes, exact."""
    exact = Decimal(repr(seconds))
    if exact == exact.to_integral_value():
        whole = int(exact)
        parts = []
        for unit in ("d", "h", "m", "s"):
            count, whole = divmod(whole, int(_DURATION_UNITS[unit]))
            parts += [f"{count}{unit}"] if count else []
        return "".join(parts) or "0s"
    millis = exact * 1000
    return f"{int(millis)}ms" if millis == millis.to_integral_value() else f"{exact:f}s"


def read_size(value: object, low: int, high: int) -> int:
    """`400MB` (1e6), `1.5GB`, `1GiB` in bytes.

    Raises:
        UnreadableError: it has no unit, or is out of bounds.
    """
    text = value.text.strip() if isinstance(value, Scalar) else value
    if not isinstance(text, str) or not re.fullmatch(SIZE_PATTERN, text):
        raise wrong(f"{described(value)} is not a size; write a number with its unit, such as 400MB, 1.5GB or 1GiB")
    number, unit = re.fullmatch(r"([0-9.]+) ?(\w+)", text).groups()  # type: ignore[union-attr]  # matched above
    size = int(Decimal(number) * _SIZE_UNITS[unit])
    if not low <= size <= high:
        raise wrong(f"{described(value)} is out of range; write a size from {render_size(low)} to {render_size(high)}")
    return size


def render_size(size: int) -> str:
    """The size in the largest unit that tells it exactly."""
    for unit, factor in sorted(_SIZE_UNITS.items(), key=lambda item: -item[1]):
        if unit != "KB" and size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of memory: either a fraction of it (`frac`, 0.01 for 1 %), or absolute (`size_bytes`)."""

    frac: float | None = None
    size_bytes: int | None = None

    def bytes_of(self, memory_bytes: int) -> int:
        """The part in bytes, of a memory of `memory_bytes`."""
        return self.size_bytes if self.size_bytes is not None else int(memory_bytes * (self.frac or 0.0))

    def __str__(self) -> str:
        if self.size_bytes is not None:
            return render_size(self.size_bytes)
        return f"{(Decimal(repr(self.frac or 0.0)) * 100).normalize():f}%"


def read_share(value: object) -> Share:
    """`1%`, `0.5%` of memory, or a size.

    Raises:
        UnreadableError: it is neither, or not within (0 %, 100 %].
    """
    if isinstance(value, Share):
        return value
    text = value.text.strip() if isinstance(value, Scalar) else value
    if isinstance(text, str) and re.fullmatch(PERCENT_PATTERN, text):
        frac = float(Decimal(text.rstrip("% ")) / 100)
        if not 0.0 < frac <= 1.0:
            raise wrong(f"{described(value)} is out of range; write a percentage over 0% and up to 100%")
        return Share(frac=frac)
    if isinstance(text, str) and re.fullmatch(SIZE_PATTERN, text):
        return Share(size_bytes=read_size(value, 1, 1 << 60))
    raise wrong(f"{described(value)} is not a part of memory; write a percentage such as 1%, or a size such as 400MB")

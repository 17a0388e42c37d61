"""Durations as people write them: seconds, a `timedelta`, or text such as "24h", "1h30m", "250ms" (DESIGN 3).

Inside Sojourn a duration is a `float` of seconds; these functions stand where a user's value comes in and
where one is shown.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from sojourn.codecs.errors import DurationError

Duration: TypeAlias = float | int | timedelta | str
"""What users may write for a duration."""

_UNITS: Final = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
"""Largest first: text must name its units in this order, each once."""

_SPELLED: Final = {
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("week", "weeks"), "w"),
    **dict.fromkeys(("msec", "msecs", "millisecond", "milliseconds"), "ms"),
}

_PART: Final = re.compile(r"(?a)\s*(\d+(?:\.\d+)?)\s*([^\W\d_]*)")
_MAX_TEXT: Final = 64


def duration(value: Duration) -> float:
    """Return `value` in seconds.

    Text is numbers with units w, d, h, m, s, ms, largest first, each once: "1h30m", "1.5h", "250ms". A number
    without a unit is refused as text (minutes? seconds?) and taken as seconds as a number. Raises
    `DurationError` for anything negative, infinite or NaN, for `bool` (a flag in the wrong place), and for
    text it cannot read.
    """
    if isinstance(value, str):
        return _parse(value)
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DurationError(type(value).__name__, 'expected seconds, a timedelta, or text such as "1h30m"')
    else:
        seconds = _finite(value)
    if seconds < 0:
        raise DurationError(repr(value), "a duration cannot be negative")
    return seconds


def _finite(value: float) -> float:
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise DurationError(repr(float(seconds)), "expected a finite number of seconds")
    return seconds


def _parse(text: str) -> float:
    shown = repr(text[:_MAX_TEXT])
    if len(text) > _MAX_TEXT:
        raise DurationError(shown, f"expected at most {_MAX_TEXT} characters")
    stripped = text.strip()
    if not stripped:
        raise DurationError(shown, 'expected text such as "30s" or "1h30m"')
    if stripped.startswith("-"):
        raise DurationError(shown, "a duration cannot be negative")
    seconds, last, position = 0.0, math.inf, 0
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None:
            raise DurationError(
                shown, f'cannot read {stripped[position:]!r}; write it like "1h30m" or "250ms"'
            )
        size = _unit_size(part[2], shown, number=part[1])
        if size >= last:
            raise DurationError(shown, "each unit may stand once, the largest first: w d h m s ms")
        seconds, last, position = seconds + float(part[1]) * size, size, part.end()
    return _finite(seconds)


def _unit_size(unit: str, shown: str, *, number: str) -> float:
    size = _UNITS.get(unit)
    if size is not None:
        return size
    if not unit:
        raise DurationError(
            shown, f'{number} of what? write "{number}s" for seconds or "{number}m" for minutes'
        )
    lowered = unit.lower()
    short = _SPELLED.get(lowered) or (lowered if lowered in _UNITS else None)
    if short is not None:
        raise DurationError(shown, f'unknown unit {unit!r}; write "{number}{short}"')
    raise DurationError(shown, f"unknown unit {unit!r}; the units are w d h m s ms")


def format_duration(seconds: float) -> str:
    """Return `seconds` as text that `duration` reads back to the millisecond: `5400` is "1h30m", `0` is "0s".

    Raises `DurationError` for negative or non-finite numbers.
    """
    left = round(duration(seconds) * 1000)
    text = ""
    for unit, size in _UNITS.items():
        count, left = divmod(left, round(size * 1000))
        if count:
            text += f"{count}{unit}"
    return text or "0s"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between attempts: `first` seconds, then `factor` times the last, never more than `most`."""

    first: float
    most: float
    factor: float = 2.0

    def __post_init__(self) -> None:
        """Refuse what could wait for ever or shrink."""
        if not (0 <= self.first <= self.most and math.isfinite(self.most)):
            raise DurationError(str(self), "expected two finite durations, the smaller first")
        if not (self.factor >= 1 and math.isfinite(self.factor)):
            raise DurationError(repr(self.factor), "expected a finite factor of at least 1")

    @classmethod
    def parse(cls, value: Duration | Backoff) -> Backoff:
        """Read "1s..1m", or one duration for a constant wait. Raises `DurationError`."""
        if isinstance(value, Backoff):
            return value
        if isinstance(value, str) and ".." in value:
            first, _, most = value.partition("..")
            return cls(duration(first), duration(most))
        seconds = duration(value)
        return cls(seconds, seconds)

    def delay(self, attempt: int, *, spread: float = 0.0) -> float:
        """Return the seconds to wait after failed attempt number `attempt` (the first is 1).

        `spread` in [0, 1) is drawn by the caller and takes up to a quarter off, so that many actors that
        failed together do not come back together.
        """
        if attempt < 1:
            raise ValueError(f"expected an attempt number from 1 on, received {attempt}")
        try:
            seconds = min(self.most, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            seconds = self.most if self.first else 0.0
        return seconds * (1 - spread / 4)

    def __str__(self) -> str:
        """Text that `parse` reads, for a factor of 2."""
        if self.first == self.most:
            return _shown(self.first)
        return f"{_shown(self.first)}..{_shown(self.most)}"


def _shown(seconds: float) -> str:
    return format_duration(seconds) if 0 <= seconds < math.inf else repr(seconds)

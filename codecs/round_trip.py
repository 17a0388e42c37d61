"""Whether a value survived being written and read.

Encoding looks at values, decoding at annotations, and JSON has six types: a `datetime` under an unannotated
parameter would arrive as text, a subclass as its base, a NaN as null. So what was encoded is decoded again at
the sender and compared: a mistake is an error at the call that made it, with a path, and not a surprise on
another machine. Equal values cost one `==`; only unequal ones are walked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from datetime import datetime
from typing import Any, NamedTuple

from sojourn.codecs.errors import PayloadError
from sojourn.codecs.paths import fields_of, member


class Difference(NamedTuple):
    """The first place at which two values differ."""

    expected: str
    received: str
    path: str


def difference(sent: Any, back: Any, path: str = "$") -> Difference | None:
    """Return where `back`, the decoded value, is not what was sent; None when it is.

    Lists and tuples are alike (JSON has one kind of array and the annotation decides), so are mappings; the
    rest keeps its class. Classes without equality of their own are compared by their fields.
    """
    try:
        if sent is back or bool(sent == back):
            return None
    except Exception:  # a user's __eq__ may raise anything; then the fields decide
        pass
    if isinstance(sent, float) and not math.isfinite(sent):
        return Difference("a finite number", "NaN or Infinity, which JSON does not have", path)
    if isinstance(sent, datetime) and isinstance(back, datetime) and _same_moment(sent, back):
        return None
    if isinstance(sent, (list, tuple)) and isinstance(back, (list, tuple)) and len(sent) == len(back):
        return _first(
            difference(a, b, f"{path}[{n}]") for n, (a, b) in enumerate(zip(sent, back, strict=True))
        )
    if isinstance(sent, Mapping) and isinstance(back, Mapping):
        return _mapping_difference(sent, back, path)
    if isinstance(sent, Set) and isinstance(back, Set) and len(sent) == len(back):
        return Difference("members that are equal after a round trip", "others", path)
    if type(sent) is not type(back):
        return Difference(type(back).__name__, type(sent).__name__, path)
    fields = list(fields_of(sent))
    if fields or _has_no_equality(type(sent)):
        return _first(difference(item, getattr(back, name, None), f"{path}.{name}") for name, item in fields)
    return Difference(f"a {type(sent).__name__} that its text form keeps", "one that it does not", path)


def _same_moment(sent: datetime, back: datetime) -> bool:
    """Whether two times are the same on the clock and in their offset: an hour that a zone has twice is never
    `==` the same hour with a fixed offset (PEP 495).
    """
    offsets = sent.utcoffset(), back.utcoffset()
    return offsets[0] == offsets[1] and sent.replace(tzinfo=None) == back.replace(tzinfo=None)


def _has_no_equality(cls: type) -> bool:
    """Whether objects of `cls` are equal to themselves only."""
    return all("__eq__" not in vars(base) for base in cls.__mro__ if base is not object)


def check_same(sent: Any, back: Any, path: str) -> None:
    """Raise `PayloadError` where `back` is not what was sent."""
    found = difference(sent, back, path)
    if found is not None:
        raise PayloadError(*found)


def _mapping_difference(sent: Mapping[Any, Any], back: Mapping[Any, Any], path: str) -> Difference | None:
    strange = next((key for key in sent if key not in back), None)
    if strange is not None or len(sent) != len(back):
        return Difference("keys that are text, or annotated", f"a key of type {type(strange).__name__}", path)
    return _first(difference(item, back[key], path + member(key)) for key, item in sent.items())


def _first(differences: Iterator[Difference | None]) -> Difference | None:
    return next((found for found in differences if found is not None), None)

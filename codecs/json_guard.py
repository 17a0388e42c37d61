"""What is checked in JSON bytes before they are decoded: size, nesting, UTF-8, duplicate keys (DESIGN 3,
"Data").

The decoder (msgspec) is fast and strict about types, but takes the last of two equal keys, does not look at
text that it skips, and recurses as deep as the input says. These checks close that, at the price of a few
passes in C over the bytes. Measured in benchmarks/records_bench.py.

Nothing here quotes the payload: errors carry paths and types. A key name is part of a path.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

import msgspec
import orjson
from sojourn.codecs.errors import PayloadError, PayloadTooDeep, PayloadTooLarge
from sojourn.codecs.paths import find_path


class Limits(NamedTuple):
    """Bounds on one payload."""

    size: int = 256 * 1024
    """Bytes."""
    depth: int = 64
    """Levels of arrays and objects."""


DEFAULT_LIMITS: Final[Limits] = Limits()

UNDECODABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoders raise for bytes from outside: no JSON, another shape, invalid UTF-8, deeper than they can go. Whoever reads
what others may have written catches all of it: one such message must not stop whoever reads it."""

# Linear in the input whatever it holds: possessive, and a string that never ends is matched up to the end, or
# the
# search would begin anew at each of its escaped quotes.
_STRING: Final = re.compile(rb'(?s)"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)')
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")


def guard(data: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise `PayloadTooLarge`, `PayloadTooDeep`, or `PayloadError` for invalid UTF-8 and duplicate keys.

    Whether `data` is JSON at all is left to the decoder.
    """
    check_size_and_depth(data, limits)
    if not data.isascii():
        _check_utf8(data)
    if data.count(b":") > 1:
        _check_duplicate_keys(data)


def check_size_and_depth(data: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise `PayloadTooLarge` or `PayloadTooDeep`. Enough for bytes that our own encoder made."""
    if len(data) > limits.size:
        raise PayloadTooLarge(len(data), limits.size)
    # There cannot be more levels than opening brackets, those in text included.
    if data.count(b"[") + data.count(b"{") > limits.depth:
        _check_depth(data, limits.depth)


def _check_depth(data: bytes, limit: int) -> None:
    """Take away the innermost pairs of brackets, one level at a time: what is left after `limit` rounds is
    deeper (or not JSON).
    """
    brackets = _without_text(data).translate(_BRACKETS, _NOT_BRACKETS)
    for _ in range(limit):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    if b"[" in brackets:
        raise PayloadTooDeep(limit + 1, limit)


def _without_text(data: bytes) -> bytes:
    """Return JSON without its strings: brackets, commas, colons, numbers. Splitting is three times as fast as
    matching.
    """
    return _STRING.sub(b"", data) if b"\\" in data else b"".join(data.split(b'"')[::2])


def _check_utf8(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(
            "UTF-8", f"an invalid byte ({error.reason})", _path_of_bad_text(data, error.start)
        ) from None


def _path_of_bad_text(data: bytes, position: int) -> str:
    """Find which value holds the invalid bytes; by position when the rest is not JSON either."""
    try:
        value = json.loads(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return f"byte {position}"
    return find_path(value, lambda item: isinstance(item, str) and _has_surrogate(item)) or f"byte {position}"


def _has_surrogate(text: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in text)


def _check_duplicate_keys(data: bytes) -> None:
    """Count members before and after parsing: a key that is there twice leaves one fewer. Only then look for
    it.
    """
    try:
        kept = orjson.dumps(orjson.loads(data))
    except ValueError:
        pass  # It refuses more than the decoder does, such as numbers in what the decoder skips.
    else:
        if _without_text(kept).count(b":") == _without_text(data).count(b":"):
            return
    path = _path_of_repeated_key(data)
    if path is not None:
        raise PayloadError("each key once", "a key twice", path)


def _path_of_repeated_key(data: bytes) -> str | None:
    try:
        # Numbers do not matter here, and one of 100,000 digits would take long: their length stands for them.
        value = json.loads(data.decode(), object_pairs_hook=_marked, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return None  # Not JSON: the decoder says so, with the position.
    return find_path(value, lambda item: type(item) is _Repeated)


class _Repeated:
    """Stands in a parsed value where an object has a key twice."""


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                members[key] = _Repeated()
            seen.add(key)
    return members


def malformed(data: bytes, reason: str) -> PayloadError:
    """Return the error for bytes that the decoder refused as JSON, with a path where one can be told: NaN and
    Infinity, which Python's own json writes, are by far the most common.
    """
    try:
        value = json.loads(data.decode(), parse_constant=_NotFinite, parse_int=len, parse_float=len)
        path = find_path(value, lambda item: type(item) is _NotFinite)
    except (ValueError, RecursionError):
        path = None
    if path is None:
        return PayloadError("JSON", reason)
    return PayloadError("a finite number", "NaN or Infinity, which JSON does not have", path)


class _NotFinite:
    """Stands in a parsed value where NaN or Infinity was."""

    def __init__(self, name: str) -> None:
        pass

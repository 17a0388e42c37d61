"""What is checked in bytes before they are decoded, compared with a slow and plain reference."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn.codecs.errors import PayloadError, PayloadTooDeep, PayloadTooLarge
from sojourn.codecs.json_guard import Limits, guard

TEXT = st.text(max_size=6) | st.sampled_from(['"', "\\", ":", "a:", '":', "\\\\", "{", "[[", "é", "\u2028"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_json_without_repeated_keys_passes(value: Any, ascii_only: bool, indent: int | None) -> None:
    guard(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass"))


@given(VALUES, st.integers(0, 6))
def test_depth_is_counted_as_levels_of_arrays_and_objects(value: Any, limit: int) -> None:
    data = json.dumps(value).encode()
    if depth_of(value) > limit:
        with pytest.raises(PayloadTooDeep) as deep:
            guard(data, Limits(depth=limit))
        assert deep.value.limit == limit
    else:
        guard(data, Limits(depth=limit))


class _Pairs(list[tuple[str, Any]]):
    """An object that may have a key twice."""


PAIRS = st.recursive(
    st.integers(0, 9) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(st.tuples(st.sampled_from("abé"), inner), max_size=3).map(_Pairs)
    ),
    max_leaves=12,
)


def dumped(value: Any, escape: bool) -> str:
    if isinstance(value, _Pairs):
        members = (f"{json.dumps(key, ensure_ascii=escape)} : {dumped(item, escape)}" for key, item in value)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(dumped(item, escape) for item in value) + "]"
    return json.dumps(value)


def repeats(value: Any) -> bool:
    if isinstance(value, _Pairs):
        keys = [key for key, _ in value]
        return len(set(keys)) != len(keys) or any(repeats(item) for _, item in value)
    return isinstance(value, list) and any(map(repeats, value))


@given(PAIRS, st.booleans())
def test_a_key_twice_in_one_object_is_refused_and_in_two_objects_is_not(value: Any, escape: bool) -> None:
    data = dumped(value, escape).encode()
    if repeats(value):
        with pytest.raises(PayloadError, match="each key once"):
            guard(data)
    else:
        guard(data)


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b'{"a":1,"a":2}', "$.a"),
        (b'[{"x":1},{"x":[{"k y":1,"k y":2}]}]', "$[1].x[0]['k y']"),
        (b'{"a":1,"\\u0061":2}', "$.a"),
        (b'{"p":"a",":k":1,":k":2}', "$[':k']"),
        (b'{"a":1,"b":{"skip":' + b"9" * 5000 + b'},"a":2}', "$.a"),
    ],
)
def test_a_repeated_key_is_named_with_its_path(data: bytes, path: str) -> None:
    with pytest.raises(PayloadError) as refused:
        guard(data)
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b'{"a":["x","\xff"]}', "$.a[1]"),
        (b'["\xed\xa0\x80"]', "$[0]"),
        (b'{"\xc3":1}', "$ (a key)"),
        (b"\xff\xff", "byte 0"),
        (b'[1,"\xf0\x9f"', "byte 4"),
    ],
)
def test_invalid_utf_8_is_refused_with_its_path(data: bytes, path: str) -> None:
    with pytest.raises(PayloadError, match="UTF-8") as refused:
        guard(data)
    assert refused.value.path == path


def test_the_limits_themselves_pass_and_one_more_does_not() -> None:
    guard(b"[" * 64 + b"]" * 64)
    with pytest.raises(PayloadTooDeep):
        guard(b"[" * 65 + b"]" * 65)
    limit = 256 * 1024
    guard(b'"' + b"x" * (limit - 2) + b'"')
    with pytest.raises(PayloadTooLarge) as large:
        guard(b'"' + b"x" * (limit - 1) + b'"')
    assert (large.value.size, large.value.limit) == (limit + 1, limit)


def test_brackets_in_text_are_no_nesting() -> None:
    guard(json.dumps(["[" * 500, '\\"' + "{" * 500]).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 65 + b'"' + b'\\"' * 120_000,
        b'{"a":1,' + b'"\\' * 120_000,
        b'"\\' * 60_000 + b'"a":' * 20_000,
        b"[" * 250_000,
        b"[]" * 125_000,
        b'{"a":' * 40_000,
        b'[{"a":1,"b":2}' + b',{"a":1,"b":2}' * 16_000 + b"]",
        b'{"a":' + b"9" * 200_000 + b',"b":1,"b":2}',
    ],
    ids=["escapes", "backslashes", "mixed", "open", "pairs", "objects", "records", "digits"],
)
def test_no_input_of_the_largest_size_takes_more_than_linear_work(data: bytes) -> None:
    """Quadratic work on any of these takes minutes and runs into the time limit of every test."""
    with contextlib.suppress(PayloadError):
        guard(data)


@given(st.binary(max_size=200))
def test_any_bytes_pass_or_are_refused_and_nothing_else(data: bytes) -> None:
    for candidate in (data, b'{"a":1,"a":' + data, b"[" * 70 + data):
        with contextlib.suppress(PayloadError):
            guard(candidate)

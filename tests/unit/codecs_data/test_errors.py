"""Errors carry their facts as attributes and arrive whole in another process."""

from __future__ import annotations

import copy
import pickle

import pytest
from sojourn.codecs import errors

ERRORS = [
    errors.DataTypeError("parameter `a` of `f`", "socket", "no data"),
    errors.PayloadError("int", "str", "$.a"),
    errors.PayloadError("int", "str", "$.args[0]").of("arguments of add"),
    errors.PayloadTooLarge(300_000, 262_144),
    errors.PayloadTooDeep(65, 64),
    errors.DurationError("'1y'", "unknown unit"),
    errors.KeyringError("keys", "missing"),
    errors.RecordTruncated(3, 64),
    errors.RecordTooLarge("frame", 10, 5),
    errors.RecordMalformed("index", "no JSON"),
    errors.RecordVersion("version", 2, 1),
    errors.UnknownKey("k2", ["k1"]),
    errors.SealBroken("actor 'a' at transition 1", "k1"),
    errors.WrongActor("a", "b"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_and_copying_with_its_facts(error: errors.SojournError) -> None:
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(back) is type(error)
        assert str(back) == str(error)
        assert vars(back) == vars(error)


def test_errors_say_by_their_bases_whose_problem_they_are() -> None:
    assert issubclass(errors.PayloadError, ValueError)
    assert issubclass(errors.DataTypeError, TypeError)
    assert issubclass(errors.DurationError, ValueError)
    assert all(isinstance(error, errors.SojournError) for error in ERRORS)


def test_messages_say_what_was_expected_received_and_where() -> None:
    assert [str(error) for error in ERRORS] == [
        "parameter `a` of `f`: `socket` cannot cross as data: no data",
        "expected int, received str at $.a",
        "arguments of add: expected int, received str at $.args[0]",
        "expected at most 262,144 bytes, received 300,000 bytes at $; "
        "store the large value elsewhere and pass a reference to it",
        "expected at most 64 levels of nesting, received 65 or more at $",
        "'1y' is not a duration: unknown unit",
        "keys from keys: missing",
        "expected 64 sealed bytes, received 3: cut, or no record of Sojourn",
        "frame of a record: expected at most 5 bytes, received 10",
        "index of a record is malformed: no JSON",
        "expected a record of version 1 or less, received 2: upgrade this node",
        "sealed with key 'k2', this node has k1: add that key to its key file",
        "the seal of actor 'a' at transition 1 does not hold under key 'k1': changed, or of another place",
        "expected the record of actor 'a', received that of 'b'",
    ]

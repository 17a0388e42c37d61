"""Exceptions as data: the class stays only where the receiver can name it itself."""

from __future__ import annotations

import builtins
import dataclasses
import decimal
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn.codecs.data import describe_exception, rebuild_exception
from sojourn.codecs.record import ErrorInfo


class Declined(Exception):
    code: int
    amount: decimal.Decimal

    def __init__(self, message: str, *, code: int, amount: decimal.Decimal) -> None:
        super().__init__(message)
        self.code = code
        self.amount = amount
        self.connection = object()
        self._private = "p"


class DeclinedByBank(Declined):
    pass


@dataclasses.dataclass
class Limited(Exception):
    limit: int


class Group(ExceptionGroup[Exception]):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def crossed(error: BaseException, *declared: type[BaseException]) -> BaseException | None:
    """Through bytes, as a record would take it."""
    data = msgspec.json.encode(describe_exception(error, declared=declared))
    return rebuild_exception(msgspec.json.decode(data, type=ErrorInfo), declared=declared)


BUILTINS = [
    cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type) and issubclass(cls, Exception) and cls.__name__ == name
]
SPECIAL = (
    StopIteration,
    StopAsyncIteration,
    ExceptionGroup,
    UnicodeDecodeError,
    UnicodeEncodeError,
    UnicodeTranslateError,
)


@pytest.mark.parametrize("cls", [cls for cls in BUILTINS if cls not in SPECIAL], ids=lambda cls: cls.__name__)
def test_a_builtin_keeps_its_class_and_arguments(cls: type[Exception]) -> None:
    for args in ((), ("text",), (2, "text")):
        error = cls(*args)
        back = crossed(error)
        assert type(back) is type(error)
        assert back.args == error.args
        assert str(back) == str(error)


@pytest.mark.parametrize(
    "error",
    [
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        UnicodeEncodeError("ascii", "é", 0, 1, "invalid"),
        UnicodeTranslateError("é", 0, 1, "invalid"),
        SyntaxError("bad", ("f.py", 1, 2, "x =")),
        KeyError(("a", 1)),
        ValueError({"k": [1, None]}, True, 1.5, b"\x00\xff"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_builtins_with_arguments_of_other_types_keep_them(error: Exception) -> None:
    back = crossed(error)
    assert type(back) is type(error)
    assert str(back) == str(error) or isinstance(error, KeyError)


def test_an_os_error_keeps_number_and_file_names() -> None:
    back = crossed(FileNotFoundError(2, "No such file", "here", None, "there"))
    assert type(back) is FileNotFoundError
    assert (back.errno, back.strerror, back.filename, back.filename2) == (2, "No such file", "here", "there")


@pytest.mark.parametrize(
    "error", [StopIteration(1), StopAsyncIteration(), KeyboardInterrupt(), SystemExit(1)]
)
def test_what_steers_the_interpreter_is_never_rebuilt(error: BaseException) -> None:
    assert crossed(error) is None


@given(
    st.lists(st.one_of(st.integers(), st.text(), st.none(), st.booleans(), st.binary(max_size=5)), max_size=4)
)
def test_json_arguments_and_bytes_come_back_equal(args: list[Any]) -> None:
    args = [value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for value in args]
    back = crossed(ValueError(*args))
    assert back is not None
    assert list(back.args) == args


def test_an_argument_that_is_no_data_arrives_in_words() -> None:
    back = crossed(ValueError("before", {1, 2}, decimal.Decimal("1.5")))
    assert back is not None
    assert back.args == ("before", "{1, 2}", "1.5")


def test_a_declared_class_keeps_its_annotated_attributes() -> None:
    back = crossed(Declined("no", code=7, amount=decimal.Decimal("1.50")), Declined)
    assert type(back) is Declined
    assert str(back) == "no"
    assert (back.code, back.amount) == (7, decimal.Decimal("1.50"))
    assert not hasattr(back, "connection")
    assert not hasattr(back, "_private")


def test_a_declared_dataclass_exception_comes_back() -> None:
    back = crossed(Limited(5), Limited)
    assert isinstance(back, Limited)
    assert back.limit == 5


def test_a_class_that_is_not_declared_is_left_to_the_caller() -> None:
    error = DeclinedByBank("no", code=7, amount=decimal.Decimal(1))
    assert crossed(error) is None
    assert crossed(error, Declined) is None
    info = describe_exception(error)
    assert info.type.endswith("test_exceptions:DeclinedByBank")
    assert info.message == "no"
    assert bytes(info.data) == b"null"


def test_a_class_that_only_claims_to_be_a_builtin_is_not_rebuilt_as_one() -> None:
    fake = type("ValueError", (Exception,), {"__module__": "builtins", "__qualname__": "ValueError"})
    assert crossed(fake("x")) is None


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "builtins:eval",
        "builtins:SystemExit",
        "builtins:object",
        "sojourn.codecs.errors:SojournError",
        "",
        ":",
    ],
)
def test_no_class_is_looked_up_by_a_name_in_a_message(name: str) -> None:
    info = ErrorInfo(name, "m", data=msgspec.Raw(b'{"args":["x"]}'))
    assert rebuild_exception(info, declared=(Declined,)) is None


@pytest.mark.parametrize(
    "data", [b"1", b"[]", b'{"args":1}', b'{"base64":[0],"args":["!"]}', b'{"args":[1],"exceptions":[{}]}']
)
def test_data_that_does_not_fit_is_left_to_the_caller(data: bytes) -> None:
    for name in ("builtins:ValueError", "builtins:ExceptionGroup", "builtins:UnicodeDecodeError"):
        info = ErrorInfo(name, "m", data=msgspec.Raw(data))
        back = rebuild_exception(info)
        assert back is None or type(back) is ValueError


def test_a_group_comes_back_with_its_members_when_all_are_known() -> None:
    group = ExceptionGroup(
        "g",
        [
            ValueError(1),
            ExceptionGroup("h", [KeyError("k")]),
            Declined("n", code=1, amount=decimal.Decimal(2)),
        ],
    )
    back = crossed(group, Declined)
    assert isinstance(back, ExceptionGroup)
    assert repr(back) == repr(group)
    assert crossed(group) is None


def test_a_group_that_is_too_wide_or_too_deep_is_left_to_the_caller() -> None:
    assert crossed(ExceptionGroup("g", [ValueError(n) for n in range(33)])) is None
    nested: Exception = ValueError(1)
    for _ in range(6):
        nested = ExceptionGroup("g", [nested])
    assert crossed(nested) is None


def test_notes_come_back_as_notes() -> None:
    error = ValueError("x")
    for number in range(20):
        error.add_note(f"note {number}")
    back = crossed(error)
    assert back is not None
    assert back.__notes__ == [f"note {number}" for number in range(8)]


def test_the_traceback_is_text_of_the_users_frames_and_causes_without_the_machinery() -> None:
    def user_code() -> None:
        try:
            {}["missing"]
        except KeyError as cause:
            raise Declined("no", code=1, amount=decimal.Decimal(1)) from cause

    machinery: dict[str, Any] = {"__name__": "sojourn.actors.engine", "user_code": user_code}
    exec(compile("def drive():\n    user_code()", "/engine.py", "exec"), machinery)  # a frame of ours
    with pytest.raises(Declined) as raised:
        machinery["drive"]()
    text = describe_exception(raised.value).traceback
    assert "KeyError: 'missing'" in text
    assert "direct cause" in text
    assert "in user_code" in text
    assert "Declined: no" in text
    assert "engine.py" not in text


def test_everything_of_an_exception_is_bounded() -> None:
    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        raise ValueError("x" * 100_000)

    with pytest.raises(ValueError, match="x") as raised:
        deep(300)
    raised.value.add_note("n" * 100_000)
    info = describe_exception(raised.value)
    assert len(info.message) <= 4096
    assert len(info.traceback) <= 16 * 1024
    assert len(msgspec.json.encode(info)) < 40_000
    assert type(rebuild_exception(info)) is ValueError


def test_an_exception_that_cannot_be_printed_still_crosses() -> None:
    info = describe_exception(Unprintable("x"), declared=(Unprintable,))
    assert "RuntimeError" in info.message
    assert type(rebuild_exception(info, declared=(Unprintable,))) is Unprintable


def test_text_without_utf_8_is_escaped() -> None:
    info = describe_exception(ValueError("\udcff"))
    assert info.message == "\\udcff"
    json.loads(msgspec.json.encode(info))


def test_a_cycle_of_causes_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert "two" in describe_exception(one).traceback


def test_a_declared_group_class_comes_back() -> None:
    back = crossed(Group("g", [ValueError(1)]), Group)
    assert type(back) is Group

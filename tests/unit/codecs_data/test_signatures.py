"""Arguments and results cross by the signature of their function."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import inspect
import pickle
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn.codecs.data import Limits, Signature
from sojourn.codecs.errors import DataTypeError, PayloadError, PayloadTooLarge

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")


@dataclasses.dataclass
class Profile:
    name: str
    age: int = 0


async def onboard(
    profile: Profile, when: dt.date | None = None, *, strict: bool = False
) -> list[Profile]: ...


def plain(a, b=2, *rest, c, d=4, **named):  # type: ignore[no-untyped-def]  # unannotated on purpose
    ...


def positional(a: int, b: str, /, c: float = 0.0) -> None: ...


def spread(*values: int, **named: str) -> Never: ...


def test_arguments_come_back_as_their_annotations_say() -> None:
    signature = Signature.of(onboard)
    data = signature.encode_args((Profile("n", 3), dt.date(2026, 1, 2)), {"strict": True})
    assert data == b'[[{"name":"n","age":3},"2026-01-02"],{"strict":true}]'
    assert signature.decode_args(data) == ((Profile("n", 3), dt.date(2026, 1, 2)), {"strict": True})


def test_each_attempt_gets_a_copy() -> None:
    signature = Signature.of(onboard)
    profile = Profile("n")
    (one,), _ = signature.decode_args(signature.encode_args((profile,)))
    assert one == profile
    assert one is not profile


def test_one_call_has_one_form_however_it_is_written() -> None:
    signature = Signature.of(onboard)
    when = dt.date(2026, 1, 2)
    forms = {
        signature.encode_args((Profile("n"), when)),
        signature.encode_args((Profile("n"),), {"when": when}),
        signature.encode_args((), {"when": when, "profile": Profile("n")}),
    }
    assert len(forms) == 1


def test_a_default_that_was_not_passed_is_not_written() -> None:
    assert Signature.of(plain).encode_args((1,), {"c": 3}) == b'[[1],{"c":3}]'


@given(
    st.sampled_from([plain, spread, lambda: None, lambda a, /, b=1, *, c: None, lambda *a, b: None]),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(
        st.sampled_from("abcdrest"), st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=4
    ),
)
def test_arguments_bind_exactly_when_python_binds_them(
    function: Callable[..., Any], args: list[int], kwargs: dict[str, str]
) -> None:
    signature = Signature.of(function)
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            signature.encode_args(tuple(args), kwargs)
        return
    back = signature.decode_args(signature.encode_args(tuple(args), kwargs))
    assert back == (bound.args, bound.kwargs)
    inspect.signature(function).bind(*back[0], **back[1])


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "onboard() missing a required argument: 'profile'"),
        ((1, 2, 3), {}, "onboard() too many positional arguments"),
        ((1,), {"nope": 1}, "onboard() got an unexpected keyword argument 'nope'"),
        ((1,), {"profile": 1}, "onboard() multiple values for argument 'profile'"),
    ],
)
def test_arguments_that_do_not_bind_are_a_type_error_as_pythons_own(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError) as refused:
        Signature.of(onboard).encode_args(args, kwargs)
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[[{"name":"n","age":"3"}],{}]', "expected int, received str at $.args[0].age"),
        (b'[[{"name":"n"},5],{}]', "expected date | null, received int at $.args[1]"),
        (b'[[{"name":"n"}],{"strict":1}]', "expected bool, received int at $.kwargs.strict"),
        (b'[[{"name":"n"}],{"odd name":1}]', "received another name at $.kwargs['odd name']"),
        (b'[[{"name":"n"},null,3],{}]', "received more at $.args[2]"),
        (b"[[],{}]", "missing a required argument: 'profile'"),
        (b'[[{"name":"n"}],{"profile":{"name":"m"}}]', "multiple values for argument 'profile'"),
        (b'[[{"name":"n","name":"m"}],{}]', "received a key twice at $.args[0].name"),
        (b'[[],{"strict":NaN}]', "received NaN or Infinity, which JSON does not have at $.kwargs.strict"),
        (b'[[{"name":"\xff"}],{}]', "at $.args[0].name"),
        (b'{"args":[]}', "expected array, received object at $"),
        (b"[[]]", "expected array of length 2"),
        (b"[[],{},1]", "expected array of length 2"),
        (b"[{},[]]", "expected array, received object at $.args"),
        (b"", "expected JSON"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_path(data: bytes, message: str) -> None:
    with pytest.raises(PayloadError) as refused:
        Signature.of(onboard).decode_args(data)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ((Profile("n", True),), {}, "$.args[0].age"),
        ((Profile("n", 1.0),), {}, "$.args[0].age"),  # type: ignore[arg-type]  # wrong on purpose
        (({"name": "n"},), {}, "$.args[0]"),
        ((Profile("n"), dt.datetime(2026, 1, 1)), {}, "$.args[1]"),
        ((Profile("n"),), {"strict": 1}, "$.kwargs.strict"),
        ((Profile(object()),), {}, "$.args[0].name"),  # type: ignore[arg-type]  # wrong on purpose
        ((Profile("\ud800"),), {}, "$.args[0].name"),
    ],
)
def test_a_wrong_argument_is_refused_at_the_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> None:
    with pytest.raises(PayloadError) as refused:
        Signature.of(onboard).encode_args(args, kwargs)
    assert refused.value.path == path


def test_nan_is_named_where_it_stands_among_the_arguments() -> None:
    with pytest.raises(PayloadError, match="a finite number") as refused:
        Signature.of(positional).encode_args((1, "b", float("nan")))
    assert refused.value.path == "$.args[2]"


def test_results_cross_by_their_annotation() -> None:
    signature = Signature.of(onboard)
    result = [Profile("n", 1)]
    assert signature.decode_result(signature.encode_result(result)) == result
    with pytest.raises(PayloadError) as refused:
        signature.encode_result([Profile("n", True)])
    assert refused.value.path == "$[0].age"
    with pytest.raises(PayloadError, match="expected array, received null"):
        signature.encode_result(None)
    assert Signature.of(positional).encode_result(None) == b"null"
    assert Signature.of(plain).decode_result(b'{"any":[1]}') == {"any": [1]}


def test_a_function_that_never_returns_has_the_result_none() -> None:
    def endless() -> NoReturn:
        raise NotImplementedError

    assert Signature.of(endless).encode_result(None) == Signature.of(spread).encode_result(None) == b"null"


def test_limits_hold_for_all_arguments_together() -> None:
    signature = Signature.of(plain, limits=Limits(size=50))
    with pytest.raises(PayloadTooLarge):
        signature.encode_args(("x" * 30, "x" * 30), {"c": 1})
    with pytest.raises(PayloadTooLarge):
        signature.decode_args(b" " * 51)


def test_methods_partials_and_callable_objects_have_signatures() -> None:
    class Caller:
        def method(self, a: int) -> str: ...

        def __call__(self, b: int) -> str: ...

    assert Signature.of(Caller().method).encode_args((1,)) == b"[[1],{}]"
    for function in (Caller(), functools.partial(positional, 1, c=2.0)):
        with pytest.raises(PayloadError):
            Signature.of(function).encode_args((b"",))


def test_a_generic_function_takes_any_json_value() -> None:
    def identity(value: T) -> T: ...

    assert Signature.of(identity).decode_args(b"[[[1]],{}]") == (([1],), {})


def test_a_parameter_that_cannot_cross_is_named_when_registered() -> None:
    def send(to: str, connection: socket.socket) -> None: ...

    with pytest.raises(DataTypeError) as refused:
        Signature.of(send)
    error = refused.value
    assert "parameter `connection` of" in error.where
    assert "socket.socket" in str(error)
    assert "open it inside the step" in error.reason
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_result_that_cannot_cross_is_named_when_registered() -> None:
    def connect(to: str) -> socket.socket: ...

    with pytest.raises(DataTypeError, match="result of"):
        Signature.of(connect)


def test_a_class_defined_in_a_function_is_named_as_unresolved() -> None:
    @dataclasses.dataclass
    class Local:
        x: int

    def use(value: int, local: Local) -> None: ...

    with pytest.raises(DataTypeError, match=r"parameter `local` .* define or import it at module level"):
        Signature.of(use)


def test_a_name_imported_for_type_checkers_only_is_named_as_unresolved() -> None:
    def pay(amount: Decimal) -> None: ...

    with pytest.raises(DataTypeError, match=r"parameter `amount` .*`Decimal`.* TYPE_CHECKING"):
        Signature.of(pay)


def test_an_unresolved_field_of_an_argument_is_named() -> None:
    incomplete = dataclasses.make_dataclass("Incomplete", [("x", "Nowhere")])

    def use(value: Any) -> None: ...

    use.__annotations__["value"] = incomplete
    with pytest.raises(DataTypeError, match=r"parameter `value` .*Nowhere.* in one of its fields"):
        Signature.of(use)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_arguments_or_refused_and_nothing_else(data: bytes) -> None:
    for candidate in (data, b"[[" + data + b"],{}]"):
        try:
            args, kwargs = Signature.of(plain).decode_args(candidate)
        except PayloadError:
            continue
        inspect.signature(plain).bind(*args, **kwargs)

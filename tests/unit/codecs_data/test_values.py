"""Values of every kind of annotation cross unchanged, or are refused with a path at the sender."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import math
import traceback
import typing
import uuid
import zoneinfo
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sojourn.codecs.data import Limits, Type
from sojourn.codecs.errors import DataTypeError, PayloadError, PayloadTooDeep, PayloadTooLarge

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.StrEnum):
    FAST = "fast"


@dataclasses.dataclass
class Painted:
    walls: Color | None = None


@dataclasses.dataclass
class Address:
    street: str
    zip: int = 0


@dataclasses.dataclass(frozen=True)
class Profile:
    name: str
    addresses: list[Address]
    born: dt.date | None = None


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float = 0.0


class Pair(NamedTuple):
    left: int
    right: str = ""


class Options(TypedDict):
    limit: int
    label: NotRequired[str]


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class WithoutEquality:
    value: int


class Base(msgspec.Struct):
    a: int


class Derived(Base):
    b: int = 0


UserId = NewType("UserId", str)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ZONES = st.none() | st.just(dt.UTC) | st.timezones()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Any, JSON),
    (None, st.none()),
    (bool, st.booleans()),
    (int, st.integers()),
    (float, FLOATS),
    (str, TEXT),
    (bytes, st.binary(max_size=20)),
    (UserId, TEXT),
    (dt.date, st.dates()),
    (dt.time, st.times()),
    (dt.datetime, st.datetimes()),
    (dt.datetime, st.datetimes(timezones=st.just(dt.UTC))),
    (dt.timedelta, st.timedeltas()),
    (uuid.UUID, st.uuids()),
    (decimal.Decimal, st.decimals(allow_nan=False)),
    (Color, st.sampled_from(Color)),
    (Level, st.sampled_from(Level)),
    (Mode, st.sampled_from(Mode)),
    (Literal["a", 1, None], st.sampled_from(["a", 1, None])),
    (Annotated[int, msgspec.Meta(ge=0)], st.integers(0)),
    (int | str | None, st.integers() | TEXT | st.none()),
    (float | int, FLOATS | st.integers()),
    (Address, st.builds(Address, TEXT, st.integers())),
    (
        Profile,
        st.builds(Profile, TEXT, st.lists(st.builds(Address, TEXT), max_size=2), st.none() | st.dates()),
    ),
    (Point, st.builds(Point, FLOATS, FLOATS)),
    (Pair, st.builds(Pair, st.integers(), TEXT)),
    (Options, st.fixed_dictionaries({"limit": st.integers()}, optional={"label": TEXT})),
    (Page[int], st.builds(Page, st.lists(st.integers(), max_size=3))),
    (
        Node,
        st.recursive(
            st.builds(Node, st.integers()),
            lambda inner: st.builds(Node, st.integers(), st.lists(inner, max_size=2)),
            max_leaves=4,
        ),
    ),
    (Address | Point, st.builds(Address, TEXT) | st.builds(Point, FLOATS)),
    (bytearray, st.binary(max_size=9).map(bytearray)),
]


def containers(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Containers of annotated strategies, as annotated strategies."""

    def made(one: tuple[Any, Any], kind: str) -> tuple[Any, Any]:
        annotation, values = one
        return {
            "list": (list[annotation], st.lists(values, max_size=3)),
            "tuple": (tuple[annotation, ...], st.lists(values, max_size=3).map(tuple)),
            "pair": (tuple[annotation, int], st.tuples(values, st.integers())),
            "sequence": (Sequence[annotation], st.lists(values, max_size=3)),
            "dict": (dict[str, annotation], st.dictionaries(TEXT, values, max_size=3)),
            "keys": (dict[int, annotation], st.dictionaries(st.integers(), values, max_size=3)),
            "mapping": (Mapping[str, annotation], st.dictionaries(TEXT, values, max_size=3)),
        }[kind]

    return st.builds(
        made, inner, st.sampled_from(["list", "tuple", "pair", "sequence", "dict", "keys", "mapping"])
    )


ANNOTATED = st.recursive(st.sampled_from(LEAVES), containers, max_leaves=3)
HASHABLE = st.sampled_from(
    [leaf for leaf in LEAVES if leaf[0] in (int, str, Color, uuid.UUID, dt.date, Point, Pair)]
)


@settings(max_examples=400)
@given(st.data(), ANNOTATED)
def test_a_value_of_any_annotation_comes_back_equal(draw: st.DataObject, annotated: tuple[Any, Any]) -> None:
    annotation, values = annotated
    value = draw.draw(values)
    kind = Type(annotation)
    back = kind.decode(kind.encode(value))
    assert back == value
    assert type(back) is type(value) or isinstance(value, (int, Mapping, Sequence))


@given(st.data(), HASHABLE, st.booleans())
def test_sets_come_back_equal(draw: st.DataObject, annotated: tuple[Any, Any], frozen: bool) -> None:
    annotation, values = annotated
    value = draw.draw((st.frozensets if frozen else st.sets)(values, max_size=4))
    kind = Type(frozenset[annotation] if frozen else set[annotation])
    back = kind.decode(kind.encode(value))
    assert back == value
    assert type(back) is type(value)


@given(st.datetimes(timezones=ZONES))
def test_an_aware_time_is_the_same_moment_after_it_crossed(moment: dt.datetime) -> None:
    kind = Type(dt.datetime)
    offset = moment.utcoffset()
    if offset is not None and offset.seconds % 60:
        with pytest.raises(PayloadError):
            kind.encode(moment)  # Local mean time before 1900, in seconds: no text form keeps it.
        return
    back = kind.decode(kind.encode(moment))
    assert (back.utcoffset(), back.replace(tzinfo=None)) == (offset, moment.replace(tzinfo=None))


def test_an_hour_that_a_zone_has_twice_crosses() -> None:
    twice = dt.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    assert Type(list[dt.datetime]).encode([twice]) == b'["2026-10-25T02:30:00+02:00"]'
    assert Type(list[dt.datetime]).encode([twice.replace(fold=1)]) == b'["2026-10-25T02:30:00+01:00"]'


@given(st.sampled_from(LEAVES), JSON)
def test_any_json_is_read_as_any_annotation_or_refused_and_nothing_else(
    leaf: tuple[Any, Any], value: Any
) -> None:
    kind = Type(leaf[0])
    try:
        back = kind.decode(msgspec.json.encode(value))
    except PayloadError:
        return
    kind.encode(back)


@given(st.sampled_from(LEAVES), st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_refused_and_nothing_else(leaf: tuple[Any, Any], data: bytes) -> None:
    with contextlib.suppress(PayloadError):
        Type(leaf[0]).decode(data)


@pytest.mark.parametrize(
    ("annotation", "data", "message"),
    [
        (int, b"true", "expected int, received bool at $"),
        (int, b'"1"', "expected int, received str at $"),
        (int, b"1.0", "expected int, received float at $"),
        (int, b"1e2", "expected int, received float at $"),
        (Level, b"1.0", "expected int, received float at $"),
        (Literal[1], b"true", "expected int, received bool at $"),
        (bool, b"1", "expected bool, received int at $"),
        (float, b'"1.5"', "expected float, received str at $"),
        (float, b'"NaN"', "expected float, received str at $"),
        (str, b"null", "expected str, received null at $"),
        (dt.datetime, b"1700000000", "expected datetime, received int at $"),
        (Color, b'"green"', "expected one of 'red', 'blue', received another value at $"),
        (Literal[1, 2] | None, b"3", "expected one of 1, 2, received another value at $"),
        (
            dict[str, list[Color]],
            b'{"k":["green"]}',
            "expected one of 'red', 'blue', received another value at $[...][0]",
        ),
        (tuple[int, Color], b'[1,"green"]', "expected one of 'red', 'blue', received another value at $[1]"),
        (Painted, b'{"walls":"green"}', "expected one of 'red', 'blue', received another value at $.walls"),
        (
            Literal[tuple(range(12))],
            b"12",
            "expected one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more, received another value at $",
        ),
        (Address, b'{"zip":1}', "expected field `street`, received an object without it at $"),
        (
            Profile,
            b'{"name":"n","addresses":[{"street":"s","zip":"1"}]}',
            "expected int, received str at $.addresses[0].zip",
        ),
        (dict[str, list[int]], b'{"k":[1,"2"]}', "expected int, received str at $[...][1]"),
        (
            Annotated[int, msgspec.Meta(ge=0)],
            b"-1",
            "expected int >= 0, received a value outside of that at $",
        ),
        (
            Any,
            b'{"a":[1,NaN]}',
            "expected a finite number, received NaN or Infinity, which JSON does not have at $.a[1]",
        ),
        (
            float,
            b"-Infinity",
            "expected a finite number, received NaN or Infinity, which JSON does not have at $",
        ),
        (Any, b'{"a":1,"b":{"c":1,"c":2}}', "expected each key once, received a key twice at $.b.c"),
    ],
)
def test_what_does_not_fit_is_refused_saying_expected_received_and_where(
    annotation: Any, data: bytes, message: str
) -> None:
    with pytest.raises(PayloadError) as refused:
        Type(annotation).decode(data)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1,]", b"1 2", b"\x00", b'"\\ud800"', b"'a'", b"nul", b"[1e400]", b"\xef\xbb\xbf1"]
)
def test_malformed_json_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        Type(Any).decode(data)


@pytest.mark.parametrize(
    "annotation",
    [uuid.UUID, dt.datetime, bytes, decimal.Decimal, Color, Literal["a"], Address, dict[str, int]],
)
def test_an_error_and_its_traceback_never_quote_the_payload(annotation: Any) -> None:
    secret = str(2**40)  # Spelled out nowhere in this file: a traceback shows source lines.
    with pytest.raises(PayloadError) as refused:
        Type(annotation).decode(f'"{secret}!"'.encode())
    assert secret not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (int, True, "$"),
        (int, "1", "$"),
        (int, 1.0, "$"),
        (list[int], [1, True], "$[1]"),
        (str, b"x", "$"),
        (float, math.nan, "$"),
        (float | None, math.inf, "$"),
        (Any, {"a": [0.0, math.nan]}, "$.a[1]"),
        (Point, Point(1.0, math.nan), "$.y"),
        (float, 2**53 + 1, "$"),
        (Any, dt.date(2026, 1, 1), "$"),
        (Any, {"who": Address("s")}, "$.who"),
        (Any, [{1, 2}], "$[0]"),
        (Any, {1: "a"}, "$"),
        (Any, {1: "a", "1": "b"}, "$"),
        (Any, {"a": {(1, 2): 3}}, "$.a (a key)"),
        (decimal.Decimal, decimal.Decimal("NaN"), "$"),
        (Any, [uuid.UUID(int=1)], "$[0]"),
        (Any, Color.RED, "$"),
        (Any, {"deep": [object()]}, "$.deep[0]"),
        (Any, "\ud800", "$"),
        (Any, {"k": ["\udfff"]}, "$.k[0]"),
        (Profile, Profile("n", [Address("s", typing.cast(Any, "1"))]), "$.addresses[0].zip"),
        (Profile, Profile("n", [Address("s", typing.cast(Any, object()))]), "$.addresses[0].zip"),
        (Base, Derived(1), "$"),
        (list[Base], [Base(1), Derived(1)], "$[1]"),
        (Options, {"limit": 1, "unknown": 2}, "$"),
        (tuple[int, int], (1, 2, 3), "$"),
    ],
)
def test_a_value_that_would_not_arrive_as_it_is_is_refused_at_the_sender(
    annotation: Any, value: Any, path: str
) -> None:
    with pytest.raises(PayloadError) as refused:
        Type(annotation).encode(value)
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("annotation", "value", "back"),
    [
        (Any, (1, 2), [1, 2]),
        (list[int], (1, 2), [1, 2]),
        (Sequence[int], (1, 2), [1, 2]),
        (float, 1, 1.0),
        (Any, OrderedDict(a=1), {"a": 1}),
        (dict[str, int], defaultdict(int, a=1), {"a": 1}),
        (str, Mode.FAST, "fast"),
        (Any, [10**40], [10**40]),
    ],
)
def test_what_json_has_one_form_for_arrives_as_the_annotation_says(
    annotation: Any, value: Any, back: Any
) -> None:
    kind = Type(annotation)
    assert kind.decode(kind.encode(value)) == back


def test_a_class_without_equality_crosses_by_its_fields() -> None:
    kind = Type(WithoutEquality)
    assert kind.decode(kind.encode(WithoutEquality(3))).value == 3


def test_a_class_whose_equality_raises_crosses_by_its_fields() -> None:
    @dataclasses.dataclass
    class Touchy:
        value: int

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

    kind = Type(Touchy)
    assert kind.decode(kind.encode(Touchy(3))).value == 3


def test_a_class_that_refuses_a_value_is_a_payload_error_whatever_it_raises() -> None:
    @dataclasses.dataclass
    class Picky:
        value: int

        def __post_init__(self) -> None:
            if self.value < 0:
                raise KeyError("secret")
            if self.value == 0:
                raise ValueError("must not be zero")

    for data, words in ((b'{"value":-1}', "KeyError"), (b'{"value":0}', "must not be zero")):
        with pytest.raises(PayloadError, match=words):
            Type(Picky).decode(data)


def test_size_and_depth_are_limits_in_both_directions() -> None:
    kind = Type(Any, limits=Limits(size=100, depth=3))
    with pytest.raises(PayloadTooLarge):
        kind.encode("x" * 99)
    with pytest.raises(PayloadTooLarge):
        kind.decode(b'"' + b"x" * 99 + b'"')
    with pytest.raises(PayloadTooDeep):
        kind.encode([[[[]]]])
    with pytest.raises(PayloadTooDeep):
        kind.decode(b"[[[[]]]]")
    assert kind.decode(kind.encode([[[]]])) == [[[]]]


def test_a_value_that_contains_itself_is_too_deep() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(PayloadTooDeep):
        Type(Any).encode(value)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (object, "write Any"),
        (complex, "is not data"),
        (type, "is not data"),
        (typing.Callable[[int], int], "is not data"),
        (list[Exception], "Exception"),
        (msgspec.msgpack.Ext, "Ext"),
        (dt.date | dt.datetime, "str-like"),
        (dict[tuple[int, int], int], "keys of JSON objects are text"),
        (dict[bool, int], "keys of JSON objects are text"),
        (list["Nowhere"], "Nowhere"),  # type: ignore[name-defined]  # noqa: F821  # the point of the case
    ],
)
def test_an_annotation_that_cannot_cross_is_refused_when_registered(annotation: Any, words: str) -> None:
    with pytest.raises(DataTypeError) as refused:
        Type(annotation, where="channel `approval`")
    assert str(refused.value).startswith("channel `approval`")
    assert words in str(refused.value)


def test_a_field_that_cannot_cross_is_named() -> None:
    @dataclasses.dataclass
    class Session:
        name: str
        lock: list[complex]

    with pytest.raises(DataTypeError, match="field `lock`"):
        Type(dict[str, Session])


def test_a_type_shows_its_annotation() -> None:
    assert repr(Type(list[int])) == "Type(list[int])"
    assert repr(Type(Address)) == "Type(Address)"

"""A union of plain data classes is decoded as the one member that fits."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from sojourn.codecs.data import Signature, Type
from sojourn.codecs.errors import DataTypeError, PayloadError


@dataclasses.dataclass
class Approved:
    by: str
    note: str = ""


@dataclasses.dataclass
class Declined:
    by: str
    reason: str


class Waived(msgspec.Struct):
    until: int


class Other(TypedDict):
    other: int


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    name: str


@dataclasses.dataclass
class Holder:
    decision: Approved | Declined


VALUES = [Approved("a", "n"), Declined("a", "r"), Waived(3)]


@pytest.mark.parametrize("value", VALUES)
def test_each_member_comes_back_as_itself(value: Any) -> None:
    for annotation, wrapped in (
        (Approved | Declined | Waived, value),
        (Approved | Declined | Waived | None, value),
        (list[Approved | Declined | Waived], [value]),
        (dict[str, tuple[Approved | Declined | Waived, int]], {"k": (value, 1)}),
        (Annotated[Approved | Declined | Waived, "words"], value),
    ):
        kind = Type(annotation)
        assert kind.decode(kind.encode(wrapped)) == wrapped


def test_none_and_typed_dictionaries_may_be_members() -> None:
    kind = Type(Approved | Other | None)
    for value in (None, {"other": 1}, Approved("a")):
        assert kind.decode(kind.encode(value)) == value


def test_a_value_that_fits_several_members_is_refused_at_the_sender() -> None:
    @dataclasses.dataclass
    class Same:
        by: str
        note: str

    with pytest.raises(PayloadError, match="fits several"):
        Type(Approved | Same).encode(Approved("a"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"by":"a","odd":1}', "Approved has other fields; Declined has other fields"),
        (b'{"by":1}', "Approved does not fit (ValidationError)"),
        (b'"secret"', "expected object of Approved | Declined, received str at $"),
    ],
)
def test_a_value_that_fits_none_is_refused_saying_why(data: bytes, words: str) -> None:
    with pytest.raises(PayloadError) as refused:
        Type(Approved | Declined).decode(data)
    assert words in str(refused.value)


def test_the_place_of_a_refused_member_is_told() -> None:
    def decide(decisions: list[Approved | Declined]) -> None: ...

    with pytest.raises(PayloadError) as refused:
        Signature.of(decide).decode_args(b'[[[{"by":"a"},{"x":1}]],{}]')
    assert refused.value.path == "$.args[0][1]"


def test_tagged_members_are_left_to_their_tags() -> None:
    kind = Type(Cat | Dog)
    assert kind.encode(Dog("d")) == b'{"type":"Dog","name":"d"}'
    assert kind.decode(b'{"type":"Cat","name":"c"}') == Cat("c")


@pytest.mark.parametrize("annotation", [Holder, Approved | dict[str, int], Approved | Declined | int])
def test_a_union_that_cannot_be_told_apart_is_refused_when_registered(annotation: Any) -> None:
    with pytest.raises(DataTypeError, match="tag=True"):
        Type(annotation)


def test_unions_msgspec_knows_are_untouched() -> None:
    kind = Type(Approved | Literal["none"] | list[int])
    for value in (Approved("a"), "none", [1]):
        assert kind.decode(kind.encode(value)) == value


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`type` statements came with Python 3.12")
def test_a_type_alias_is_what_it_stands_for() -> None:
    scope: dict[str, Any] = {"Approved": Approved, "Declined": Declined}
    exec("type Decision = Approved | Declined\ntype Numbers = list[int]\ntype Tree = list[Tree] | int", scope)
    decision = scope["Decision"]
    for annotation, value in (
        (scope["Numbers"], [1]),
        (decision, Approved("a")),
        (list[decision], [Declined("a", "r")]),
    ):
        kind = Type(annotation)
        assert kind.decode(kind.encode(value)) == value
    with pytest.raises(DataTypeError, match="contains itself"):
        Type(scope["Tree"])

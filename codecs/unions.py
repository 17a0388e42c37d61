"""Unions of several classes that are all JSON objects: `Approved | Declined`.

msgspec tells such members apart by a tag and refuses classes without one. People write unions of plain
dataclasses, and a signal from `nats pub` has no tag, so here a value is of the one member that it fits: all
required fields there, no unknown one, each of its type. A value that fits several, or none, is refused, at
the sender already.

This works where the union is written in a signature or channel, containers included; inside the field of a
class, whose decoder is msgspec's own, a tag is needed and the error says so.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
from collections.abc import Callable
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from sojourn.codecs.foreign import DECODE_AS, MEMBERS, decode_foreign, is_pydantic_model, refusal

_UNIONS: Final = (Union, types.UnionType)


def with_choices(annotation: Any, aliases: tuple[Any, ...] = ()) -> Any:
    """Return `annotation` with each union of untagged object classes replaced by a stand-in.

    `aliases` are the `type` statements (Python 3.12) being looked into: a recursive one is left as it is.
    """
    if hasattr(annotation, "__value__") and annotation not in aliases:
        inner = with_choices(annotation.__value__, (*aliases, annotation))
        return annotation if inner is annotation.__value__ else inner
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is None or not args:
        return annotation
    if origin is Annotated:
        inner = with_choices(args[0], aliases)
        return annotation if inner is args[0] else Annotated[(inner, *annotation.__metadata__)]
    if origin in _UNIONS:
        return _choice_or_union(annotation, args, aliases)
    changed = tuple(with_choices(arg, aliases) for arg in args)
    if all(new is old for new, old in zip(changed, args, strict=True)):
        return annotation
    return origin[changed]


def _choice_or_union(annotation: Any, args: tuple[Any, ...], aliases: tuple[Any, ...]) -> Any:
    members = tuple(arg for arg in args if arg is not type(None))
    if len(members) > 1 and all(_is_object_class(member) for member in members) and not _told_apart(members):
        return functools.reduce(operator.or_, (_choice(members), *(arg for arg in args if arg is type(None))))
    changed = tuple(with_choices(arg, aliases) for arg in args)
    if all(new is old for new, old in zip(changed, args, strict=True)):
        return annotation
    return functools.reduce(operator.or_, changed)


def _is_object_class(cls: Any) -> bool:
    return isinstance(cls, type) and (field_names(cls) is not None or is_pydantic_model(cls))


def field_names(cls: Any) -> frozenset[str] | None:
    """Names of the members of the JSON object that `cls` is written as; None for what is no such class."""
    if is_typeddict(cls):
        return frozenset(get_type_hints(cls))
    if dataclasses.is_dataclass(cls):
        return frozenset(field.name for field in dataclasses.fields(cls))
    if isinstance(cls, type) and issubclass(cls, msgspec.Struct):
        return None if cls.__struct_config__.array_like else frozenset(cls.__struct_encode_fields__)
    attributes = getattr(cls, "__attrs_attrs__", None)
    return None if attributes is None else frozenset(attribute.name for attribute in attributes)


def _told_apart(members: tuple[Any, ...]) -> bool:
    """Whether msgspec itself can tell the members apart, by their tags."""
    try:
        msgspec.json.Decoder(functools.reduce(operator.or_, members), dec_hook=decode_foreign)
    except TypeError:
        return False
    except NameError:
        return True  # Not our question: the registration's check names what is unresolved.
    return True


class _StandIn(type):
    """Class of stand-ins. msgspec checks that its hook returned an instance; whether it did, `decode` has
    decided.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


@functools.lru_cache(maxsize=512)
def _choice(members: tuple[type, ...]) -> type:
    """A stand-in class for one union; msgspec hands its values to `decode_foreign`."""
    decoders: list[tuple[type, frozenset[str] | None, Callable[[bytes], Any]]] = [
        (cls, field_names(cls), msgspec.json.Decoder(cls, dec_hook=decode_foreign).decode) for cls in members
    ]
    names = " | ".join(cls.__qualname__ for cls in members)

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise refusal(f"object of {names}", type(value).__name__)
        data, fitting, reasons = msgspec.json.encode(value), [], []
        for cls, fields, decode_member in decoders:
            if fields is not None and not fields.issuperset(value):
                reasons.append(f"{cls.__qualname__} has other fields")
                continue
            try:
                fitting.append(decode_member(data))
            except Exception as error:  # a class may refuse in its own way
                reasons.append(f"{cls.__qualname__} does not fit ({type(error).__name__})")
        if len(fitting) != 1:
            received = "an object that fits several" if fitting else "; ".join(reasons)
            raise refusal(f"object of exactly one of {names}", received)
        return fitting[0]

    return _StandIn(names, (), {DECODE_AS: staticmethod(decode), "__qualname__": names, MEMBERS: members})

"""Which annotations can cross as data, found out when a function is registered and not when a payload
arrives.

msgspec takes any class it does not know as a "custom type" and fails on the first value; here the annotation
is walked first, through fields of dataclasses and containers, and what is not data is refused with its place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, get_type_hints

import msgspec
from sojourn.codecs.errors import DataTypeError
from sojourn.codecs.foreign import MEMBERS, is_pydantic_model

_DATA: Final = (
    "a dataclass, msgspec.Struct, pydantic model, attrs class, TypedDict, NamedTuple, enum, datetime, "
    "timedelta, UUID, Decimal, bytes, or containers of them"
)

_MAPPINGS: Final = (msgspec.inspect.DictType, msgspec.inspect.FrozenDictType)
_NO_KEYS: Final = (
    msgspec.inspect.NoneType,
    msgspec.inspect.BoolType,
    msgspec.inspect.CollectionType,
    msgspec.inspect.TupleType,
    msgspec.inspect.DictType,
    msgspec.inspect.StructType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.TypedDictType,
    msgspec.inspect.NamedTupleType,
    msgspec.inspect.CustomType,
)
"""What JSON cannot have as a key: only text and what has one text form can."""


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the resolved annotations of `function`, the result's under "return". Raises `DataTypeError`
    naming what is unresolved.
    """
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target) and not isinstance(target, type):
        target = target.__call__
    try:
        return get_type_hints(target, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        _refuse_unresolved(target, error)


def hints_of_class(cls: type) -> dict[str, Any]:
    """Return the resolved annotations of the attributes of `cls`. Raises `DataTypeError`."""
    try:
        return get_type_hints(cls, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise DataTypeError(f"attributes of `{cls.__qualname__}`", "", str(error)) from error


def _refuse_unresolved(target: Any, error: Exception) -> NoReturn:
    name = getattr(error, "name", None) or ""
    annotations = getattr(target, "__annotations__", {})
    culprit = next((key for key, text in annotations.items() if name and name in str(text)), None)
    if culprit is None:
        culprit = next((key for key, text in annotations.items() if isinstance(text, str)), "return")
    raise DataTypeError(
        place(target, culprit),
        str(annotations.get(culprit, name)),
        f"{error}; define or import it at module level, not inside a function or under TYPE_CHECKING",
    ) from error


def place(function: Any, parameter: str) -> str:
    """Return how errors name a parameter or, for "return", the result of `function`."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"result of `{name}`" if parameter == "return" else f"parameter `{parameter}` of `{name}`"


def check(annotation: Any, where: str, *, written: str = "") -> None:
    """Raise `DataTypeError` when values of `annotation` cannot cross as data. `where` names function and
    parameter, `written` is the annotation as the user wrote it.
    """
    written = written or shown(annotation)
    try:
        for trail, why in _foreign(msgspec.inspect.type_info(annotation), "", set()):
            raise DataTypeError(where + trail, written, why)
    except NameError as error:
        reason = f"{error} in one of its fields; define or import it at module level"
        raise DataTypeError(where, written, reason) from error
    except DataTypeError:
        raise
    except RecursionError as error:
        reason = "an alias that contains itself has no end here; make it a class, or Any"
        raise DataTypeError(where, written, reason) from error
    except TypeError as error:
        raise DataTypeError(where, written, _why_refused(error)) from error


def _foreign(info: Any, trail: str, seen: set[Any]) -> Iterator[tuple[str, str]]:
    """Yield what inside a type is no data: its place in it, and why."""
    if isinstance(info, msgspec.inspect.CustomType):
        if hasattr(info.cls, MEMBERS):
            for cls in getattr(info.cls, MEMBERS):
                yield from _foreign(
                    msgspec.inspect.type_info(cls), f"{trail}, member `{cls.__qualname__}`", seen
                )
        elif not is_pydantic_model(info.cls):
            yield trail, _why_foreign(info.cls)
        return
    if isinstance(info, msgspec.inspect.ExtType):
        yield trail, _why_foreign(msgspec.msgpack.Ext)
        return
    if isinstance(info, _MAPPINGS) and isinstance(info.key_type, _NO_KEYS):
        yield trail, "keys of JSON objects are text: make them str, int, an enum, a date or a UUID"
        return
    cls = getattr(info, "cls", None)
    if cls is not None:
        if cls in seen:
            return
        seen.add(cls)
        if hasattr(cls, "__pydantic_validator__"):
            yield trail, _why_foreign(cls)
    for name in info.__struct_fields__:
        for part in _parts(getattr(info, name)):
            if isinstance(part, msgspec.inspect.Field):
                yield from _foreign(part.type, f"{trail}, field `{part.name}`", seen)
            elif isinstance(part, msgspec.inspect.Type):
                yield from _foreign(part, trail, seen)


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _why_foreign(cls: type) -> str:
    name = f"{cls.__module__}.{cls.__qualname__}"
    if cls is object:
        return "`object` says nothing about its shape; write Any for any JSON value"
    if hasattr(cls, "__pydantic_validator__"):
        return (
            f"validators of the pydantic dataclass `{name}` would not run; make it a BaseModel or a dataclass"
        )
    return f"`{name}` is not data ({_DATA}); pass what it is made from, or open it inside the step"


def _why_refused(error: TypeError) -> str:
    reason = str(error).partition("\n")[0].partition(" - type `")[0]
    if reason.startswith("Type unions may not contain more than one"):
        return f"{reason}; tell its members apart with msgspec.Struct classes that have tag=True"
    return reason


def shown(annotation: Any) -> str:
    """Return an annotation as a person would write it."""
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")

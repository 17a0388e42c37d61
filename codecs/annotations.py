"""Which annotations can cross as data, found out when a function is registered and not when a payload
arrives.

msgspec takes any class it does not know as a "custom type" and fails on the first value; here the annotation
is walked first, through fields of dataclasses and containers, and what is not data is refused with its place.
pydantic models are custom types with a codec of their own; pydantic is looked for among the modules already
imported and never imported here: who has a model has imported it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, get_type_hints

import msgspec
from sojourn.codecs.errors import DataTypeError

_DATA: Final = (
    "a dataclass, msgspec.Struct, pydantic model, attrs class, TypedDict, NamedTuple, enum, datetime, "
    "timedelta, UUID, Decimal, bytes, or containers of them"
)


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


def check(annotation: Any, where: str) -> None:
    """Raise `DataTypeError` when values of `annotation` cannot cross as data. `where` names function and
    parameter.
    """
    try:
        info = msgspec.inspect.type_info(annotation)
        for trail, cls in _foreign(info, "", set()):
            raise DataTypeError(where + trail, shown(annotation), _why_foreign(cls))
    except NameError as error:
        reason = f"{error} in one of its fields; define or import it at module level"
        raise DataTypeError(where, shown(annotation), reason) from error
    except TypeError as error:
        if isinstance(error, DataTypeError):
            raise
        raise DataTypeError(where, shown(annotation), _why_refused(error)) from error


def _foreign(info: Any, trail: str, seen: set[Any]) -> Iterator[tuple[str, type]]:
    """Yield the classes inside a type that msgspec does not know, with their place in it."""
    if isinstance(info, msgspec.inspect.CustomType):
        if not is_pydantic_model(info.cls):
            yield trail, info.cls
        return
    if isinstance(info, msgspec.inspect.ExtType):
        yield trail, msgspec.msgpack.Ext
        return
    cls = getattr(info, "cls", None)
    if cls is not None:
        if cls in seen:
            return
        seen.add(cls)
        if hasattr(cls, "__pydantic_validator__"):
            yield trail, cls
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


def is_pydantic_model(cls: Any) -> bool:
    """Whether `cls` is a pydantic model, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def encode_foreign(value: Any) -> Any:
    """msgspec's hook for values it does not know. Raises `NotImplementedError`, which msgspec turns into its
    own error.
    """
    if is_pydantic_model(type(value)):
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True).encode())
    raise NotImplementedError


def decode_foreign(cls: type, value: Any) -> Any:
    """msgspec's hook for annotations it does not know: pydantic validates in its strict JSON mode."""
    if is_pydantic_model(cls):
        validate: Callable[..., Any] = cls.model_validate_json  # type: ignore[attr-defined]  # a model has it
        return validate(msgspec.json.encode(value), strict=True)
    raise NotImplementedError

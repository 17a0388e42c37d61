"""Type variables and aliases that functions hold: `def f[T](...)` puts `T` into a cell of whatever uses it when it runs.

pickle finds them by the name of their module only, where those of a type parameter list never are. They go by the function or
class that declares them, so they stay the same objects; those of a function that was made inside of another, by value.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .globals import global_value, place_in
from .identity import attribute, import_module, present_name

if TYPE_CHECKING:
    from .pickler import FramePickler

_ALIAS: Any = getattr(typing, "TypeAliasType", None)  # from 3.12
TYPES: tuple[Any, ...] = (
    typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple, *([_ALIAS] if _ALIAS is not None else []),
)  # fmt: skip


def reduce_type_parameter(pickler: FramePickler, value: Any) -> Any:
    """By its own name, else by who declares it, else by value."""
    own = sys.modules.get(value.__module__ or "")
    if own is not None and vars(own).get(value.__name__) is value:
        return NotImplemented
    place = place_in(value.__module__, value)  # in a class, say
    if place is not None:
        return global_value, place
    names = [value.__module__, *(code.reference.partition(":")[0] for code in pickler.codes.values())]
    for name in dict.fromkeys(names):
        for path, parameters in _declared(sys.modules.get(name or "")):
            for index, each in enumerate(parameters if type(parameters) is tuple else ()):
                if each is value:
                    return type_parameter_of, (name, path, index)
    return make_type_parameter, _parts(value)


def _declared(module: Any) -> Iterator[tuple[str, Any]]:
    """(name, type parameters) of the functions, classes, methods and aliases of a module; anything for other values."""
    for name, each in list(vars(module).items()) if isinstance(module, types.ModuleType) else []:
        yield name, getattr(each, "__type_params__", ())
        if isinstance(each, type) and each.__module__ == module.__name__:
            for inner, member in list(vars(each).items()):
                function = getattr(member, "__func__", member)
                yield f"{name}.{inner}", getattr(function, "__type_params__", ())


def type_parameter_of(module_name: str, name: str, index: int) -> Any:
    """Restores a type parameter of a function or class that a module holds."""
    module_name, name = present_name(module_name, name)
    declared = attribute(import_module(module_name, f"{module_name}:{name}"), name)
    return getattr(declared, "__func__", declared).__type_params__[index]


def _parts(value: Any) -> tuple[Any, ...]:
    kind: Any = type(value)
    options: dict[str, Any] = {}
    if kind is _ALIAS:
        return (
            "TypeAliasType",
            value.__name__,
            (value.__value__,),
            {"type_params": value.__type_params__},
            None,
        )
    if kind is typing.TypeVar or kind is typing.ParamSpec:
        options = {
            "bound": value.__bound__, "covariant": value.__covariant__, "contravariant": value.__contravariant__,
        }  # fmt: skip
        if getattr(value, "__infer_variance__", False):
            options["infer_variance"] = True
    if getattr(value, "has_default", lambda: False)():  # from 3.13
        options["default"] = value.__default__
    return kind.__name__, value.__name__, getattr(value, "__constraints__", ()), options, value.__module__


def make_type_parameter(
    kind: str, name: str, parts: tuple[Any, ...], options: dict[str, Any], module: str | None
) -> Any:
    """Restores a type parameter or alias that no module holds."""
    made = getattr(typing, kind)(name, *parts, **options)
    if module is not None:
        made.__module__ = module
    return made

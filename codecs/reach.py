"""Which functions a workflow can lead to, seen from its source: for `sojourn check`, before anything runs.

A function leads to what its code, and the code nested in it, names: functions, classes with their methods, and what
it takes out of modules. What is named only at run time (through an argument, an attribute of an instance, a table of
functions) is not seen; a frame that holds it is checked when it is captured.
"""

from __future__ import annotations

import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .identity import nested_code
from .unwrapping import unwrapped

_MAX_FUNCTIONS = 20_000
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})


def reachable(roots: Iterable[Any], *, enter: Callable[[Any], bool]) -> list[types.FunctionType]:
    """The functions that `roots` (functions, or what wraps some) lead to, roots included, in the order met; at most 20,000.

    `enter(value)` says whether a named value is followed (not a step, say). Of the standard library, of Sojourn and of
    installed libraries nothing is followed.
    """
    found: dict[int, types.FunctionType] = {}
    queue = [function for root in roots for function in unwrapped(root)]
    while queue and len(found) < _MAX_FUNCTIONS:
        function = queue.pop(0)
        if id(function) in found or not _is_own(function):
            continue
        found[id(function)] = function
        for value in _named(function):
            if enter(value):
                queue += _functions_of(value)
    return list(found.values())


def _is_own(function: types.FunctionType) -> bool:
    top = (function.__module__ or "").partition(".")[0]
    file = function.__code__.co_filename
    return (
        top not in sys.stdlib_module_names
        and not (function.__module__ or "").startswith(_OURS)
        and not file.startswith(_LIBRARIES)
    )


_OURS = tuple(f"sojourn.{layer}" for layer in ("codecs", "broker", "actors", "cluster", "testing", "cli"))


def _named(function: types.FunctionType) -> Iterator[Any]:
    names = {name for code in nested_code(function.__code__) for name in code.co_names}
    space = function.__globals__
    modules = []
    for name in sorted(names):
        value = space.get(name)
        if isinstance(value, types.ModuleType):
            modules.append(value)
        elif value is not None:
            yield value
    for module in modules:
        yield from (vars(module)[name] for name in sorted(names) if name in vars(module))
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    if isinstance(value, type):
        for base in value.__mro__[:-1]:
            for member in list(vars(base).values()):
                yield from unwrapped(member)
    elif not isinstance(value, types.ModuleType):
        yield from unwrapped(value)

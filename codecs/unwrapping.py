"""From what a name leads to, to the plain functions behind it: through decorators, descriptors, partials and wrappers."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any


def attribute(module: types.ModuleType, path: str) -> Any:
    """The object at a dotted path, raw (a `staticmethod` or `property` is not bound), or None."""
    found: Any = module
    for part in path.split("."):
        owner = found
        found = None
        if isinstance(owner, types.ModuleType):
            found = vars(owner).get(part)
            continue
        while owner is not None and not isinstance(owner, type) and hasattr(owner, "__wrapped__"):
            owner = owner.__wrapped__
        mangled = (
            f"_{owner.__name__.lstrip('_')}{part}"
            if part.startswith("__") and isinstance(owner, type)
            else part
        )
        for base in getattr(owner, "__mro__", ()):
            if part in vars(base) or mangled in vars(base):
                found = vars(base).get(part, vars(base).get(mangled))
                break
        if found is None:
            return None
    return found


def unwrapped(found: Any) -> Iterator[types.FunctionType]:
    """Every plain function that `found` wraps, itself first; at most 64 objects are looked at."""
    queue, seen = [found], set[int]()
    while queue and len(seen) < 64:
        each = queue.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if type(each) is types.FunctionType:
            yield each
            inner = each.__dict__.get("__wrapped__")
            queue.append(inner)
            # A decorator that forgot functools.wraps keeps the function in its closure.
            for cell in each.__closure__ or ():
                content = _content(cell)
                if type(content) in _WRAPPERS or (
                    content is not None and "__wrapped__" in getattr(content, "__dict__", ())
                ):
                    queue.append(content)
        elif isinstance(each, (staticmethod, classmethod, types.MethodType)):
            queue.append(each.__func__)
        elif isinstance(each, property):
            queue += [each.fget, each.fset, each.fdel]
        elif isinstance(each, (functools.partial, functools.partialmethod, functools.cached_property)):
            queue.append(each.func)
        elif isinstance(each, functools.singledispatchmethod):
            queue += [each.func, *each.dispatcher.registry.values()]
        elif not isinstance(each, (type, types.ModuleType)):
            queue.append(_quiet_attribute(each, "__wrapped__"))


_WRAPPERS = (
    types.FunctionType, types.MethodType, staticmethod, classmethod, property, functools.partial,
    functools.partialmethod
)  # fmt: skip


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _quiet_attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:  # a user's __getattr__ may raise anything; it then wraps nothing we can see
        return None


def plain_function(found: Any) -> types.FunctionType:
    """The innermost plain function that `found` (a workflow, a step, a partial, a method) wraps.

    TypeError when there is none.
    """
    functions = list(unwrapped(found))
    if not functions:
        raise TypeError(f"expected a function, got {type(found).__qualname__}")
    for function in functions:
        if "__wrapped__" not in function.__dict__:
            return function
    return functions[-1]


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """`code` and all code in its constants, at any depth."""
    yield code
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            yield from nested_code(constant)

"""Graphs that are nested deeper than a pickler can follow: stored from the inside out.

The C pickler goes down into an object before it has written it, so each level costs it some of the interpreter's recursion
limit: five levels for a coroutine that awaits another, and a node's own calls are on the stack too. What is in its memo costs
nothing. So when it gives up, the graph is walked here with a list instead of the stack, and handed over with its innermost
parts first: then no object has more than one level left.

What decides itself how it is pickled is not looked into: it may hide what cannot be stored. A long ring has no innermost part
and remains too deep.
"""

from __future__ import annotations

import ctypes
import gc
import operator
import types
from collections.abc import Iterator
from typing import Any

from . import coroutines
from .awaitables import WRAPPER, behind
from .globals import is_plain

_CONTAINERS = frozenset((list, tuple, dict, set, frozenset, types.CellType, types.MethodType))
_MAX_PARTS = 1_000_000


class InnermostFirst:
    """A graph with its parts before it; it is restored as the graph alone."""

    def __init__(self, root: object) -> None:
        self.parts = list(innermost_first(root))[:-1]
        self.root = root

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, ((self.parts, self.root), 1)


def is_too_deep(error: BaseException) -> bool:
    """Whether a capture failed because the graph is nested too deep. ctypes tells it in words of its own."""
    return isinstance(error, RecursionError) or (
        isinstance(error, ctypes.ArgumentError) and "RecursionError" in str(error)
    )


def depth(root: object) -> int:
    """How many objects stand inside one another, at most."""
    deepest = 0
    stack: list[Any] = []
    for _ in _walk(root, stack):
        deepest = max(deepest, len(stack))
    return deepest


def innermost_first(root: object) -> Iterator[Any]:
    """Every object that a capture of `root` would go into, each after what it holds, `root` last."""
    return _walk(root, [])


def _walk(root: object, stack: list[Any]) -> Iterator[Any]:
    seen = {id(root)}
    kept: list[Any] = []  # an object that is gone might leave its id to another
    stack.append((root, iter(_inside(root))))
    while stack:
        each, rest = stack[-1]
        for part in rest:
            if id(part) not in seen and _has_parts(type(part)) and len(seen) < _MAX_PARTS:
                seen.add(id(part))
                kept.append(part)
                stack.append((part, iter(_inside(part))))
                break
        else:
            yield each
            stack.pop()


def _has_parts(kind: type) -> bool:
    return (
        kind in _CONTAINERS
        or kind in coroutines.KINDS
        or kind in (WRAPPER, types.FunctionType)
        or (issubclass(kind, BaseException) and kind.__reduce__ is BaseException.__reduce__)
        or (not issubclass(kind, (type, types.ModuleType)) and is_plain(kind))
    )


def _inside(value: Any) -> list[Any]:
    """What is stored of a value and is looked into on its own."""
    kind = type(value)
    if kind in coroutines.KINDS:
        code = coroutines.found_code(value)
        _, _, handled, contents, *_ = coroutines.capture(value, code)
        return [handled, *contents]
    if kind is WRAPPER:
        return [behind(value)]
    if kind is types.FunctionType:
        return [*(value.__closure__ or ()), *(value.__defaults__ or ())] if "<" in value.__qualname__ else []
    if isinstance(value, BaseException):
        return [value.__context__, value.__cause__, *value.args]
    return gc.get_referents(value)

"""Values that a module holds and that are known by their identity: sentinels such as `MISSING = object()`, context variables.

They go by module and name. Only values without state of their own are treated so: what has state is data, and
is stored.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .identity import CannotCapture, present_name

if TYPE_CHECKING:
    from .pickler import FramePickler

_found: dict[int, tuple[Any, types.ModuleType, str]] = {}
_CACHE_LIMIT = 10_000


def reduce_sentinel(pickler: FramePickler, value: Any) -> Any:
    """A plain `object()`: by name when some module holds it, else as a new one."""
    place = _place(value, (*_modules_of(pickler), *list(sys.modules.values())))
    return NotImplemented if place is None else (stateless_value, (*place, object))


def reduce_stateless(pickler: FramePickler, value: Any) -> Any:
    """An instance that holds nothing:

    by name when the module of its class, or of the code in the frame, holds it.
    """
    if type(value).__dictoffset__ and object.__getattribute__(value, "__dict__"):
        return NotImplemented
    own = sys.modules.get(type(value).__module__)
    place = _place(value, (own, *_modules_of(pickler)))
    return NotImplemented if place is None else (stateless_value, (*place, type(value)))


def stateless_reducer(kind: type) -> Callable[[FramePickler, Any], Any] | None:
    """How instances of `kind` are stored when they may hold nothing, which is asked of each; else None."""
    return reduce_stateless if is_default(kind) and not has_slots(kind) else None


def reduce_context_variable(pickler: FramePickler, value: Any) -> Any:
    """A `ContextVar` in a local: by the name that a module holds it under."""
    place = _place(value, (*_modules_of(pickler), *list(sys.modules.values())))
    if place is None:
        raise CannotCapture("ContextVar", "keep context variables at module level")
    return global_value, place


def place_of(value: Any) -> tuple[str, str] | None:
    """The module and name under which some module holds exactly this object, or None."""
    return _place(value, list(sys.modules.values()))


def name_in(spaces: Iterable[dict[str, Any]], value: Any) -> str | None:
    """The name under which one of these namespaces holds exactly this object, or None."""
    for space in spaces:
        if id(value) in map(id, list(space.values())):
            return next((name for name, each in list(space.items()) if each is value), None)
    return None


def is_named(function: types.FunctionType) -> bool:
    """Whether a function's own name leads to it."""
    if "<" in function.__qualname__:
        return False
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def name_of_function(function: types.FunctionType) -> str | None:
    """The name under which its module holds a function that was made in another one, or None."""
    module = sys.modules.get(function.__module__ or "")
    return None if module is None else name_in((vars(module),), function)


def place_in(module: str | None, value: Any) -> tuple[str, str] | None:
    """The name under which that module holds exactly this object, or None."""
    return _place(value, (sys.modules.get(module or ""),))


def global_value(module: str, name: str) -> Any:
    """Restores what a module holds."""
    module, name = present_name(module, name)
    __import__(module)
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def stateless_value(module: str, name: str, kind: Any) -> Any:
    """Restores an instance that holds nothing. Where its name is bound to something else, that was no constant: a new one."""
    found = global_value(module, name)
    return found if type(found) is kind else kind.__new__(kind)


def is_plain(kind: type) -> bool:
    """Whether instances of `kind` keep their state in `__dict__` only, and are pickled by Python's default."""
    return bool(kind.__dictoffset__) and is_default(kind) and not has_slots(kind)


def has_slots(kind: type) -> bool:
    """Whether instances of `kind` keep attributes outside of `__dict__`."""
    return any(base.__dict__.get("__slots__") for base in kind.__mro__)


def is_default(kind: type) -> bool:
    """Whether instances of `kind` have nothing but attributes, and are pickled by Python's default."""
    return all(
        getattr(kind, name) is getattr(object, name)
        for name in ("__reduce_ex__", "__reduce__", "__getstate__")
    ) and all(base is object or base.__flags__ & _HEAP for base in kind.__mro__)


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by a class statement


def _modules_of(pickler: FramePickler) -> Iterator[Any]:
    names = dict.fromkeys(code.reference.partition(":")[0] for code in pickler.codes.values())
    return (sys.modules.get(name) for name in names)


def _place(value: Any, modules: Iterable[Any]) -> tuple[str, str] | None:
    known = _found.get(id(value))
    if known is not None and known[0] is value and vars(known[1]).get(known[2]) is value:
        return known[1].__name__, known[2]
    for module in modules:
        if not isinstance(module, types.ModuleType) or sys.modules.get(module.__name__) is not module:
            continue
        for name, each in list(vars(module).items()):
            if each is value:
                if len(_found) >= _CACHE_LIMIT:
                    _found.clear()
                _found[id(value)] = (value, module, name)
                return module.__name__, name
            if isinstance(each, type) and each.__module__ == module.__name__:
                inner = _place_in_class(value, each)
                if inner is not None:
                    return module.__name__, f"{name}.{inner}"
    return None


def _place_in_class(value: Any, kind: type) -> str | None:
    """The path that leads from a class to what it, or a class written in it, holds."""
    for name, member in list(vars(kind).items()):
        if member is value:
            return name
        if isinstance(member, type) and member.__qualname__ == f"{kind.__qualname__}.{name}":
            inner = _place_in_class(value, member)
            if inner is not None:
                return f"{name}.{inner}"
    return None

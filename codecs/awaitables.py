"""The small awaitables of the interpreter: `co.__await__()`, `agen.asend()`, `agen.athrow()`, `anext(agen, default)`.

Their types have no names and do not pickle. Where they keep their state is read from samples before the first use; `layout`
has the reasons.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .errors import UnsupportedInterpreter
from .identity import CannotCapture
from .layout import current, no_hooks

if TYPE_CHECKING:
    from .pickler import FramePickler


async def _nothing() -> None:
    return


async def _nothing_generated() -> Any:
    yield


def _awaitable_types() -> tuple[type, type, type, type]:
    """The types of `co.__await__()`, `agen.asend()`, `agen.athrow()` and `anext(agen, default)`, which have
    no names.
    """
    coroutine, generator = _nothing(), _nothing_generated()
    with no_hooks():
        wrapper, send, throw = coroutine.__await__(), generator.asend(None), generator.aclose()
        following = anext(generator, None)
    kinds = type(wrapper), type(send), type(throw), type(following)
    coroutine.close()
    for each in (following, send, throw):
        each.close()
    return kinds


WRAPPER, ASEND, ATHROW, ANEXT = _awaitable_types()


_CLOSED = 2
_GENERATOR, _ARGUMENT, _STATE = 16, 24, 32


def behind(awaitable: Any) -> Any:
    """The coroutine, async generator or awaitable that one of these runs, or None for other types."""
    parts = _PARTS.get(type(awaitable))
    return None if parts is None else parts(awaitable)[0]


def reduce_awaitable(_: FramePickler, awaitable: Any) -> Any:
    """By what it runs and how far it is."""
    kind = type(awaitable)
    return _RESTORERS[kind], _PARTS[kind](awaitable)


def _await_parts(wrapper: Any) -> tuple[Any]:
    return (gc.get_referents(wrapper)[0],)


def await_of(coroutine: Any) -> Any:
    """Restores `co.__await__()`."""
    return coroutine.__await__()


def _send_parts(target: Any) -> tuple[Any, ...]:
    """(async generator, value to send, state) of an `agen.asend(value)`."""
    _verify()
    generator = ctypes.py_object.from_address(id(target) + _GENERATOR).value
    argument = ctypes.c_ssize_t.from_address(id(target) + _ARGUMENT).value
    value = ctypes.py_object.from_address(id(target) + _ARGUMENT).value if argument else None
    return generator, value, ctypes.c_int.from_address(id(target) + _STATE).value


def send_of(generator: Any, value: Any, state: int) -> Any:
    """Restores an `agen.asend(value)` in the state it had."""
    _verify()
    with no_hooks():
        target = generator.asend(value)
    ctypes.c_int.from_address(id(target) + _STATE).value = state
    return target


def _throw_parts(target: Any) -> tuple[Any, ...]:
    """(async generator, arguments or None for `aclose`, state) of an `agen.athrow(...)` or `agen.aclose()`."""
    _verify()
    generator = ctypes.py_object.from_address(id(target) + _GENERATOR).value
    state = ctypes.c_int.from_address(id(target) + _throw_state).value
    if state == 0:
        raise CannotCapture("async_generator_athrow", "await it at once instead of keeping it in a variable")
    has_arguments = ctypes.c_ssize_t.from_address(id(target) + _ARGUMENT).value != 0
    return generator, has_arguments, state


def throw_of(generator: Any, has_arguments: bool, state: int) -> Any:
    """Restores an `agen.athrow(...)` or `agen.aclose()` that is under way:

    what was thrown has been delivered already.
    """
    _verify()
    with no_hooks():
        target = generator.athrow(GeneratorExit()) if has_arguments else generator.aclose()
    ctypes.c_int.from_address(id(target) + _throw_state).value = state
    return target


def _next_parts(target: Any) -> tuple[Any, Any]:
    """(awaitable, default) of an `anext(iterator, default)`."""
    _verify()
    wrapped, default = (
        ctypes.py_object.from_address(id(target) + at).value for at in (_GENERATOR, _ARGUMENT)
    )
    return wrapped, default


class _Given:
    """An async iterator whose `__anext__` is already there: `anext(_Given(a), d)` wraps `a` itself."""

    def __init__(self, awaitable: Any) -> None:
        self.awaitable = awaitable

    def __aiter__(self) -> Any:
        return self

    def __anext__(self) -> Any:
        return self.awaitable


def next_of(awaitable: Any, default: Any) -> Any:
    """Restores an `anext(iterator, default)`."""
    return anext(_Given(awaitable), default)


_throw_state = 0


def _verify() -> None:
    """Check by reading where these objects keep their state, once; `layout` has the reasons."""
    global _throw_state
    if _throw_state:
        return
    layout = current()
    marker = object()
    generator = _nothing_generated()
    with no_hooks():
        send, throw, close = generator.asend(marker), generator.athrow(KeyError(1)), generator.aclose()
        following = anext(generator, marker)
    size = {kind: kind.__basicsize__ for kind in (ASEND, ATHROW)}

    def words(target: Any, count: int) -> list[int]:
        return [ctypes.c_ssize_t.from_address(id(target) + 16 + 8 * index).value for index in range(count)]

    states = [
        at for at in range(_STATE, size[ATHROW] - 3, 8) if _int_at(throw, at) == 0 and _int_at(close, at) == 0
    ]
    before = words(send, 2) + words(throw, 1) + words(close, 2), _int_at(send, _STATE), words(following, 2)[1]
    send.close()
    throw.close()
    close.close()
    states = [at for at in states if _int_at(throw, at) == _CLOSED and _int_at(close, at) == _CLOSED]
    home = id(generator)
    good = before == ([home, id(marker), home, home, 0], 0, id(marker)) and _int_at(send, _STATE) == _CLOSED
    following.close()
    if not good or len(states) != 1:
        raise UnsupportedInterpreter(
            f"cpython 3.{layout.minor}", "its async generator awaitables are not as expected"
        )
    _throw_state = states[0]


def _int_at(target: Any, at: int) -> int:
    return ctypes.c_int.from_address(id(target) + at).value


def never_awaited(pending: Any) -> None:
    """Mark an `asend` or `athrow` as closed: dropping one that was not awaited is a warning."""
    _verify()
    at = _STATE if type(pending) is ASEND else _throw_state
    ctypes.c_int.from_address(id(pending) + at).value = _CLOSED


_PARTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    WRAPPER: _await_parts, ASEND: _send_parts, ATHROW: _throw_parts, ANEXT: _next_parts,
}  # fmt: skip
_RESTORERS: dict[type, Callable[..., Any]] = {
    WRAPPER: await_of, ASEND: send_of, ATHROW: throw_of, ANEXT: next_of,
}  # fmt: skip
TYPES = tuple(_PARTS)

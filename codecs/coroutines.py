"""Coroutines, generators, async generators and the small awaitables of the interpreter, as values that can be pickled.

Theory. Each is reduced in two phases, so that a cycle through the object itself ends at the memo: *make*
calls the function found for its code (fresh, arguments None), *fill* writes where the captured one stood.
What a coroutine awaits lies on top of its value stack and is pickled as part of it, so the chain of awaits
needs no code of its own.

The stored state is `(offset * 4 + kind, mask, handled exception, values)` and, only when it differs from what
a fresh one has, a dictionary of extras. Kinds are those of `layout`.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import gc
import itertools
import struct
import sys
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from . import slots
from .globals import name_in, name_of_function
from .identity import Code, CodeNotFound, code_of, known_globals
from .layout import CREATED, FINISHED, FRAME_DATA, RUNNING, current, no_hooks
from .liveness import live_mask

KINDS = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


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


class CannotCapture(Exception):  # internal: `diagnosis` turns it into CannotSuspend with the place
    """A value cannot be stored. The message is the remedy; `type_name` names what it is."""

    def __init__(self, type_name: str, remedy: str) -> None:
        self.type_name = type_name
        super().__init__(remedy)


def code_object(target: Any) -> types.CodeType:
    """The code of a coroutine, generator or async generator. Materialises no frame."""
    if type(target) is types.CoroutineType:
        return target.cr_code
    code: types.CodeType = target.gi_code if type(target) is types.GeneratorType else target.ag_code
    return code


def found_code(target: Any) -> Code:
    """The named code of `target`; raises CannotCapture when it cannot be found by name."""
    code = code_object(target)
    try:
        return code_of(code, _globals_of(target))
    except CodeNotFound as error:
        raise CannotCapture(type(target).__name__, str(error)) from error


_HEAD = struct.Struct(f"<{(getattr(types.CoroutineType, '__basicsize__', 16) - 16) // 8}q")
_word = ctypes.c_ssize_t.from_address


def _words_of(target: Any) -> tuple[int, ...]:
    return _HEAD.unpack(ctypes.string_at(id(target) + 16, _HEAD.size))


@lru_cache(maxsize=1)
def _globals_at() -> int:
    """Where in a suspended object its namespace is: at the place where a known one has this module's."""
    coroutine = _nothing()
    at = 16 + 8 * _words_of(coroutine).index(id(globals()))
    coroutine.close()
    return at


def _globals_of(target: Any) -> dict[str, Any] | None:
    """The module namespace that a suspended frame runs in: its head points to one module dictionary."""
    global _last_module
    known = known_globals(code_object(target))
    if known is not None and (
        _word(id(target) + _globals_at()).value == id(known) or slots.kind_of(target) == FINISHED
    ):
        return known
    words = _words_of(target)
    last = _last_module  # mostly the one that is met next: one look instead of one at each module there is
    if (
        last is not None
        and id(vars(last)) in words
        and sys.modules.get(getattr(last, "__name__", "")) is last
    ):
        return vars(last)
    modules: list[Any] = list(sys.modules.values())  # anything can be put there
    for module in modules:
        if not isinstance(module, types.ModuleType) or module is builtins:
            continue
        if id(vars(module)) in words:
            _last_module = module
            return vars(module)
    return None if known is None else {}  # its code is known, but where it runs is no module


_last_module: types.ModuleType | None = None


def capture(target: Any, code: Code) -> tuple[Any, ...]:
    """The state of `target` where it stands, as `fill` takes it."""
    at = slots.standing(target, code.code)
    if at.kind == FINISHED:
        state: tuple[Any, ...] = (FINISHED, 0, None, [])
    elif at.kind == RUNNING:
        raise CannotCapture(type(target).__name__, "it is running now; capture it when it is suspended")
    else:
        plan = code.plans.get((at.lasti, at.kind, at.present))
        if plan is None:
            plan = code.plans[at.lasti, at.kind, at.present] = _plan(code, at)
        wanted, dead = plan
        if dead:
            wanted |= _finalised(target, at, dead)
        exception = slots.handled(target) if at.exception else None
        contents = slots.values(target, at, wanted)
        state = (at.lasti * 4 | at.kind, wanted | 1 << at.size, exception, contents)
    extras = _extras(target, code.code)
    return (*state, extras) if extras else state


def _plan(code: Code, at: slots.Standing) -> tuple[int, int]:
    """Which slots to store where the code stands so, and which hold something that nobody will read."""
    mask = at.mask
    if at.kind == CREATED:
        return mask, 0
    wanted = mask & (live_mask(code.code, at.lasti) | -1 << code.slots)
    return wanted, mask & ~wanted


def _finalised(target: Any, at: slots.Standing, dead: int) -> int:
    """Which slots that nobody will read hold what has a `finally` to run: it must run where it would."""
    keep = 0
    indexes = (index for index in range(at.size) if dead >> index & 1)
    for index, value in zip(indexes, slots.values(target, at, dead), strict=True):
        if type(value) in KINDS:
            keep |= (module_name(value, target) is None) << index
        elif type(value) in _HOLDERS and _holds_suspended(value):
            keep |= 1 << index
    return keep


# What people put a generator into and drop half way; anything else may hold what cannot be stored, and is not read again.
_HOLDERS = frozenset(
    (
        map, filter, zip, enumerate, list, tuple, dict, functools.partial, types.BuiltinMethodType, types.MethodWrapperType,
        contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager,
        *(each for each in vars(itertools).values() if isinstance(each, type)),
    )
)  # fmt: skip
_FEW_HELD = 16


def _holds_suspended(value: Any) -> bool:
    """Whether a generator is reached through such holders, small ones: this is asked at every suspension."""
    queue, seen = [value], set[int]()
    for each in queue:  # which grows meanwhile
        if type(each) in KINDS:
            return True
        if type(each) in _HOLDERS and id(each) not in seen and len(seen) < _FEW_HELD:
            seen.add(id(each))
            if not isinstance(each, (list, tuple, dict)) or len(each) <= _FEW_HELD:
                queue += [held for held in gc.get_referents(each) if type(held) not in _LEAVES]
    return False


def _extras(target: Any, code: types.CodeType) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if target.__qualname__ != code.co_qualname:
        extras["qualname"] = target.__qualname__
    if target.__name__ != code.co_name:
        extras["name"] = target.__name__
    if type(target) is types.AsyncGeneratorType:
        flags = slots.async_flags(target)
        if flags != (False, False):
            extras["flags"] = flags
    return extras


def fill(target: Any, state: tuple[Any, ...]) -> None:
    """Make a fresh coroutine stand where the captured one stood.

    Raises ValueError when the state does not fit its code.
    """
    position, mask, handled, contents, *more = state
    kind, lasti = position & 3, position >> 2
    if kind == FINISHED:
        _finish(target)
    else:
        slots.write(target, code_object(target), kind, lasti, mask, contents, handled)
    if more:
        extras = more[0]
        target.__qualname__ = extras.get("qualname", target.__qualname__)
        target.__name__ = extras.get("name", target.__name__)
        if "flags" in extras:
            slots.set_async_flags(target, *extras["flags"])


def _finish(target: Any) -> None:
    if type(target) is not types.AsyncGeneratorType:
        target.close()
        return
    with contextlib.suppress(StopIteration), no_hooks():
        target.aclose().send(None)


def tell_when_dropped(restored: list[Any], hook: Callable[[Any], None]) -> None:
    """Have `hook` called with each of these async generators that is dropped before it has ended.

    Python gives one its finalizer when it is first asked for a value; that was where it was captured. So it forgets that it
    was asked, and is asked once more: that request is never awaited, and closed by hand.
    """
    for each in restored:
        if type(each) is types.AsyncGeneratorType and not slots.async_flags(each)[0]:
            slots.forget_hooks(each)
            hooks = sys.get_asyncgen_hooks()
            sys.set_asyncgen_hooks(None, hook)
            try:
                request = each.asend(None)
            finally:
                sys.set_asyncgen_hooks(*hooks)
            _never_awaited(request)


# -- the interpreter's own awaitables ----------------------------------------------------------------------

_ITERATING, _CLOSED = 1, 2
_GENERATOR, _ARGUMENT, _STATE = 16, 24, 32


def wrapped_coroutine(wrapper: Any) -> Any:
    """The coroutine behind `co.__await__()`."""
    return gc.get_referents(wrapper)[0]


def await_of(coroutine: Any) -> Any:
    """Restores `co.__await__()`."""
    return coroutine.__await__()


def send_parts(target: Any) -> tuple[Any, ...]:
    """(async generator, value to send, state) of an `agen.asend(value)`."""
    _verify_awaitables()
    generator = ctypes.py_object.from_address(id(target) + _GENERATOR).value
    argument = ctypes.c_ssize_t.from_address(id(target) + _ARGUMENT).value
    value = ctypes.py_object.from_address(id(target) + _ARGUMENT).value if argument else None
    return generator, value, ctypes.c_int.from_address(id(target) + _STATE).value


def send_of(generator: Any, value: Any, state: int) -> Any:
    """Restores an `agen.asend(value)` in the state it had."""
    _verify_awaitables()
    with no_hooks():
        target = generator.asend(value)
    ctypes.c_int.from_address(id(target) + _STATE).value = state
    return target


def throw_parts(target: Any) -> tuple[Any, ...]:
    """(async generator, arguments or None for `aclose`, state) of an `agen.athrow(...)` or `agen.aclose()`."""
    _verify_awaitables()
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
    _verify_awaitables()
    with no_hooks():
        target = generator.athrow(GeneratorExit()) if has_arguments else generator.aclose()
    ctypes.c_int.from_address(id(target) + _throw_state).value = state
    return target


def next_parts(target: Any) -> tuple[Any, Any]:
    """(awaitable, default) of an `anext(iterator, default)`."""
    _verify_awaitables()
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


def _verify_awaitables() -> None:
    """Check by reading where these objects keep their state, once; `layout` has the reasons."""
    global _throw_state
    if _throw_state:
        return
    from .errors import UnsupportedInterpreter

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


# -- discard -----------------------------------------------------------------------------------------------


def discard(*coroutines: Any) -> None:
    """Drop suspended coroutines, with everything they await and every generator they hold, in silence.

    No `finally`, `except` or `__aexit__` runs and nothing warns (PROTOCOL I10: cleanup runs when an actor ends,
    never because memory was reclaimed). Afterwards they are finished. A coroutine that is running now raises
    ValueError.
    """
    current()
    held, pending = _held_by(coroutines)
    for _, code, kind in held:
        if kind == RUNNING:
            raise ValueError(f"{code.co_qualname} is running and cannot be discarded")
    for awaitable in pending:
        _never_awaited(awaitable)
    for target, code, kind in held:
        slots.disarm(target, code, kind)
    for target, _, _ in held:
        if type(target) is not types.AsyncGeneratorType:
            target.close()
        else:
            _close_silently(target)


def _never_awaited(pending: Any) -> None:
    """Mark an `asend` or `athrow` as closed: dropping one that was not awaited is a warning."""
    _verify_awaitables()
    at = _STATE if type(pending) is ASEND else _throw_state
    ctypes.c_int.from_address(id(pending) + at).value = _CLOSED


def _close_silently(target: Any) -> None:
    """End a disarmed async generator:

    only the frame's own release is wanted, none of the protocol around it.
    """
    if slots.kind_of(target) == CREATED:
        return
    slots.set_async_flags(target, closed=False, running=False)
    with contextlib.suppress(StopIteration, StopAsyncIteration, GeneratorExit), no_hooks():
        target.aclose().send(None)


# Nothing suspended lies behind these, or nothing that belongs to the coroutine.
_LEAVES = frozenset(
    (type(None), bool, int, float, complex, str, bytes, range, type, types.ModuleType, types.CodeType)
)
# Objects of these modules lead to the event loop, to other tasks and threads: nothing behind them is the actor's.
# (A coroutine that holds one cannot be stored, but it must still be possible to drop it alone.)
_FOREIGN = frozenset(
    (
        "asyncio", "_asyncio", "uvloop", "threading", "_thread", "socket", "_socket", "ssl", "_ssl", "selectors",
        "concurrent", "multiprocessing", "subprocess", "weakref", "_weakref", "logging", "contextvars",
        "_contextvars", "_frozen_importlib", "_frozen_importlib_external", "importlib",
    )
)  # fmt: skip
_MAX_VISITED = 1_000_000


def suspended_in(*roots: Any) -> list[Any]:
    """Every coroutine, generator and async generator that the roots hold, directly or through plain objects."""
    return [target for target, _, _ in _held_by(roots)[0]]


# How a type is looked through for what is suspended.
_LEAF, _PLAIN, _SUSPENDED, _FUNCTION, _WRAPPED, _PENDING, _FRAME = range(7)  # a leaf is false
_ways: dict[type, int] = {
    **dict.fromkeys(_LEAVES, _LEAF),
    **dict.fromkeys(KINDS, _SUSPENDED),
    types.FunctionType: _FUNCTION,
    WRAPPER: _WRAPPED,
    ASEND: _PENDING,
    ATHROW: _PENDING,
    types.FrameType: _FRAME,
}
_FIXED_WAYS = frozenset(_ways)
_MAX_WAYS = 4096
_FEW = 4
"""From so many parts of a value on it pays to ask at once whether all are leaves: a list of numbers, say."""


def _way(kind: type) -> int:
    """Decide once how instances of a class are looked through."""
    if len(_ways) >= _MAX_WAYS:
        for each in [each for each in _ways if each not in _FIXED_WAYS]:
            del _ways[each]
    top = str(kind.__module__).partition(".")[0]
    leaf = issubclass(kind, (type, types.ModuleType)) or (
        not issubclass(kind, BaseException) and top in _FOREIGN
    )
    way = _ways[kind] = _LEAF if leaf else _PLAIN
    return way


def _held_by(roots: tuple[Any, ...]) -> tuple[list[tuple[Any, types.CodeType, int]], list[Any]]:
    """What is suspended, with its code and kind, and what `asend` and `athrow` are pending."""
    seen: set[int] = set()
    held: list[tuple[Any, types.CodeType, int]] = []
    pending: list[Any] = []
    queue = list(roots)
    ways, referents, is_tracked = _ways, gc.get_referents, gc.is_tracked
    for each in queue:  # which grows meanwhile
        kind: type = type(each)
        way = ways.get(kind)
        if way is None:
            way = _way(kind)
        if not way or id(each) in seen:
            continue
        seen.add(id(each))
        if way == _PLAIN:
            if is_tracked(each):  # else it holds nothing that could be suspended
                found = referents(each)
                if len(found) < _FEW or not _LEAVES.issuperset(map(type, found)):
                    queue += found
                    if len(queue) > _MAX_VISITED:
                        break
        elif way == _SUSPENDED:
            code = code_object(each)
            if held and module_name(each, held[0][0]) is not None:
                continue
            at = slots.standing(each, code)
            held.append((each, code, at.kind))
            queue += slots.values(each, at, at.mask)
            if at.exception:
                queue.append(slots.handled(each))
        elif way == _FUNCTION and (each.__closure__ or each.__defaults__) and not _is_held_by_module(each):
            queue += each.__closure__ or ()
            queue += each.__defaults__ or ()
        elif way == _WRAPPED:
            queue.append(wrapped_coroutine(each))
        elif way == _PENDING:
            pending.append(each)
            queue += referents(each)
        elif way == _FRAME and _is_finished(each):
            # A traceback keeps the variables of functions that have ended; no further than to their generators.
            queue += [held for held in referents(each) if type(held) in KINDS]
    return held, pending


def module_name(target: Any, root: Any = None) -> str | None:
    """The name under which its module, or that of `root`, holds a generator: others go on with it, so it is nobody's own."""
    if type(target) is types.CoroutineType:
        return None
    spaces = {id(space): space for space in (_globals_of(target), root and _globals_of(root)) if space}
    return name_in(spaces.values(), target)


def _is_held_by_module(function: types.FunctionType) -> bool:
    if "<" in function.__qualname__:
        return name_of_function(function) is not None
    found: Any = sys.modules.get(function.__module__ or "")
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _is_finished(frame: types.FrameType) -> bool:
    """Whether a frame's function has ended: then the frame object itself holds its variables.

    Of one that still runs (the engine's own, in the traceback of an exception that passed through) nothing is ours.
    """
    data = ctypes.c_ssize_t.from_address(id(frame) + FRAME_DATA).value
    return id(frame) < data < id(frame) + sys.getsizeof(frame)

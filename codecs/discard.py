"""Dropping what is suspended, in silence, and finding it: everything that a coroutine awaits or holds.

The search follows plain objects, but never into what is not the actor's: event loops, threads, the running functions of a
traceback, what a module holds for all.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import types
from typing import Any

from . import slots
from .awaitables import ASEND, ATHROW, WRAPPER, behind, never_awaited
from .coroutines import KINDS, LEAVES, code_object, module_name
from .globals import is_named, name_of_function
from .layout import CREATED, FRAME_DATA, RUNNING, current, no_hooks


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
        never_awaited(awaitable)
    for target, code, kind in held:
        slots.disarm(target, code, kind)
    for target, _, _ in held:
        if type(target) is not types.AsyncGeneratorType:
            target.close()
        else:
            _close_silently(target)


def _close_silently(target: Any) -> None:
    """End a disarmed async generator:

    only the frame's own release is wanted, none of the protocol around it.
    """
    if slots.kind_of(target) == CREATED:
        return
    slots.set_async_flags(target, closed=False, running=False)
    with contextlib.suppress(StopIteration, StopAsyncIteration, GeneratorExit), no_hooks():
        target.aclose().send(None)


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
    **dict.fromkeys(LEAVES, _LEAF),
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
                if len(found) < _FEW or not LEAVES.issuperset(map(type, found)):
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
            queue.append(behind(each))
        elif way == _PENDING:
            pending.append(each)
            queue += referents(each)
        elif way == _FRAME and _is_finished(each):
            # A traceback keeps the variables of functions that have ended; no further than to their generators.
            queue += [held for held in referents(each) if type(held) in KINDS]
    return held, pending


def _is_held_by_module(function: types.FunctionType) -> bool:
    return is_named(function) or name_of_function(function) is not None


def _is_finished(frame: types.FrameType) -> bool:
    """Whether a frame's function has ended: then the frame object itself holds its variables.

    Of one that still runs (the engine's own, in the traceback of an exception that passed through) nothing is ours.
    """
    data = ctypes.c_ssize_t.from_address(id(frame) + FRAME_DATA).value
    return id(frame) < data < id(frame) + sys.getsizeof(frame)

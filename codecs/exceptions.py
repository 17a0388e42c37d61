"""Exceptions as a frame stores them: everything a handler can see, and the traceback as readable text.

An exception is made without calling its `__init__`, then given its arguments, attributes, context, cause,
notes and traceback: so cycles are fine, and classes whose `__init__` takes other arguments than they pass on
come back all the same. A class with a `__reduce__` of its own is made by that.

A traceback holds frames, which cannot move. What is kept of each is file, function name and line; a restore
builds real traceback objects over empty frames of those names, so `traceback.format_exception` prints the
same lines in the same order, and what is raised further adds to them.
"""

from __future__ import annotations

import _thread
import ctypes
import queue
import sys
import types
from functools import lru_cache
from typing import Any

from .slots import put

_BUILTIN_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_SKIPPED = frozenset(("__dict__", "args", "obj", "__weakref__", "exceptions", "message"))
_MAX_ENTRIES = 64  # the first and last 32 of a longer traceback


def reduce_exception(exception: BaseException) -> tuple[Any, ...]:
    """Reduce an exception in two phases: make, then fill."""
    kind: type = type(exception)
    extras = _extras(exception)
    if _has_own_reduce(kind):
        made = exception.__reduce_ex__(5)
        if isinstance(made, tuple) and len(made) >= 2:
            state = made[2] if len(made) > 2 else None
            if "__notes__" in vars(exception):
                extras["notes"] = exception.__notes__
            return made[0], made[1], (None, state, extras), None, None, fill_exception
    fields = {name: value for name in _fields(kind) if (value := _field(exception, name)) is not None}
    if fields:
        extras["fields"] = fields
    if isinstance(exception, BaseExceptionGroup):
        extras["group"] = (exception.message, exception.exceptions)
    return make_exception, (kind,), (exception.args, _state(exception), extras), None, None, fill_exception


def _state(exception: BaseException) -> Any:
    state = object.__getstate__(exception)
    return state or None


def _extras(exception: BaseException) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if exception.__context__ is not None:
        extras["context"] = exception.__context__
    if exception.__cause__ is not None:
        extras["cause"] = exception.__cause__
    if exception.__suppress_context__:
        extras["suppress"] = True
    if exception.__traceback__ is not None:
        extras["traceback"] = exception.__traceback__  # itself: `except*` tells parts of one group by it
    return extras


@lru_cache(maxsize=512)
def _has_own_reduce(kind: type) -> bool:
    for base in kind.__mro__:
        if "__reduce__" in vars(base) or "__reduce_ex__" in vars(base):
            return base.__module__ != "builtins"
    return False


@lru_cache(maxsize=512)
def _fields(kind: type) -> tuple[str, ...]:
    """The data that builtin exception classes keep outside of `args` and `__dict__`."""
    names = (
        name
        for base in kind.__mro__
        if base.__module__ == "builtins"
        for name, value in vars(base).items()
        if isinstance(value, _BUILTIN_FIELDS) and not name.startswith("__")
    )
    return tuple(dict.fromkeys(name for name in names if name not in _SKIPPED))


def _field(exception: BaseException, name: str) -> Any:
    """What a builtin class keeps under that name, whatever an heir shows under it; None when it is not set."""
    try:
        return _descriptor(type(exception), name).__get__(exception)
    except AttributeError:
        return None


def _descriptor(kind: type, name: str) -> Any:
    return next(
        vars(base)[name] for base in kind.__mro__ if base.__module__ == "builtins" and name in vars(base)
    )


def make_exception(kind: type[BaseException]) -> BaseException:
    """An empty exception of that class."""
    base: Any = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    if issubclass(base, BaseExceptionGroup):
        inner = Exception() if issubclass(kind, Exception) else BaseException()
        return _made_by(base, kind, "", [inner])
    return _made_by(base, kind)


def _made_by(base: Any, kind: type[BaseException], *arguments: Any) -> BaseException:
    made: BaseException = base.__new__(kind, *arguments)
    return made


def fill_exception(exception: BaseException, state: tuple[Any, ...]) -> None:
    """Give a fresh exception what the captured one had."""
    arguments, attributes, extras = state
    if arguments is not None:
        if "group" in extras:
            _fill_group(exception, *extras["group"])
        exception.args = arguments
    if attributes is not None:
        _set_state(exception, attributes)
    for name, value in extras.get("fields", {}).items():
        _descriptor(type(exception), name).__set__(exception, value)
    if "notes" in extras:
        vars(exception)["__notes__"] = extras["notes"]
    exception.__context__ = extras.get("context", exception.__context__)
    exception.__cause__ = extras.get("cause", exception.__cause__)
    exception.__suppress_context__ = extras.get("suppress", False)
    if "traceback" in extras:
        exception.__traceback__ = extras["traceback"]


def _set_state(exception: BaseException, state: Any) -> None:
    own, in_slots = state if type(state) is tuple and len(state) == 2 else (state, None)
    if own:
        exception.__dict__.update(own)
    for name, value in (in_slots or {}).items():
        object.__setattr__(exception, name, value)


def _fill_group(group: BaseException, message: str, inner: tuple[BaseException, ...]) -> None:
    """Replace message and members of an exception group, which Python sets only when it is made.

    They are the two pointers after the fields of `BaseException`; checked against what was put there before
    anything is written.
    """
    at = id(group) + BaseException.__basicsize__
    fields = [ctypes.c_ssize_t.from_address(at + offset).value for offset in (0, 8)]
    old = (group.message, group.exceptions)  # type: ignore[attr-defined]  # an exception group has them
    if fields != [id(each) for each in old]:
        raise ValueError("an exception group is not laid out as expected")
    put(at, message)
    put(at + 8, inner)


def traceback_entries(traceback: types.TracebackType | None) -> tuple[tuple[str, str, int], ...]:
    """(file, function, line) of each entry, outermost first; the middle of a very long one is left out."""
    entries = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        entries.append((code.co_filename, code.co_name, traceback.tb_lineno or 0))
        traceback = traceback.tb_next
    if len(entries) > _MAX_ENTRIES:
        half = _MAX_ENTRIES // 2
        entries = [*entries[:half], *entries[-half:]]
    return tuple(entries)


def traceback_of(entries: tuple[tuple[str, str, int], ...]) -> types.TracebackType | None:
    """Traceback objects that print as `entries`."""
    made: types.TracebackType | None = None
    for file, name, line in reversed(entries):
        made = types.TracebackType(made, _frame(file, name), -1, line)
    return made


def _here() -> None:
    made(sys._getframe())  # type: ignore[name-defined]  # noqa: F821  # in the namespace that `_frame` gives it


@lru_cache(maxsize=512)
def _frame(file: str, name: str) -> types.FrameType:
    """An empty frame whose code has that file and name.

    It runs in a thread of its own, as the first function there: a frame keeps its callers alive, with all they hold, and
    that would be the restoring of an actor.
    """
    code = _here.__code__.replace(co_filename=file, co_name=name, co_qualname=name)
    given: queue.SimpleQueue[types.FrameType] = queue.SimpleQueue()
    space = {"sys": sys, "made": given.put, "__name__": "restored"}
    _thread.start_new_thread(types.FunctionType(code, space), ())
    frame = given.get()
    del space["made"]
    return frame

"""Why a graph cannot be stored: function, line, variable and the path inside it. Runs only after a capture has failed.

The capture itself stays fast and says only that something failed. Here each variable of each suspended
function is tried alone, then its parts, until the innermost value that fails is found.
"""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Iterator
from itertools import islice
from typing import Any

from . import coroutines, slots
from .awaitables import WRAPPER
from .coroutines import code_object
from .deep import depth, is_too_deep
from .discard import suspended_in
from .errors import CannotSuspend
from .identity import CannotCapture
from .layout import FINISHED, RUNNING
from .pickler import FramePickler, type_name

_MAX_DEPTH = 24
_MAX_PARTS = 10_000

_REMEDIES = (
    # (module prefix of the class, its name or "" for all, what to do), first match
    ("socket", "", "open it inside a step or after the await"),
    ("ssl", "", "open it inside a step or after the await"),
    ("_io", "", "open the file inside a step, or read what you need before the await and close it"),
    ("_thread", "", "locks guard threads, and a workflow has none; drop it, or keep it inside a step"),
    ("threading", "", "threads and their locks cannot move; keep them inside a step"),
    ("_contextvars", "Token", "reset the context variable before the await"),
    ("contextvars", "Token", "reset the context variable before the await"),
    ("_contextvars", "", "keep context variables at module level and do not hold a context across an await"),
    ("asyncio", "", "it belongs to an event loop; use Sojourn's counterpart, or keep it inside a step"),
    ("_asyncio", "", "it belongs to an event loop; use Sojourn's counterpart, or keep it inside a step"),
    ("uvloop", "", "it belongs to an event loop; use Sojourn's counterpart, or keep it inside a step"),
    ("concurrent", "", "take its result before the await, or keep it inside a step"),
    ("sqlite3", "", "open the connection inside a step, with `resource` or by hand"),
    ("tempfile", "", "make it inside a step; across awaits keep its path, and remove it in a `finally`"),
    ("weakref", "finalize", "it would call its function when this copy is dropped; clean up in a `finally`"),
    ("weakref", "", "hold the object itself, or look it up again after the await"),
    ("functools", "_lru_cache_wrapper", "define the function with its cache at module level"),
    ("functools", "KeyWrapper", "keep the function that compares, and wrap it where you sort"),
    ("typing", "NewType", "define it at module level"),
    ("re", "Match", "take the groups you need before the await"),
    ("_sre", "", "take the matches you need into a list before the await"),
    ("_csv", "", "read the rows you need into a list before the await"),
    ("builtins", "memoryview", "keep the bytes that it shows, and make it again after the await"),
)
_OPEN_LATER = "open it inside a step or after the await"


def explain(root: object, visited: list[Any], error: Exception) -> CannotSuspend:
    """The error for a failed capture of `root`: the suspended functions `visited` are searched, the last first."""
    if is_too_deep(error):
        return _too_deep(visited)
    for target in reversed(visited):
        found = _in_frame(target)
        if found is not None:
            return found
    path, culprit, innermost = _innermost(root, error)
    return CannotSuspend("", 0, "", path, _named(culprit, innermost), _remedy(culprit, innermost))


def _too_deep(visited: list[Any]) -> CannotSuspend:
    """What is nested deepest, since no value fails by itself: a variable's value, or the suspended calls themselves."""
    deepest, place, name, kind = len(visited), visited[-1] if visited else None, "", ""
    for target in visited[-_MAX_DEEP:]:
        for variable, value in _variables(target):
            levels = depth(value)
            if levels > deepest:
                deepest, place, name, kind = levels, target, variable, type_name(type(value))
    if place is None:
        return CannotSuspend("", 0, "", "", "object", _FLAT.format(deepest, "objects"))
    line, file = _place(place)
    what = "objects" if kind else "suspended calls"
    kind = kind or type_name(type(place))
    return CannotSuspend(
        code_object(place).co_qualname, line, name, "", kind, _FLAT.format(deepest, what), file
    )


_MAX_DEEP = 200
_FLAT = (
    "it nests {} {} inside one another, in a ring or in types that pickle themselves, deeper than Python can follow "
    f"(its recursion limit here is {sys.getrecursionlimit()}); keep it flat (a list, a dictionary by key, a loop), "
    "or outside of the workflow"
)


def _in_frame(target: Any) -> CannotSuspend | None:
    """What keeps one suspended function from being stored: its own code, or a variable of it."""
    function = code_object(target).co_qualname
    try:
        if slots.kind_of(target) == RUNNING:
            return CannotSuspend(function, 0, "", "", type_name(type(target)), _RUNNING)
        coroutines.found_code(target)
    except CannotCapture as unnamed:
        line, file = _place(target)
        return CannotSuspend(function, line, "", "", type_name(type(target)), str(unnamed), file)
    for variable, value in _variables(target):
        outer = _problem(value)
        if outer is not None:
            path, culprit, inner = _innermost(value, outer)
            line, file = _place(target)
            remedy = _remedy(culprit, inner)
            return CannotSuspend(function, line, variable, path, _named(culprit, inner), remedy, file)
    return None


def _named(culprit: Any, problem: Exception) -> str:
    return problem.type_name if isinstance(problem, CannotCapture) else type_name(type(culprit))


_RUNNING = "it is running now; capture it when it is suspended"


def _place(target: Any) -> tuple[int, str]:
    code = code_object(target)
    return slots.line_at(code, slots.standing(target, code).lasti), code.co_filename


def variables_of(root: object) -> Iterator[tuple[str, str, Any]]:
    """(function, variable, value) of everything stored for the suspended functions that `root` holds;

    "" for temporaries.
    """
    for target in suspended_in(root):
        for variable, value in _variables(target):
            yield code_object(target).co_qualname, variable, value


def _variables(target: Any) -> Iterator[tuple[str, Any]]:
    """What a capture of `target` would store, but for the suspended things in it, which are looked at on
    their own.
    """
    code = code_object(target)
    at = slots.standing(target, code)
    if at.kind >= FINISHED:
        return
    names = slots.slot_names(code)
    mask = coroutines.stored_slots(target, at)
    indexes = [index for index in range(at.size) if mask >> index & 1]
    for index, value in zip(indexes, slots.values(target, at, mask), strict=True):
        name = names[index] if index < len(names) else ""
        if type(value) is types.CellType:
            try:
                value = value.cell_contents
            except ValueError:
                continue
        if type(value) in coroutines.KINDS and coroutines.module_name(value, target) is None:
            continue
        if type(value) is not WRAPPER:
            yield name, value
    exception = slots.handled(target)
    if exception is not None:
        yield "", exception


class _Probe(FramePickler):
    """Tries one value: what is suspended inside it is tried on its own, so it counts as storable here."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) in coroutines.KINDS and coroutines.module_name(value) is None:
            return int, ()
        return super().reducer_override(value)


def _problem(value: Any) -> Exception | None:
    try:
        _Probe(io.BytesIO()).dump(value)
    except Exception as error:  # the user's own __reduce__ may raise anything, and that is the finding
        return error
    return None


def _innermost(value: Any, problem: Exception) -> tuple[str, Any, Exception]:
    """Path to, value and problem of the innermost part of `value` that fails by itself."""
    path = ""
    seen: set[int] = set()
    for _ in range(_MAX_DEPTH):
        if _known_remedy(value):
            break  # what people know it by, rather than the lock inside it
        seen.add(id(value))
        for step, part in _parts(value):
            if id(part) in seen:
                continue
            inner = _problem(part)
            if inner is not None:
                path, value, problem = path + step, part, inner
                break
        else:
            break
    return path, value, problem


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    return islice(_all_parts(value), _MAX_PARTS)


def _all_parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in list(value.items()):
            yield f"[{_short(key)}]", item
            yield f".keys({_short(key)})", key
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif isinstance(value, (set, frozenset)):
        for item in list(value):
            yield f"{{{_short(item)}}}", item
    if isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f"<{name}>", cell.cell_contents
            except ValueError:
                continue
        for index, default in enumerate(value.__defaults__ or ()):
            yield f".__defaults__[{index}]", default
        return
    if isinstance(value, BaseException):
        for name in ("__context__", "__cause__"):
            if getattr(value, name) is not None:
                yield f".{name}", getattr(value, name)
        for index, item in enumerate(value.args):
            yield f".args[{index}]", item
    if isinstance(value, type):
        return
    state = getattr(value, "__dict__", None)
    if isinstance(state, dict):
        for name, item in list(state.items()):
            yield f".{name}", item
    yield from _slot_parts(value)
    yield from _reduced_parts(value)


def _slot_parts(value: Any) -> Iterator[tuple[str, Any]]:
    for base in type(value).__mro__:
        declared = base.__dict__.get("__slots__", ())
        for name in (declared,) if isinstance(declared, str) else tuple(declared):
            try:
                yield f".{name}", object.__getattribute__(value, name)
            except AttributeError:
                continue


def _reduced_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What an iterator or another C object holds, as it says itself when it is reduced."""
    if type(value).__module__ not in (
        "builtins",
        "itertools",
        "functools",
        "collections",
        "_functools",
    ) or isinstance(value, (dict, list, tuple, set, frozenset, str, bytes, int, float)):
        return
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # it cannot be reduced: then it is itself the culprit
        return
    if isinstance(reduced, tuple):
        for item in reduced[1:]:
            if isinstance(item, tuple):
                for part in item:
                    yield "", part


def _short(key: Any) -> str:
    return repr(key)[:40] if isinstance(key, (str, int, bool, bytes)) else type(key).__name__


def _known_remedy(value: Any) -> str:
    for base in type(value).__mro__:
        for module, name, remedy in _REMEDIES:
            inside = base.__module__ == module or base.__module__.startswith(module + ".")
            if inside and name in ("", base.__name__) and not issubclass(base, BaseException):
                return remedy
    return ""


def _remedy(culprit: Any, problem: Exception) -> str:
    if isinstance(problem, CannotCapture):
        return str(problem)
    known = _known_remedy(culprit)
    if known:
        return known
    return f"{_OPEN_LATER} ({type(problem).__name__}: {str(problem)[:200]})"

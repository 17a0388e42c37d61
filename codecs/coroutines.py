"""Coroutines, generators and async generators as values that can be pickled.

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
from .awaitables import never_awaited
from .globals import name_in
from .identity import CannotCapture, Code, CodeNotFound, code_of, known_globals
from .layout import CREATED, FINISHED, RUNNING, no_hooks
from .liveness import live_mask

KINDS = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


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
        return code_of(code, globals_of(target))
    except CodeNotFound as error:
        raise CannotCapture(type(target).__name__, str(error)) from error


_HEAD = struct.Struct(f"<{(getattr(types.CoroutineType, '__basicsize__', 16) - 16) // 8}q")
_word = ctypes.c_ssize_t.from_address


def _words_of(target: Any) -> tuple[int, ...]:
    return _HEAD.unpack(ctypes.string_at(id(target) + 16, _HEAD.size))


async def _here() -> None:
    return


@lru_cache(maxsize=1)
def _globals_at() -> int:
    """Where in a suspended object its namespace is: at the place where a known one has this module's."""
    coroutine = _here()
    at = 16 + 8 * _words_of(coroutine).index(id(globals()))
    coroutine.close()
    return at


def globals_of(target: Any) -> dict[str, Any] | None:
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


def module_name(target: Any, root: Any = None) -> str | None:
    """The name under which its module, or that of `root`, holds a generator: others go on with it, so it is nobody's own."""
    if type(target) is types.CoroutineType:
        return None
    spaces = {id(space): space for space in (globals_of(target), root and globals_of(root)) if space}
    return name_in(spaces.values(), target)


def capture(target: Any, code: Code) -> tuple[Any, ...]:
    """The state of `target` where it stands, as `fill` takes it."""
    at = slots.standing(target, code.code)
    if at.kind == FINISHED:
        state: tuple[Any, ...] = (FINISHED, 0, None, [])
    elif at.kind == RUNNING:
        raise CannotCapture(type(target).__name__, "it is running now; capture it when it is suspended")
    else:
        wanted = stored_slots(target, at)
        exception = slots.handled(target) if at.exception else None
        contents = slots.values(target, at, wanted)
        state = (at.lasti * 4 | at.kind, wanted | 1 << at.size, exception, contents)
    extras = _extras(target, code.code)
    return (*state, extras) if extras else state


def stored_slots(target: Any, at: slots.Standing) -> int:
    """Which slots are stored where `target` stands so: what will be read, and what has a `finally` to run."""
    plans = at.facts.stored
    plan = plans.get((at.lasti, at.kind, at.present))
    if plan is None:
        plan = plans[at.lasti, at.kind, at.present] = _plan(at)
    wanted, dead = plan
    return wanted | _finalised(target, at, dead) if dead else wanted


def _plan(at: slots.Standing) -> tuple[int, int]:
    """Which slots will be read where the code stands so, and which hold something that nobody will."""
    mask = at.mask
    if at.kind == CREATED:
        return mask, 0
    wanted = mask & (live_mask(at.facts.code, at.lasti) | -1 << at.facts.fixed)
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


# Nothing suspended lies behind these, or nothing that belongs to who holds them.
LEAVES = frozenset(
    (type(None), bool, int, float, complex, str, bytes, range, type, types.ModuleType, types.CodeType)
)
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
                queue += [held for held in gc.get_referents(each) if type(held) not in LEAVES]
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
            never_awaited(request)

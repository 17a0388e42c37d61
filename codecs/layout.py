"""Where CPython keeps a suspended coroutine: the offsets, for each minor version, and the proof that they hold here.

Theory. A coroutine, generator or async generator object of CPython 3.11 to 3.15 ends in its interpreter
frame:

    object head | code? | weakrefs | name | qualname | handled exception | previous | origin | flags.. state |
    frame head | slots

`type(co).__basicsize__` is the offset of the first slot. Slots are the locals (arguments first), cells, free
variables, and then the value stack. What precedes the first slot says how many slots are live and where the
code stands:

    3.11 to 3.13   base-16: instruction pointer      base-8: int, number of live slots
    3.14, 3.15     base-24: instruction pointer      base-16: stack pointer

The instruction pointer equals `id(code) + type(code).__basicsize__ + f_lasti`. From 3.14 slots are tagged
references: 1 is null, the low bit means "not counted" (immortal or borrowed), and in 3.15 low bits 11 mean a
tagged integer.

All this is private to CPython. So nothing is believed: `current()` reads coroutines it knows, compares every
fact with what the language itself says, and refuses with one sentence when one differs. It runs at the first
capture, never at import, so that a client that only signals works on any Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .errors import UnsupportedInterpreter

WORD = 8

# What a suspended object can be doing. Part of the stored format: never renumber.
CREATED, SUSPENDED, DELEGATING, FINISHED, RUNNING = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Layout:
    """Facts about one CPython minor version;

    offsets are bytes from the start of the object unless said otherwise.
    """

    minor: int
    exception: int  # the exception being handled inside the coroutine, or null
    flags: int  # async generators: hooks inited, closed, running (one byte each), then the state byte
    state: int
    pointer_back: int  # instruction pointer, bytes before the first slot
    top_back: int  # live slots (an int) or the stack pointer, bytes before the first slot
    tagged: bool  # slots are tagged references
    states: dict[int, int]  # the state byte, and what it means
    suspended: int  # state bytes to write
    delegating: int


_OLD_STATES = {-2: CREATED, -1: SUSPENDED, 0: RUNNING, 1: FINISHED, 4: FINISHED}
_NEW_STATES = {-3: CREATED, -2: SUSPENDED, -1: DELEGATING, 0: RUNNING, 1: FINISHED, 4: FINISHED}
_STATES_315 = {0: CREATED, 1: SUSPENDED, 2: DELEGATING, 3: RUNNING, 4: RUNNING, 5: FINISHED}

_KNOWN = {
    11: Layout(11, 48, 72, 75, 16, 8, False, _OLD_STATES, -1, -1),
    12: Layout(12, 40, 64, 67, 16, 8, False, _OLD_STATES, -1, -1),
    13: Layout(13, 40, 64, 67, 16, 8, False, _NEW_STATES, -2, -1),
    14: Layout(14, 40, 64, 67, 24, 16, True, _NEW_STATES, -2, -1),
    15: Layout(15, 40, 64, 67, 24, 16, True, _STATES_315, 1, 2),
}

FRAME_DATA = 24  # in a frame object: where its data is
CODE_START: int = getattr(
    types.CodeType, "__basicsize__", 0
)  # other implementations have none, and import this

_verified: Layout | None = None


def current() -> Layout:
    """The layout of this interpreter, verified by reading once per process.

    Raises UnsupportedInterpreter, in one sentence, on any other interpreter or when a fact does not hold.
    """
    global _verified
    if _verified is None:
        layout = _known_layout()
        _verify(layout)
        _verified = layout
    return _verified


def _known_layout() -> Layout:
    name = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    if sys.implementation.name != "cpython" or sys.version_info.major != 3:
        raise UnsupportedInterpreter(name, "frames can be captured on CPython only")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise UnsupportedInterpreter(name, "the free-threaded build keeps frames differently")
    if hasattr(sys, "gettotalrefcount"):
        raise UnsupportedInterpreter(name, "the debug build keeps objects differently")
    if ctypes.sizeof(ctypes.c_void_p) != WORD or sys.byteorder != "little":
        raise UnsupportedInterpreter(name, "a 64-bit little-endian machine is needed")
    layout = _KNOWN.get(sys.version_info.minor)
    if layout is None:
        raise UnsupportedInterpreter(name, "its frame layout is not known; CPython 3.11 to 3.15 are")
    return layout


@contextlib.contextmanager
def no_hooks() -> Iterator[None]:
    """Keep an event loop that runs in this thread from adopting async generators that are not its own."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)


@types.coroutine
def _pause() -> Any:
    yield


async def _known_inner(first: object, second: object) -> None:
    await _pause()


async def _known_outer(first: object, second: object) -> object:
    try:
        raise KeyError
    except KeyError as caught:
        first = caught
        await _known_inner(first, second)
    return lambda: second  # makes `second` a cell


async def _known_generator() -> Any:
    await _pause()
    yield


def _word(address: int) -> int:
    value: int = ctypes.c_ssize_t.from_address(address).value
    return value


def _verify(layout: Layout) -> None:
    name = f"cpython 3.{layout.minor}"
    marker = object()
    outer: Any = _known_outer(marker, marker)

    def must(fact: bool, what: str) -> None:
        if not fact:
            raise UnsupportedInterpreter(name, f"its {what} is not where it was expected")

    def slots(co: Any) -> list[int]:
        base = id(co) + type(co).__basicsize__
        top = _word(base - layout.top_back)
        count = (top - base) // WORD if layout.tagged else top & 0xFFFFFFFF
        must(0 <= count <= 64, "number of live slots")
        raw = struct.unpack(f"<{count}q", ctypes.string_at(base, count * WORD))
        return [word & ~1 for word in raw] if layout.tagged else list(raw)

    def offset(co: Any) -> int:
        base = id(co) + type(co).__basicsize__
        return _word(base - layout.pointer_back) - id(co.cr_code) - CODE_START

    def state(co: Any) -> int | None:
        return layout.states.get(ctypes.c_int8.from_address(id(co) + layout.state).value)

    try:
        for kind in (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType):
            must(kind.__basicsize__ == types.CoroutineType.__basicsize__, "generator size")
        code = outer.cr_code
        names = code.co_varnames + tuple(n for n in code.co_cellvars if n not in code.co_varnames)
        must(state(outer) == CREATED, "state byte")
        must(len(slots(outer)) == len(names), "number of live slots")
        must(_word(id(outer) + layout.exception) in (0, id(None)), "handled exception")
        outer.send(None)
        inner: Any = outer.cr_await
        must(
            state(outer) in (SUSPENDED, DELEGATING) and state(inner) in (SUSPENDED, DELEGATING), "state byte"
        )
        waiting = slots(outer)
        must(len(waiting) > len(names), "number of live slots")
        stack = [word for word in waiting[len(names) :] if word]  # 3.15 keeps a null above what is awaited
        must(stack[-1:] == [id(inner)], "value stack")
        caught = _word(id(outer) + layout.exception)
        must(caught == waiting[0], "handled exception")
        must(_word(caught + WORD) == id(KeyError), "handled exception")
        must(_word(waiting[1] + WORD) == id(types.CellType), "cell variable")
        must(slots(inner)[:2] == [caught, id(marker)], "local variable")
        # `cr_frame` materialises a frame object: allowed on these two only, they are thrown away.
        must(offset(outer) == outer.cr_frame.f_lasti, "instruction pointer")
        must(offset(inner) == inner.cr_frame.f_lasti, "instruction pointer")
        with no_hooks():
            _verify_flags(layout, must)
        _verify_list()
        _verify_frame_object(layout)
    finally:
        outer.close()
    must(state(outer) == FINISHED, "state byte")


def _verify_flags(layout: Layout, must: Callable[[bool, str], None]) -> None:
    """The three bytes of an async generator change as it is asked, runs and is closed."""
    generator = _known_generator()

    def flags() -> list[bool]:
        return [byte == 1 for byte in ctypes.string_at(id(generator) + layout.flags, 3)]

    seen = [flags()]
    asked = generator.asend(None)
    seen.append(flags())
    asked.send(None)
    seen.append(flags())
    with contextlib.suppress(GeneratorExit):
        asked.throw(GeneratorExit)
    seen.append(flags())
    expected = [[False, False, False], [True, False, False], [True, False, True], [True, True, False]]
    must(seen == expected, "async generator flag")


def _ended_frame() -> types.FrameType:
    return sys._getframe()


def _verify_frame_object(layout: Layout) -> None:
    """The frame object of an ended function holds its own data, and its fourth word points to it."""
    ended, running = _ended_frame(), sys._getframe()
    inside = [
        id(each) < _word(id(each) + FRAME_DATA) < id(each) + sys.getsizeof(each) for each in (ended, running)
    ]
    if inside != [True, False]:
        raise UnsupportedInterpreter(
            f"cpython 3.{layout.minor}", "its frame objects are not laid out as expected"
        )


def _verify_list() -> None:
    """Slots are handed over by emptying a list without releasing its items:

    its size and its items must be where we write.
    """
    one, two = object(), object()
    pair = [one, two]
    items = _word(id(pair) + 24)
    if _word(id(pair) + 16) != 2 or (_word(items), _word(items + WORD)) != (id(one), id(two)):
        raise UnsupportedInterpreter(sys.version.split()[0], "its list is not laid out as expected")

"""Reading and writing the slots of a suspended coroutine, generator or async generator.

Theory of ownership. A slot owns one reference to its object. Reading takes new references. Writing hands
references over in bulk instead of counting one by one: the values come in a list, which owns them; the list's
size is set to 0 (it now owns nothing, and its items are owned by nobody), then the pointers are copied into the
slots (which now own them), and what stood in the slots before is released. Between these steps every object has
at least the references it needs, so a garbage collection at any moment sees objects that are held from outside,
never too few references.

A slot may be null, which is not `None`: an unbound local, or a marker of a call under construction. A mask has
a bit for each slot that is stored; the others are null after a restore.

Each call into ctypes costs as much as ten lines of Python, so a frame is read in one piece, from the handled
exception to the last slot, and written in one piece, from the instruction pointer on.
"""

from __future__ import annotations

import ctypes
import dis
import struct
import sys
import types
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from .layout import CODE_START, CREATED, DELEGATING, FINISHED, RUNNING, SUSPENDED, WORD, Layout, current

# All three kinds have one size (verified with the layout), so the frame starts at one offset.
_BASE: int = getattr(types.CoroutineType, "__basicsize__", 0)
_HEAD_WORDS = 3  # the words before the first slot that are read and written with the slots
_LIST_SIZE, _LIST_ITEMS = 16, 24
_CACHE_LIMIT, _PLAN_LIMIT = 20_000, 1000
_RESUME = dis.opmap.get("RESUME", -1)

_read = ctypes.string_at
_move = ctypes.memmove
_int8 = ctypes.c_int8.from_address
_word = ctypes.c_ssize_t.from_address
# By item: function objects of our own, whose argument types we may set. (Other implementations have none: they are
# refused when something is captured, not when this is imported.)
_api: Any = getattr(ctypes, "pythonapi", None)
if _api is not None:
    _decref = _api["Py_DecRef"]
    _decref.argtypes = [ctypes.c_void_p]
    _decref.restype = None
    _incref = _api["Py_IncRef"]
    _incref.argtypes = [ctypes.py_object]
    _incref.restype = None

# From 3.12 these are never counted, so what a fresh coroutine holds for its arguments needs no release.
_UNCOUNTED = frozenset((0, id(None))) if sys.version_info >= (3, 12) else frozenset((0,))


class TaggedInt(NamedTuple):
    """A tagged integer of CPython 3.15 that stands in a slot like an object: the index of a loop over a list."""

    word: int


class Standing(NamedTuple):
    """Where a suspended object stands."""

    kind: int  # one of the kinds of `layout`
    lasti: int  # offset of its last instruction
    size: int  # number of slots, those of the value stack included
    words: tuple[int, ...]  # the raw slots
    present: tuple[bool, ...]  # which of them are not null
    exception: int  # address of the exception being handled, or 0
    facts: Facts  # of its code

    @property
    def mask(self) -> int:
        """The slots that are not null, as bits."""
        return mask_of(self.present)


class Facts:
    """What reading and writing need to know of a code object, worked out once."""

    __slots__ = (
        "code",
        "fixed",
        "fresh",
        "length",
        "names",
        "plans",
        "room",
        "silent",
        "start",
        "stored",
        "words",
    )

    def __init__(self, code: types.CodeType) -> None:
        raw = code.co_code
        self.code = code
        self.names = slot_names(code)
        self.fixed = len(self.names)  # locals, cells and free variables: the slots before the value stack
        self.room = self.fixed + code.co_stacksize
        self.length = len(raw)
        self.fresh = struct.Struct(f"<{_HEAD_WORDS + self.fixed}q")
        self.plans: dict[int, _WritePlan] = {}
        self.stored: dict[
            Any, tuple[int, int]
        ] = {}  # a cache of the capture: which slots to store where it stands
        self.start = id(code) + CODE_START
        # The start of the function lies inside no handler of the user's: from there it unwinds in silence.
        self.silent = next(
            (at for at in range(0, len(raw), 2) if raw[at] == _RESUME and raw[at + 1] & 3 == 0), 0
        )
        layout = current()
        self.words = struct.Struct(f"<{(_BASE - layout.exception) // WORD + self.room}q")


_facts: dict[int, Facts] = {}


def facts_of(code: types.CodeType) -> Facts:
    """The facts of a code object. Cached by the object itself."""
    known = _facts.get(id(code))
    if known is not None and known.code is code:
        return known
    if len(_facts) >= _CACHE_LIMIT:
        _facts.clear()
    known = _facts[id(code)] = Facts(code)
    return known


def slot_names(code: types.CodeType) -> tuple[str, ...]:
    """The variable names of the slots before the value stack, in order."""
    names = code.co_varnames
    return (*names, *(name for name in code.co_cellvars if name not in names), *code.co_freevars)


@lru_cache(maxsize=512)
def _objects(count: int) -> Any:
    return ctypes.py_object * count


@lru_cache(maxsize=8192)
def runs(mask: int) -> tuple[tuple[int, int], ...]:
    """The set bits of `mask` as runs (first, past the last)."""
    found, start = [], None
    for index in range(mask.bit_length() + 1):
        if mask >> index & 1:
            start = index if start is None else start
        elif start is not None:
            found.append((start, index))
            start = None
    return tuple(found)


@lru_cache(maxsize=8192)
def mask_of(present: tuple[bool, ...]) -> int:
    """Booleans as bits."""
    return sum(1 << index for index, there in enumerate(present) if there)


def object_at(address: int) -> Any:
    """A new reference to the object whose pointer is stored at `address`, which must not be null."""
    return ctypes.py_object.from_address(address).value


def put(address: int, value: Any) -> None:
    """Store a counted reference to `value` at `address`, and release the one that was there, if any."""
    place = _word(address)
    old = place.value
    _incref(value)
    place.value = id(value)
    if old:
        _decref(old)


def clear(address: int) -> None:
    """Make the reference at `address` null, and release it."""
    place = _word(address)
    old = place.value
    place.value = 0
    if old:
        _decref(old)


def kind_of(target: Any) -> int:
    """What a coroutine, generator or async generator is doing now: one of the kinds of `layout`."""
    layout = current()
    return layout.states.get(_int8(id(target) + layout.state).value, RUNNING)


def standing(target: Any, code: types.CodeType) -> Standing:
    """Read where `target`, whose code is `code`, stands. Disturbs nothing: no frame object is made."""
    layout = current()
    facts = facts_of(code)
    start = id(target) + layout.exception
    raw = facts.words.unpack(_read(start, facts.words.size))
    # The state byte lies in the fourth word: 27 bytes after the handled exception in every version.
    byte = raw[3] >> 24 & 0xFF
    kind = layout.states.get(byte - 256 if byte > 127 else byte, RUNNING)
    if kind >= FINISHED:
        return Standing(kind, 0, 0, (), (), 0, facts)
    head = (_BASE - layout.exception) // WORD
    top = raw[head - layout.top_back // WORD]
    count = (top - id(target) - _BASE) // WORD if layout.tagged else top & 0xFFFFFFFF
    lasti = raw[head - layout.pointer_back // WORD] - facts.start
    if not (facts.fixed <= count <= facts.room and 0 <= lasti < facts.length):
        raise SystemError(f"frame of {code.co_qualname} is not readable: {count} slots, offset {lasti}")
    words = raw[head : head + count]
    present = tuple(map((1).__lt__, words))  # null is 0 or, tagged, 1
    return Standing(kind, lasti, count, words, present, raw[0], facts)


def lasti_of(target: Any, code: types.CodeType) -> int:
    """The offset of the instruction at which `target`, which has not ended, stands: all that its line needs."""
    facts = facts_of(code)
    lasti: int = _word(id(target) + _BASE - current().pointer_back).value - facts.start
    if not 0 <= lasti < facts.length:
        raise SystemError(f"frame of {code.co_qualname} is not readable: offset {lasti}")
    return lasti


def line_at(code: types.CodeType, lasti: int) -> int:
    """The line of an instruction; where it has none, that of the function."""
    lines = (line for start, end, line in code.co_lines() if start <= lasti < end and line is not None)
    return next(lines, code.co_firstlineno)


def values(target: Any, at: Standing, mask: int) -> list[Any]:
    """New references to the objects in the slots of `mask`, which must be a part of `at.mask`."""
    if current().tagged:
        return _tagged_values(at.words, mask)
    slots = _objects(at.size).from_address(id(target) + _BASE)
    found: list[Any] = []
    for first, last in runs(mask):
        found += slots[first:last]
    return found


def _tagged_values(words: tuple[int, ...], mask: int) -> list[Any]:
    plain = [word & ~3 for first, last in runs(mask) for word in words[first:last]]
    tagged = [word for first, last in runs(mask) for word in words[first:last] if word & 3 == 3]
    if not tagged:
        return list(_objects(len(plain)).from_buffer((ctypes.c_ssize_t * len(plain))(*plain)))
    found: list[Any] = []
    for first, last in runs(mask):
        for word in words[first:last]:
            if word & 3 == 3:
                found.append(TaggedInt(word))
            else:
                found.append(ctypes.py_object.from_buffer(ctypes.c_ssize_t(word & ~3)).value)
    return found


def handled(target: Any) -> BaseException | None:
    """The exception that `target` is handling where it stands, or None."""
    address = id(target) + current().exception
    exception: BaseException | None = object_at(address) if _word(address).value else None
    return exception


class _WritePlan(NamedTuple):
    """How the contents of a frame are laid out into its slots: the same for each frame with that mask."""

    stored: int  # number of contents
    size: int  # number of slots
    contents: struct.Struct
    frame: struct.Struct  # the head and the slots
    arrange: Callable[[tuple[int, ...]], tuple[int, ...]]  # from the contents and a null after them


def _write_plan(facts: Facts, mask: int) -> _WritePlan:
    """The plan for a stored mask, whose highest bit stands past the last slot: the top of the stack may be null."""
    known = facts.plans.get(mask)
    if known is not None:
        return known
    count = mask.bit_length() - 1
    if not facts.fixed <= count <= facts.room:
        raise ValueError(f"{facts.code.co_qualname}: the stored slots do not fit its code")
    stored = mask.bit_count() - 1
    numbers = iter(range(stored))
    places = [next(numbers) if mask >> index & 1 else stored for index in range(count)]
    arrange: Any = itemgetter(*places) if count > 1 else lambda found: tuple(found[place] for place in places)
    plan = _WritePlan(
        stored, count, struct.Struct(f"<{stored}q"), struct.Struct(f"<{_HEAD_WORDS + count}q"), arrange
    )
    if len(facts.plans) >= _PLAN_LIMIT:
        facts.plans.clear()
    facts.plans[mask] = plan
    return plan


def write(
    target: Any, code: types.CodeType, kind: int, lasti: int, mask: int, contents: list[Any], exception: Any
) -> None:
    """Make `target`, fresh from calling its function, stand where another stood. Takes `contents` over.

    Raises ValueError when the slots do not fit the code: nothing is written then.
    """
    layout = current()
    facts = facts_of(code)
    plan = _write_plan(facts, mask)
    if plan.stored != len(contents):
        raise ValueError(f"{code.co_qualname}: the stored slots do not fit its code")
    if not 0 <= lasti < facts.length or lasti & 1:
        raise ValueError(f"{code.co_qualname}: the stored position is outside its code")
    if kind not in (CREATED, SUSPENDED, DELEGATING):
        raise ValueError(f"{code.co_qualname}: what it was doing is not known")
    address = id(target)
    if exception is not None:
        put(address + layout.exception, exception)
    _exchange(address + _BASE, facts, plan, contents, lasti if kind != CREATED else -1, layout)
    if kind != CREATED:
        _int8(address + layout.state).value = layout.delegating if kind == DELEGATING else layout.suspended


def _exchange(
    base: int, facts: Facts, plan: _WritePlan, contents: list[Any], lasti: int, layout: Layout
) -> None:
    """Put `contents` into their slots, null into the others, and set where the code stands.

    A fresh coroutine has its locals in place and no stack: beyond `fixed` is memory nobody has written yet.
    """
    start = base - _HEAD_WORDS * WORD
    old = facts.fresh.unpack(_read(start, facts.fresh.size))
    head, before = list(old[:_HEAD_WORDS]), old[_HEAD_WORDS:]
    if lasti >= 0:
        head[_HEAD_WORDS - layout.pointer_back // WORD] = facts.start + lasti
    at = _HEAD_WORDS - layout.top_back // WORD
    if layout.tagged:
        head[at] = base + plan.size * WORD
        pointers: tuple[int, ...] = (*map(_tag, contents), 1)
        before = tuple(0 if word & 1 else word for word in before)  # not counted: nothing to release
        _keep_counted(contents)
    else:
        head[at] = head[at] & ~0xFFFFFFFF | plan.size
        items = _word(id(contents) + _LIST_ITEMS).value
        pointers = (*plan.contents.unpack(_read(items, plan.contents.size)), 0)
    slots = plan.arrange(pointers)
    _word(id(contents) + _LIST_SIZE).value = 0
    _move(start, plan.frame.pack(*head, *slots), plan.frame.size)
    for word in before:
        if word not in _UNCOUNTED:
            _decref(word)


def _tag(value: Any) -> int:
    if type(value) is TaggedInt:
        return value.word | 3
    return id(value) | 1 if sys._is_immortal(value) else id(value)  # type: ignore[attr-defined]  # from 3.14


def _keep_counted(contents: list[Any]) -> None:
    """Leave only what slots own: a tagged integer is none, so its stand-in is released with the list's place."""
    for index, value in enumerate(contents):
        if type(value) is TaggedInt:
            contents[index] = None


def disarm(target: Any, code: types.CodeType, kind: int) -> None:
    """Make a suspended object run nothing when it is closed or dropped: it then unwinds outside every handler."""
    layout = current()
    address = id(target)
    if type(target) is types.AsyncGeneratorType:
        _int8(address + layout.flags + 1).value = 1  # closed: no finaliser hook is asked
    if kind in (SUSPENDED, DELEGATING):
        facts = facts_of(code)
        _word(address + _BASE - layout.pointer_back).value = facts.start + facts.silent
        if kind == DELEGATING:
            _int8(address + layout.state).value = layout.suspended


def forget_hooks(target: Any) -> None:
    """Have a restored async generator, which has no finalizer, take the present one when it is next asked for a value."""
    _int8(id(target) + current().flags).value = 0


def set_async_flags(target: Any, closed: bool, running: bool) -> None:
    """Restore what an async generator remembers besides its frame."""
    flags = id(target) + current().flags
    _int8(flags + 1).value = closed
    _int8(flags + 2).value = running


def async_flags(target: Any) -> tuple[bool, bool]:
    """Whether an async generator is closed, and whether one of its `__anext__` is under way."""
    flags = _read(id(target) + current().flags, 3)
    return flags[1] != 0, flags[2] != 0

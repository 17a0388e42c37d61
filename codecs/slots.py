"""Reading and writing the slots of a suspended coroutine, generator or async generator.

Theory of ownership. A slot owns one reference to its object. Reading takes new references. Writing hands
references over in bulk instead of counting one by one: the values come in a list, which owns them; the list's
size is set to 0 (it now owns nothing, and its items are owned by nobody), the pointers are copied into the
slots (which now own them), and what stood in the slots before is put back into the list, which releases it
when it dies. Between these steps every object has at least the references it needs, so a garbage collection
at any moment sees objects that are held from outside, never too few references.

A slot may be null, which is not `None`: an unbound local, or a marker of a call under construction. `mask`
has a bit for each slot that is stored; the others are null after a restore.
"""

from __future__ import annotations

import ctypes
import struct
import types
from functools import lru_cache
from typing import Any, NamedTuple

from .layout import CODE_START, CREATED, DELEGATING, FINISHED, RUNNING, SUSPENDED, WORD, Layout, current

# All three kinds have one size (verified with the layout), so the frame starts at one offset.
_BASE = types.CoroutineType.__basicsize__
_LIST_SIZE, _LIST_ITEMS = 16, 24
_MAX_SLOTS = 1 << 16

_read = ctypes.string_at
_move = ctypes.memmove
_decref = ctypes.pythonapi["Py_DecRef"]  # by item: a function object of our own, whose types we may set
_decref.argtypes = [ctypes.c_void_p]
_decref.restype = None
_incref = ctypes.pythonapi["Py_IncRef"]
_incref.argtypes = [ctypes.py_object]
_incref.restype = None


class TaggedInt(NamedTuple):
    """A tagged integer of CPython 3.15 that stands in a slot where an object could:

    the index of a loop over a list.
    """

    word: int


class Standing(NamedTuple):
    """Where a suspended object stands:

    what it is doing, the offset of its last instruction, the slots that are not null.
    """

    kind: int
    lasti: int
    mask: int
    size: int  # number of slots, those of the value stack included
    words: tuple[int, ...]


@lru_cache(maxsize=512)
def _words(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}q")


@lru_cache(maxsize=512)
def _objects(count: int) -> Any:
    return ctypes.py_object * count


@lru_cache(maxsize=4096)
def _runs(mask: int) -> tuple[tuple[int, int], ...]:
    """The set bits of `mask` as runs (first, past the last)."""
    runs, start = [], None
    for index in range(mask.bit_length() + 1):
        if mask >> index & 1:
            start = index if start is None else start
        elif start is not None:
            runs.append((start, index))
            start = None
    return tuple(runs)


@lru_cache(maxsize=4096)
def _mask(present: tuple[bool, ...]) -> int:
    return sum(1 << index for index, there in enumerate(present) if there)


def object_at(address: int) -> Any:
    """A new reference to the object whose pointer is stored at `address`, which must not be null."""
    return ctypes.py_object.from_address(address).value


def put(address: int, value: Any) -> None:
    """Store a counted reference to `value` at `address`, and release the one that was there, if any."""
    old = ctypes.c_ssize_t.from_address(address).value
    _incref(value)
    ctypes.c_ssize_t.from_address(address).value = id(value)
    if old:
        _decref(old)


def clear(address: int) -> None:
    """Make the reference at `address` null, and release it."""
    old = ctypes.c_ssize_t.from_address(address).value
    ctypes.c_ssize_t.from_address(address).value = 0
    if old:
        _decref(old)


def kind_of(target: Any) -> int:
    """What a coroutine, generator or async generator is doing now:

    CREATED, SUSPENDED, DELEGATING, FINISHED or RUNNING.
    """
    layout = current()
    return layout.states.get(ctypes.c_int8.from_address(id(target) + layout.state).value, RUNNING)


def standing(target: Any, code: types.CodeType) -> Standing:
    """Read where `target`, whose code is `code`, stands. Disturbs nothing: no frame object is made."""
    layout = current()
    address = id(target)
    kind = layout.states.get(ctypes.c_int8.from_address(address + layout.state).value, RUNNING)
    if kind >= FINISHED:
        return Standing(kind, 0, 0, 0, ())
    base = address + _BASE
    pointer, top = _head(base, layout)
    lasti = pointer - id(code) - CODE_START
    count = (top - base) // WORD if layout.tagged else top & 0xFFFFFFFF
    if not (0 <= count <= _MAX_SLOTS and 0 <= lasti < 1 << 24):
        raise SystemError(f"frame of {code.co_qualname} is not readable: {count} slots, offset {lasti}")
    words = _words(count).unpack(_read(base, count * WORD))
    present = tuple(map((1).__lt__, words))  # null is 0, and 1 where slots are tagged
    return Standing(kind, lasti, _mask(present), count, words)


def _head(base: int, layout: Layout) -> tuple[int, int]:
    head = _read(base - 24, 24)
    back = 24 - layout.pointer_back, 24 - layout.top_back
    pointer, top = (int.from_bytes(head[at : at + 8], "little") for at in back)
    return pointer, top


def values(target: Any, at: Standing, mask: int) -> list[Any]:
    """New references to the objects in the slots of `mask`, which must be a part of `at.mask`."""
    if current().tagged:
        return _tagged_values(at.words, mask)
    slots = _objects(at.size).from_address(id(target) + _BASE)
    found: list[Any] = []
    for first, last in _runs(mask):
        found += slots[first:last]
    return found


def _tagged_values(words: tuple[int, ...], mask: int) -> list[Any]:
    found: list[Any] = []
    for first, last in _runs(mask):
        for word in words[first:last]:
            if word & 3 == 3:
                found.append(TaggedInt(word))
            else:
                found.append(ctypes.py_object.from_buffer(ctypes.c_ssize_t(word & ~3)).value)
    return found


def handled(target: Any) -> BaseException | None:
    """The exception that `target` is handling where it stands, or None."""
    address = id(target) + current().exception
    if not ctypes.c_ssize_t.from_address(address).value:
        return None
    exception: BaseException | None = object_at(address)
    return exception


def write(
    target: Any, code: types.CodeType, kind: int, lasti: int, mask: int, contents: list[Any], exception: Any
) -> None:
    """Make `target`, fresh from calling its function, stand where another stood. Takes what is in `contents` over.

    The highest bit of `mask` stands past the last slot, and so says how many there are: the top of the stack
    may be null.

    Raises ValueError when the slots do not fit the code: nothing is written then.
    """
    layout = current()
    fixed = slot_count(code)
    count = mask.bit_length() - 1
    mask ^= 1 << max(count, 0)
    if mask.bit_count() != len(contents) or not fixed <= count <= fixed + code.co_stacksize:
        raise ValueError(f"{code.co_qualname}: the stored slots do not fit its code")
    if not 0 <= lasti < len(code.co_code) or lasti & 1:
        raise ValueError(f"{code.co_qualname}: the stored position is outside its code")
    address = id(target)
    base = address + _BASE
    if kind == FINISHED:
        raise ValueError("a finished coroutine has no slots")
    _exchange(base, fixed, count, mask, contents, layout)
    if layout.tagged:
        ctypes.c_ssize_t.from_address(base - layout.top_back).value = base + count * WORD
    else:
        ctypes.c_int32.from_address(base - layout.top_back).value = count
    if kind == CREATED:
        return
    ctypes.c_ssize_t.from_address(base - layout.pointer_back).value = id(code) + CODE_START + lasti
    if exception is not None:
        put(address + layout.exception, exception)
    byte = layout.delegating if kind == DELEGATING else layout.suspended
    ctypes.c_int8.from_address(address + layout.state).value = byte


def slot_count(code: types.CodeType) -> int:
    """Number of locals, cells and free variables of `code`: the slots before its value stack."""
    cells = code.co_cellvars
    names = code.co_varnames
    return len(names) + sum(1 for name in cells if name not in names) + len(code.co_freevars)


def slot_names(code: types.CodeType) -> tuple[str, ...]:
    """The variable names of the slots before the value stack, in order."""
    names = code.co_varnames
    return (*names, *(name for name in code.co_cellvars if name not in names), *code.co_freevars)


def _exchange(base: int, fixed: int, count: int, mask: int, contents: list[Any], layout: Layout) -> None:
    """Put `contents` into the slots of `mask`, null into the others; release what stood there.

    A fresh coroutine has its locals in place and no stack: what lies beyond `fixed` is memory nobody has written yet.
    """
    old = list(_words(fixed).unpack(_read(base, fixed * WORD)))
    if layout.tagged:
        new, null = [_tag(value) for value in contents], 1
        old = [0 if word & 1 else word for word in old]  # not counted: nothing to release
    else:
        items = ctypes.c_ssize_t.from_address(id(contents) + _LIST_ITEMS).value
        new, null = list(_words(len(contents)).unpack(_read(items, len(contents) * WORD))), 0
    position = 0
    slots = [null] * count
    for first, last in _runs(mask):
        slots[first:last] = new[position : position + last - first]
        position += last - first
    if layout.tagged:
        _take_tagged(contents)
    ctypes.c_ssize_t.from_address(id(contents) + _LIST_SIZE).value = 0
    _move(base, _words(count).pack(*slots), count * WORD)
    for word in old:
        if word:
            _decref(word)


def _tag(value: Any) -> int:
    from sys import _is_immortal  # type: ignore[attr-defined]  # CPython 3.14 and later only

    if type(value) is TaggedInt:
        return value.word | 3
    return id(value) | 1 if _is_immortal(value) else id(value)


def _take_tagged(contents: list[Any]) -> None:
    """The slots own counted objects only:

    tagged integers stay owned by nobody but their list, so let go of them here.
    """
    for index, value in enumerate(contents):
        if type(value) is TaggedInt:
            contents[index] = None


def disarm(target: Any, code: types.CodeType) -> None:
    """Make a suspended object run nothing when it is closed or dropped:

    it then unwinds from a place outside every handler.
    """
    layout = current()
    address = id(target)
    if type(target) is types.AsyncGeneratorType:
        ctypes.c_int8.from_address(address + layout.flags + 1).value = 1  # closed: no finaliser hook is asked
    if kind_of(target) not in (SUSPENDED, DELEGATING):
        return
    base = address + _BASE
    ctypes.c_ssize_t.from_address(base - layout.pointer_back).value = (
        id(code) + CODE_START + _silent_offset(code)
    )
    ctypes.c_int8.from_address(address + layout.state).value = layout.suspended


_RESUME_AT_START: dict[int, tuple[types.CodeType, int]] = {}
_CACHE_LIMIT = 20_000


def _silent_offset(code: types.CodeType) -> int:
    """Offset of `RESUME 0` in `code`: the start of the function, inside no handler of the user's."""
    known = _RESUME_AT_START.get(id(code))
    if known is not None and known[0] is code:
        return known[1]
    import dis

    raw = code.co_code
    resume = dis.opmap["RESUME"]
    offset = next((at for at in range(0, len(raw), 2) if raw[at] == resume and raw[at + 1] & 3 == 0), 0)
    if len(_RESUME_AT_START) >= _CACHE_LIMIT:
        _RESUME_AT_START.clear()
    _RESUME_AT_START[id(code)] = (code, offset)
    return offset


def set_async_flags(target: Any, closed: bool, running: bool) -> None:
    """Restore what an async generator remembers besides its frame."""
    flags = id(target) + current().flags
    ctypes.c_int8.from_address(flags + 1).value = closed
    ctypes.c_int8.from_address(flags + 2).value = running


def async_flags(target: Any) -> tuple[bool, bool]:
    """Whether an async generator is closed, and whether one of its `__anext__` is under way."""
    flags = _read(id(target) + current().flags, 3)
    return flags[1] != 0, flags[2] != 0

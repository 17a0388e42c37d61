"""Which variables of a suspended function can still be read: the others are not stored.

Theory. Liveness is the textbook backward analysis over the bytecode: a variable is live at an instruction
when some path from there reads it before writing it. The one danger is to drop a value that is read after
all, so every doubt keeps it:

- the edges are all that can be taken: fall through, jump, and from each instruction to the handler that covers it;
- anything that touches a variable and is not plainly a write is a read. Deleting is a read (an unbound variable raises);
  so is making, loading and storing a cell, so cells die only when nothing names them any more;
- code that can reach its variables by name (`locals`, `vars`, `eval`, `exec`, `dir`, `super`, `breakpoint`, `_getframe`)
  keeps all of them;
- an opcode that names a variable and is not known here reads it.

The value stack is always stored whole: what lies there is going to be used. Results are cached per code
object.
"""

from __future__ import annotations

import dis
import sys
import types
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

_BY_NAME = frozenset(
    ("locals", "vars", "eval", "exec", "dir", "breakpoint", "_getframe", "currentframe", "set_trace", "super")
)

_WRITES = frozenset(("STORE_FAST", "STORE_FAST_MAYBE_NULL"))
_PAIRS = {
    # opcode: (first half writes, second half writes)
    "LOAD_FAST_LOAD_FAST": (False, False),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": (False, False),
    "STORE_FAST_LOAD_FAST": (True, False),
    "STORE_FAST_STORE_FAST": (True, True),
}
_ENDS = frozenset(
    ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
     "INTERPRETER_EXIT")
)  # fmt: skip
_CELLS = frozenset(dis.hasfree)
_LOCALS = frozenset(dis.haslocal)
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


# What an opcode does with its argument.
_NOTHING, _READ, _WRITE, _PAIR = range(4)


class _Operation(NamedTuple):
    effect: int
    pair: tuple[bool, bool]
    jump: int  # 1 forward, -1 backward, 0 none
    ends: bool


def _operation(opcode: int, name: str) -> _Operation:
    effect = _NOTHING
    if name in _PAIRS:
        effect = _PAIR
    elif opcode in _LOCALS or name.endswith("_FAST") or "LOAD_FAST" in name:
        effect = _WRITE if name in _WRITES else _READ
    elif opcode in _CELLS or name == "LOAD_CLOSURE":
        effect = _READ
    jump = 0
    if opcode in _JUMPS:
        # END_ASYNC_FOR names the SEND of its loop: no way leads there, and one more edge keeps more, never less.
        jump = -1 if "JUMP_BACKWARD" in name or name == "END_ASYNC_FOR" else 1
    return _Operation(effect, _PAIRS.get(name, (False, False)), jump, name in _ENDS)


_OPERATIONS = tuple(_operation(opcode, name) for opcode, name in enumerate(dis.opname[:256]))
_CACHE_ENTRY, _EXTENDED_ARG, _PAUSE = dis.opmap["CACHE"], dis.opmap["EXTENDED_ARG"], dis.opmap["YIELD_VALUE"]
# Opcodes that an analysis must look at; what lies between them only falls through. The prefix bears an argument.
_TOLD = bytes(
    opcode in (_EXTENDED_ARG, _PAUSE) or (each.effect, each.jump, each.ends) != (_NOTHING, 0, False)
    for opcode, each in enumerate(_OPERATIONS)
)
# From 3.12 a relative jump starts behind the cache entries of its instruction.
_JUMPS_BEHIND_CACHES = sys.version_info >= (3, 12)


_CACHE: dict[int, tuple[types.CodeType, dict[int, int] | None]] = {}
_CACHE_LIMIT = 20_000


def live_mask(code: types.CodeType, offset: int) -> int:
    """Bits of the variable slots of `code` that can be read after it was suspended with its last instruction at `offset`:
    a `YIELD_VALUE`, or from 3.13 what follows one.

    -1 (all) when that is unknown, and for any other instruction.
    """
    known = _CACHE.get(id(code))
    if known is None or known[0] is not code:
        if len(_CACHE) >= _CACHE_LIMIT:
            _CACHE.clear()
        known = code, _analyse(code)
        _CACHE[id(code)] = known
    table = known[1]
    return -1 if table is None else table.get(offset, -1)


def _analyse(code: types.CodeType) -> dict[int, int] | None:
    """Live bits after each place where the code can be suspended, by its offset; None when everything must be kept.

    A step is an instruction that does something to variables or to the way, or the last place of a range of a handler:
    what lies before it in that range can raise, too. A way that leads between two steps leads to the later one.
    """
    if not _BY_NAME.isdisjoint(code.co_names) or not _BY_NAME.isdisjoint(code.co_freevars):
        return None
    raw = code.co_code
    told = {each[0]: each for each in _decode(raw)}
    ranges = list(exception_ranges(code))
    offsets = sorted({*told, *(end - 2 for _, end, _ in ranges)})
    count = len(offsets)
    nowhere, anywhere = count, count + 1  # as places to go on: nothing is read there, or everything
    handlers = [nowhere] * count
    for start, end, target in ranges:
        first, last = bisect_left(offsets, start), bisect_left(offsets, end)
        handlers[first:last] = [bisect_left(offsets, target)] * (last - first)
    steps = []
    pauses = []
    for index, offset in enumerate(offsets):
        _, reads, writes, jump, ends, pauses_here = told.get(offset, (offset, 0, 0, -1, False, False))
        to = nowhere if jump < 0 else bisect_left(offsets, jump) if jump < len(raw) else anywhere
        step = index, nowhere if ends else index + 1, to, handlers[index], ~writes, reads
        steps.append(step)
        if pauses_here:
            pauses += [(at, *step[1:4]) for at in (offset, _behind(raw, offset))]
    steps.reverse()
    before = [0] * count + [0, -1]
    changed = True
    while changed:
        changed = False
        for index, following, to, handler, kept, reads in steps:
            # An instruction may raise before it writes, so what its handler reads is live before it too.
            into = ((before[following] | before[to]) & kept) | reads | before[handler]
            if into != before[index]:
                before[index] = into
                changed = True
    return {
        offset: before[following] | before[to] | before[handler] for offset, following, to, handler in pauses
    }


def _decode(raw: bytes) -> Iterator[tuple[int, int, int, int, bool, bool]]:
    """(offset, reads, writes, offset jumped to or -1, whether the way ends, whether it can be suspended there) of each
    instruction that does something to variables or to the way.

    As `dis.get_instructions` has them (a test compares), in a fraction of its time: this runs once for each code object
    that is captured.
    """
    told = raw[::2].translate(_TOLD)
    arg = 0
    at = 2 * told.find(1)
    while at >= 0:
        opcode = raw[at]
        arg |= raw[at + 1]
        if opcode == _EXTENDED_ARG:
            arg <<= 8
            at += 2  # what it belongs to, whatever that does
            if told[at // 2] == 0:
                arg, at = 0, 2 * told.find(1, at // 2)
            continue
        effect, pair, direction, ends = _OPERATIONS[opcode]
        reads = writes = 0
        if effect == _READ:
            reads = 1 << arg
        elif effect == _WRITE:
            writes = 1 << arg
        elif effect == _PAIR:
            reads, writes = _pair([(arg >> 4, pair[0]), (arg & 15, pair[1])])
        jump = -1
        if direction:
            jump = (_behind(raw, at) if _JUMPS_BEHIND_CACHES else at + 2) + direction * arg * 2
        yield at, reads, writes, jump, ends, opcode == _PAUSE
        arg = 0
        at = 2 * told.find(1, at // 2 + 1)


def _behind(raw: bytes, at: int) -> int:
    """Where the instruction after that at `at` starts: behind its cache entries."""
    at += 2
    while at < len(raw) and raw[at] == _CACHE_ENTRY:
        at += 2
    return at


def _pair(halves: list[tuple[int, bool]]) -> tuple[int, int]:
    """Reads and writes of an instruction made of two, the first before the second."""
    reads = writes = 0
    for slot, is_write in halves:
        if is_write:
            writes |= 1 << slot
        elif not writes >> slot & 1:
            reads |= 1 << slot
    return reads, writes


def exception_ranges(code: types.CodeType) -> Iterator[tuple[int, int, int]]:
    """(start, end, target) in byte offsets, from the exception table of `code` (its format:

    CPython's exception_handling_notes).
    """
    table = iter(code.co_exceptiontable)

    def number() -> int | None:
        byte = next(table, None)
        if byte is None:
            return None
        value = byte & 63
        while byte & 64:
            byte = next(table)
            value = value << 6 | byte & 63
        return value

    while (start := number()) is not None:
        length, target, _depth = number() or 0, number() or 0, number()
        yield start * 2, (start + length) * 2, target * 2

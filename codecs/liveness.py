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
_CACHE_ENTRY, _EXTENDED_ARG = dis.opmap["CACHE"], dis.opmap["EXTENDED_ARG"]
# From 3.12 a relative jump starts behind the cache entries of its instruction.
_JUMPS_BEHIND_CACHES = sys.version_info >= (3, 12)


_CACHE: dict[int, tuple[types.CodeType, dict[int, int] | None]] = {}
_CACHE_LIMIT = 20_000


def live_mask(code: types.CodeType, offset: int) -> int:
    """Bits of the variable slots of `code` that can be read after the instruction at `offset`;

    -1 (all) when that is unknown.
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
    """Live bits after each instruction, by its offset; None when everything must be kept."""
    if not _BY_NAME.isdisjoint(code.co_names) or not _BY_NAME.isdisjoint(code.co_freevars):
        return None
    instructions = list(_decode(code))
    count = len(instructions)
    nowhere, anywhere = count, count + 1  # as places to go on: nothing is read there, or everything
    offsets = [each[0] for each in instructions]
    where = {offset: index for index, offset in enumerate(offsets)}
    where[-1] = nowhere
    handlers = _handlers(code, offsets, where)
    steps = [
        (index, nowhere if ends else index + 1, where.get(jump, anywhere), handlers[index], ~writes, reads)
        for index, (_, reads, writes, jump, ends) in enumerate(instructions)
    ]
    backwards = steps[::-1]
    before = [0] * count + [0, -1]
    changed = True
    while changed:
        changed = False
        for index, following, jump, handler, kept, reads in backwards:
            # An instruction may raise before it writes, so what its handler reads is live before it too.
            into = ((before[following] | before[jump]) & kept) | reads | before[handler]
            if into != before[index]:
                before[index] = into
                changed = True
    return {
        offsets[index]: before[following] | before[jump] | before[handler]
        for index, following, jump, handler, _, _ in steps
    }


def _decode(code: types.CodeType) -> Iterator[tuple[int, int, int, int, bool]]:
    """(offset, reads, writes, offset jumped to or -1, whether the way ends) of each instruction.

    Without their cache entries, as `dis.get_instructions` has them (a test compares), in a quarter of the time: this runs
    once for each code object that is captured.
    """
    raw = code.co_code
    size = len(raw)
    arg = at = 0
    while at < size:
        opcode = raw[at]
        arg |= raw[at + 1]
        behind = at + 2
        while behind < size and raw[behind] == _CACHE_ENTRY:
            behind += 2
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
            jump = (behind if _JUMPS_BEHIND_CACHES else at + 2) + direction * arg * 2
        yield at, reads, writes, jump, ends
        arg = arg << 8 if opcode == _EXTENDED_ARG else 0
        at = behind


def _pair(halves: list[tuple[int, bool]]) -> tuple[int, int]:
    """Reads and writes of an instruction made of two, the first before the second."""
    reads = writes = 0
    for slot, is_write in halves:
        if is_write:
            writes |= 1 << slot
        elif not writes >> slot & 1:
            reads |= 1 << slot
    return reads, writes


def _handlers(code: types.CodeType, offsets: list[int], where: dict[int, int]) -> list[int]:
    """For each instruction the index of the handler that catches what it raises, or one past the last."""
    covered = [len(offsets)] * len(offsets)
    for start, end, target in exception_ranges(code):
        handler = where[target]
        for index in range(bisect_left(offsets, start), bisect_left(offsets, end)):
            covered[index] = handler
    return covered


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

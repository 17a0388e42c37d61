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


class _Instruction(NamedTuple):
    offset: int
    name: str
    reads: int
    writes: int
    jump: int  # offset jumped to, or -1
    ends: bool


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
    where = {each.offset: index for index, each in enumerate(instructions)}
    handlers = _handlers(code, instructions, where)
    after = [0] * len(instructions)
    before = [0] * len(instructions)
    changed = True
    while changed:
        changed = False
        for index in range(len(instructions) - 1, -1, -1):
            each = instructions[index]
            out = 0
            if not each.ends and index + 1 < len(instructions):
                out |= before[index + 1]
            if each.jump >= 0:
                out |= before[where[each.jump]] if each.jump in where else -1
            covered = handlers[index]
            thrown = before[covered] if covered >= 0 else 0
            # An instruction may raise before it writes, so what its handler reads is live before it too.
            into = (out & ~each.writes) | each.reads | thrown
            out |= thrown
            if out != after[index] or into != before[index]:
                after[index], before[index] = out, into
                changed = True
    return {each.offset: after[index] for index, each in enumerate(instructions)}


def _decode(code: types.CodeType) -> Iterator[_Instruction]:
    for each in dis.get_instructions(code):
        reads = writes = 0
        name = each.opname
        arg = each.arg or 0
        if name in _PAIRS:
            halves = zip((arg >> 4, arg & 15), _PAIRS[name], strict=True)
            reads, writes = _pair(list(halves))
        elif each.opcode in _LOCALS or name.endswith("_FAST") or "LOAD_FAST" in name:
            reads, writes = (0, 1 << arg) if name in _WRITES else (1 << arg, 0)
        elif each.opcode in _CELLS or name == "LOAD_CLOSURE":
            reads = 1 << arg
        jump = each.argval if each.opcode in _JUMPS else -1
        yield _Instruction(each.offset, name, reads, writes, jump, name in _ENDS)


def _pair(halves: list[tuple[int, bool]]) -> tuple[int, int]:
    """Reads and writes of an instruction made of two, the first before the second."""
    reads = writes = 0
    for slot, is_write in halves:
        if is_write:
            writes |= 1 << slot
        elif not writes >> slot & 1:
            reads |= 1 << slot
    return reads, writes


def _handlers(code: types.CodeType, instructions: list[_Instruction], where: dict[int, int]) -> list[int]:
    """For each instruction the index of the handler that catches what it raises, or -1."""
    covered = [-1] * len(instructions)
    offsets = [each.offset for each in instructions]
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

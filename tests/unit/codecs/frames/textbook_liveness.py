"""Live variables as a textbook has them, instruction by instruction with `dis`: slow and plain, to compare with.

`sojourn.codecs.liveness` looks only at what does something, and must come to the same.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator

_NOT_READ = ("STORE_FAST", "STORE_FAST_MAYBE_NULL")
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": "rr",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "rr",
    "STORE_FAST_LOAD_FAST": "wr",
    "STORE_FAST_STORE_FAST": "ww",
}
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT")


def after_each_pause(code: types.CodeType) -> dict[int, int]:
    """Bits of the variables that can be read after each `YIELD_VALUE`, by its offset and by that of the next instruction."""
    instructions = list(dis.get_instructions(code))
    place = {each.offset: index for index, each in enumerate(instructions)}
    ways = [set(_ways(instructions, index, place)) for index in range(len(instructions))]
    handlers = [_handler(code, each.offset, place) for each in instructions]
    effects = [_effects(each) for each in instructions]
    live: list[int] = [0] * len(instructions)
    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(instructions))):
            reads, writes = effects[index]
            after = 0
            for way in ways[index]:
                after |= live[way]
            handled = 0 if handlers[index] is None else live[handlers[index]]
            now = after & ~writes | reads | handled
            changed |= now != live[index]
            live[index] = now
    found = {}
    for index, each in enumerate(instructions):
        if each.opname == "YIELD_VALUE":
            read = _union(live, ways[index], handlers[index])
            found[each.offset] = found[instructions[index + 1].offset] = read
    return found


def _union(live: list[int], ways: set[int], handler: int | None) -> int:
    found = 0 if handler is None else live[handler]
    for way in ways:
        found |= live[way]
    return found


def _ways(instructions: list[dis.Instruction], index: int, place: dict[int, int]) -> Iterator[int]:
    here = instructions[index]
    if here.opcode in dis.hasjrel or here.opcode in dis.hasjabs:
        yield place[here.argval]
    unconditional = here.opname.startswith(("JUMP_FORWARD", "JUMP_BACKWARD"))
    if here.opname not in _ENDS and not unconditional and index + 1 < len(instructions):
        yield index + 1


def _handler(code: types.CodeType, offset: int, place: dict[int, int]) -> int | None:
    found = None
    for each in dis._parse_exception_table(code):  # type: ignore[attr-defined]  # the library's own reading of it
        if each.start <= offset < each.end:
            found = place[each.target]
    return found


def _effects(each: dis.Instruction) -> tuple[int, int]:
    """(bits read, bits written)."""
    name, arg = each.opname, each.arg or 0
    if name in _PAIRS:
        reads = writes = 0
        for slot, what in zip((arg >> 4, arg & 15), _PAIRS[name], strict=True):
            if what == "w":
                writes |= 1 << slot
            elif not writes >> slot & 1:
                reads |= 1 << slot
        return reads, writes
    if each.opcode in dis.haslocal or each.opcode in dis.hasfree or "_FAST" in name or name == "LOAD_CLOSURE":
        return (0, 1 << arg) if name in _NOT_READ else (1 << arg, 0)
    return 0, 0

"""Which variables are stored at an await. (That none is missing is what the corpus of random programs shows.)"""

from __future__ import annotations

import asyncio.base_events
import dis
import random
import tarfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import random_programs
import textbook_liveness
from frame_programs import tick
from sojourn.codecs import liveness, slots
from sojourn.codecs.unwrapping import nested_code


def stored(function: Callable[..., Any], *arguments: Any) -> set[str]:
    """The names of the variables that are live where a fresh run is first suspended."""
    target: Any = function(*arguments)
    target.send(None)
    code = target.cr_code
    at = slots.standing(target, code)
    mask = liveness.live_mask(code, at.lasti)
    target.close()
    return {name for index, name in enumerate(slots.slot_names(code)) if mask >> index & 1}


async def straight(a: int, b: int) -> int:
    c = a + b
    await tick()
    a = 1
    return a + c


async def looping(items: list[int], total: int) -> int:
    for item in items:
        await tick(item)
        total += 1
    return total


async def branching(a: int, b: int, c: int) -> int:
    if await tick():
        return a
    return b if await tick() else 0


async def handling(a: int, b: int) -> int:
    try:
        await tick()
        b = 2
    except ValueError:
        return a
    return b


async def finishing(a: int, b: int) -> int:
    try:
        return await tick() or 0
    finally:
        str(b)


async def deleting(a: int, b: int) -> None:
    await tick()
    del a


async def overwriting_after_a_failure(a: int) -> int:
    try:
        await tick()
        a = int("x")
    except ValueError:
        pass
    return a


async def closing_over(a: int, b: int) -> Any:
    await tick()
    return lambda: a


async def comprehending(a: int, b: int) -> list[int]:
    await tick()
    return [a + x for x in range(3)]


async def by_name(a: int, b: int) -> Any:
    await tick()
    return len(locals())


async def evaluating(a: int, b: int) -> Any:
    await tick()
    return eval("a")


@pytest.mark.parametrize(
    ("function", "count", "expected"),
    [
        (straight, 2, {"c"}),
        (branching, 3, {"a", "b"}),
        (handling, 2, {"a"}),
        (finishing, 2, {"b"}),
        (deleting, 2, {"a"}),
        (overwriting_after_a_failure, 1, {"a"}),
        (closing_over, 2, {"a"}),
        (by_name, 2, {"a", "b"}),
        (evaluating, 2, {"a", "b"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_only_what_can_be_read_again_is_live(
    function: Callable[..., Any], count: int, expected: set[str]
) -> None:
    assert stored(function, *range(count)) == expected


def test_what_a_loop_reads_in_its_next_round_is_live() -> None:
    assert stored(looping, [1, 2], 0) == {"total"}


def test_what_an_inlined_comprehension_reads_is_live() -> None:
    """From 3.12 it also keeps the outer meaning of its own variable, which is a read of it."""
    assert {"a"} <= stored(comprehending, 1, 2) <= {"a", "x"}


def test_a_dead_variable_takes_no_bytes() -> None:
    from sojourn.codecs import frames

    async def holding(large: bytes) -> int:
        size = len(large)
        await tick()
        return size

    globals()["holding"] = holding
    target: Any = holding(b"x" * 100_000)
    target.send(None)
    assert len(frames.dump(target).data) < 500
    frames.discard(target)


def sources() -> list[tuple[str, str]]:
    """Large modules of the standard library, and programs with every statement."""
    modules: tuple[types.ModuleType, ...] = (asyncio.base_events, dis, tarfile)
    found = [(module.__name__, Path(str(module.__file__)).read_text("utf-8")) for module in modules]
    batches = (random_programs.written(random.Random(seed).randbytes(4000)) for seed in range(5))
    return [*found, *((f"batch {number}", each.source) for number, each in enumerate(batches))]


def test_instructions_and_jumps_are_read_as_the_standard_library_reads_them() -> None:
    jumps = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
    extended = 0
    for name, text in sources():
        for code in nested_code(compile(text, name, "exec")):
            theirs = list(dis.get_instructions(code))
            own = {offset: (jump, pauses) for offset, _, _, jump, _, pauses in liveness._decode(code.co_code)}
            assert own.keys() <= {each.offset for each in theirs}, (name, code)
            assert {at: jump for at, (jump, _) in own.items() if jump >= 0} == {
                each.offset: each.argval for each in theirs if each.opcode in jumps
            }, (name, code)
            assert {at for at, (_, pauses) in own.items() if pauses} == {
                each.offset for each in theirs if each.opname == "YIELD_VALUE"
            }
            extended += sum(each.opname == "EXTENDED_ARG" for each in theirs)
    assert extended > 100


def test_what_is_live_is_what_a_textbook_says() -> None:
    pauses = 0
    for name, text in sources()[3:]:
        for code in nested_code(compile(text, name, "exec")):
            own = liveness._analyse(code)
            if own is not None:  # it cannot reach its variables by name
                assert own == textbook_liveness.after_each_pause(code), (name, code)
                pauses += len(own)
    assert pauses > 500


def test_what_is_live_elsewhere_than_at_a_pause_is_unknown_so_everything_is_kept() -> None:
    assert liveness.live_mask(straight.__code__, 0) == -1

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
    programs = (random_programs.write_program(random.Random(seed).randrange) for seed in range(20))
    return [*found, *((f"program {number}", text) for number, text in enumerate(programs))]


def test_instructions_and_jumps_are_read_as_the_standard_library_reads_them() -> None:
    jumps = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
    extended = 0
    for name, text in sources():
        for code in nested_code(compile(text, name, "exec")):
            own = [(offset, jump) for offset, _, _, jump, _ in liveness._decode(code)]
            theirs = [
                (each.offset, each.argval if each.opcode in jumps else -1)
                for each in dis.get_instructions(code)
            ]
            assert own == theirs, (name, code)
            extended += sum(each.opname == "EXTENDED_ARG" for each in dis.get_instructions(code))
    assert extended > 100

"""Strange programs with the syntax of CPython 3.15: unpacking in comprehensions, lazy imports."""

lazy import json
lazy from fractions import Fraction

from typing import Any

from frame_programs import numbers, tick
from strange_programs import PROGRAMS, Log


async def unpacking_in_comprehensions(log: Log) -> Any:
    lists = [*[x, await tick(x)] for x in range(3)]
    sets = {*{x} for x in range(await tick(2))}
    dicts = {**{x: await tick(x)} for x in "ab"}
    lazily = (*[x, x] async for x in numbers(2))
    seen = []
    async for each in lazily:
        seen.append(each)
        await tick("between")
    return lists, sets, dicts, seen


async def lazy_imports(log: Log) -> Any:
    await tick("not imported yet")
    return json.dumps([await tick(1)]), str(Fraction(1, await tick(2)))


PROGRAMS.update({each.__name__: each for each in (unpacking_in_comprehensions, lazy_imports)})

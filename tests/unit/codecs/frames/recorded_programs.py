"""Workflows whose suspended frames are kept as files in `recorded/`. Never change a function here: add a new one.

The files were written by `python record_frames.py` on each interpreter, and must be readable for ever.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

PROGRAMS: dict[str, Any] = {}


def program(function: Any) -> Any:
    PROGRAMS[function.__name__] = function
    return function


class Pause:
    def __init__(self, label: str) -> None:
        self.label, self.started = label, False

    def __await__(self) -> Pause:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def __iter__(self) -> Pause:
        return self

    def send(self, value: Any) -> Any:
        if not self.started:
            self.started = True
            return self.label
        raise StopIteration(value)

    def throw(self, error: BaseException) -> Any:
        raise error

    def close(self) -> None:
        pass


@dataclasses.dataclass
class Order:
    id: str
    lines: list[int]


@program
async def plain(value: int) -> Any:
    order = Order("o-1", [1, 2])
    for _ in range(2):
        value += await helper(order)
    return value, order.lines


async def helper(order: Order) -> int:
    answer: int = await Pause("helper")
    order.lines.append(answer)
    return answer * 2


@program
async def handling(value: int) -> Any:
    seen: list[Any] = []
    try:
        try:
            raise KeyError("kept", value)
        except KeyError as error:
            error.add_note("noted")
            seen.append(await Pause("in handler"))
            raise
        finally:
            seen.append(await Pause("finally"))
    except KeyError as error:
        return seen, error.args, error.__notes__


@contextlib.asynccontextmanager
async def manager(log: list[Any]) -> AsyncIterator[str]:
    log.append(await Pause("entering"))
    try:
        yield "managed"
    finally:
        log.append(await Pause("leaving"))


@program
async def managing(value: int) -> Any:
    log: list[Any] = []

    def add(more: int) -> int:
        nonlocal value
        value += more
        return value

    async with manager(log) as managed:
        half = (number * value for number in range(4))
        next(half)
        log.append(add(await Pause(managed)))
        return log, list(half), [await Pause("comprehension") for _ in range(2)], value

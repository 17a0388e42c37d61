"""Programs that can tell a moved traceback from one that stayed, by when the `finally` of a generator runs (decision 0021)."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

from frame_programs import Log, Program, tick

PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def closing(log: Log) -> Generator[int, None, None]:
    try:
        yield 1
    finally:
        log.append("closed")


@contextlib.contextmanager
def swallowing() -> Iterator[None]:
    with contextlib.suppress(KeyError):
        yield


def leaving_a_cycle() -> None:
    """The exception has a traceback, that this frame, this frame the exception; and this frame has its caller's."""
    kept = KeyError()
    with contextlib.suppress(KeyError):
        raise kept


@program
async def a_cycle_of_garbage_holds_the_frame(log: Log) -> None:
    held = closing(log)
    next(held)
    leaving_a_cycle()
    await tick()


@program
async def a_cycle_that_contextlib_leaves_holds_the_frame(log: Log) -> None:
    """`__exit__` ends with the exception in a variable, and its frame is the caller of one in the traceback. (In 3.12 and 3.13.)"""
    held = closing(log)
    next(held)
    with swallowing():
        raise KeyError
    await tick()


@program
async def a_handled_exception_tells_a_function_that_ended(log: Log) -> None:
    try:
        await failing_with(closing(log))
    except KeyError:
        await tick()
        log.append("still handled")
    await tick()


async def failing_with(held: Generator[int, None, None]) -> None:
    next(held)
    raise KeyError


@program
async def a_kept_exception_tells_the_suspended_function(log: Log) -> None:
    held = closing(log)
    next(held)
    kept: list[object] = []
    try:
        raise KeyError
    except KeyError as error:
        kept.append(error)
        kept.append(kept)
    await tick()
    del kept


@program
async def a_handled_exception_tells_what_a_holder_awaits(log: Log) -> None:
    held = closing(log)
    next(held)
    await handling()


async def handling() -> None:
    kept: list[object] = []
    try:
        raise KeyError
    except KeyError as error:
        kept.append(error)
        kept.append(kept)
        await tick()

"""Recursion: 200 levels move in every shape, 900 where Python itself can run them; what cannot says what is too deep."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

import pytest
from frame_programs import tick
from sojourn.codecs import frames
from sojourn.codecs.errors import CannotSuspend

SHAPES: list[Callable[[int], Any]] = []


def shape(function: Callable[[int], Any]) -> Callable[[int], Any]:
    SHAPES.append(function)
    return function


@shape
async def coroutines(levels: int) -> int:
    if levels == 0:
        return await tick() or 0
    return 1 + await coroutines(levels - 1)


def delegating(levels: int) -> Generator[str, None, int]:
    if levels == 0:
        yield "bottom"
        return 0
    return 1 + (yield from delegating(levels - 1))


@shape
async def generators(levels: int) -> int:
    source = delegating(levels)
    next(source)
    await tick()
    try:
        next(source)
    except StopIteration as stop:
        return int(stop.value)
    return -1


async def counting(levels: int) -> AsyncIterator[int]:
    if levels == 0:
        await tick()
        yield 0
        return
    async for number in counting(levels - 1):
        yield number + 1


@shape
async def async_generators(levels: int) -> int:
    async for number in counting(levels):
        await tick()
        return number
    return -1


@contextlib.asynccontextmanager
async def managed(levels: int) -> AsyncIterator[int]:
    if levels == 0:
        yield 0
        return
    async with managed(levels - 1) as number:
        yield number + 1


@shape
async def managers(levels: int) -> int:
    async with managed(levels) as number:
        await tick()
        return number


@shape
async def lists(levels: int) -> int:
    nest: list[Any] = []
    for _ in range(levels):
        nest = [nest]
    await tick()
    found = 0
    while nest:
        nest, found = nest[0], found + 1
    return found


class Node:
    def __init__(self, following: Node | None) -> None:
        self.following = following
        self.ring: Node | None = None


@shape
async def objects(levels: int) -> int:
    node: Node | None = None
    for _ in range(levels):
        node = Node(node)
    shared = [node, node]
    await tick()
    assert shared[0] is shared[1] is node
    found = 0
    while node is not None:
        node, found = node.following, found + 1
    return found


@shape
async def closures(levels: int) -> Any:
    def around(inner: Callable[[], int]) -> Callable[[], int]:
        return lambda: 1 + inner()

    function: Callable[[], int] = lambda: 0  # noqa: E731  # a first one to go around
    for _ in range(levels):
        function = around(function)
    await tick()
    found = 0
    while function.__closure__:
        function, found = function.__closure__[0].cell_contents, found + 1
    return found


@shape
async def exceptions(levels: int) -> int:
    error: BaseException | None = None
    for number in range(levels):
        following = ValueError(number)
        following.__context__, error = error, following
    await tick()
    found = 0
    while error is not None:
        error, found = error.__context__, found + 1
    return found


def result(target: Any) -> Any:
    """Of a run that is moved at each suspension."""
    target.send(None)
    while True:
        frame = frames.dump(target)
        frames.discard(target)
        target = frames.load(frame.data, frame.pin)
        try:
            target.send(None)
        except StopIteration as stop:
            return stop.value


@pytest.mark.parametrize("function", SHAPES, ids=lambda function: function.__name__)
def test_recursion_200_deep_moves(function: Callable[[int], Any]) -> None:
    assert result(function(200)) == 200


@pytest.mark.parametrize(
    "function",
    [each for each in SHAPES if each not in (managers, async_generators)],  # Python cannot run those so deep
    ids=lambda function: function.__name__,
)
def test_recursion_800_deep_moves(function: Callable[[int], Any]) -> None:
    assert result(function(800)) == 800


def test_it_moves_also_from_deep_inside_of_a_node() -> None:
    """What calls the capture is on the stack as well, and takes its part of the limit."""

    def below(calls: int) -> Any:
        return below(calls - 1) if calls else result(coroutines(200))

    assert below(sys.getrecursionlimit() - len(inspect.stack()) - 300) == 200


def ring(length: int) -> Node:
    first = last = Node(None)
    for _ in range(length):
        last.following = Node(None)
        last.following.ring, last = last, last.following
    last.following = first
    return first


def test_what_remains_too_deep_is_named_with_its_levels_the_limit_and_a_remedy() -> None:
    async def holding() -> Any:
        context = "a word that the error must not blame"
        circle = ring(20_000)
        await tick()
        return circle, context

    target: Any = holding()
    target.send(None)
    with pytest.raises(CannotSuspend) as caught:
        frames.dump(target)
    frames.discard(target)
    error = caught.value
    assert (error.variable, error.path) == ("circle", "")
    assert error.type_name.endswith("Node")
    assert error.function.endswith("holding")
    told = re.search(r"it nests (\d+) objects inside one another", str(error))
    assert told is not None
    assert int(told[1]) > 20_000
    assert f"recursion limit here is {sys.getrecursionlimit()}" in str(error)
    assert "keep it flat" in str(error)
    assert ".context" not in str(error)

"""Rings through sets and keys: what cannot be filled last is never restored with less in it."""

from __future__ import annotations

import collections
import types
from typing import Any

import pytest
from sojourn.codecs import frames
from sojourn.codecs.errors import PinNotSatisfied
from strange_heirs import Owner


class Counted(collections.Counter[Any]):
    pass


@types.coroutine
def tick() -> Any:
    return (yield)


async def keeping(value: Any) -> Any:
    await tick()
    return value


def stored(value: Any) -> Any:
    target: Any = keeping(value)
    target.send(None)
    frame = frames.dump(target)
    frames.discard(target)
    return frame


def test_a_hash_that_is_told_at_the_end_is_waited_for() -> None:
    owner = Owner("one")
    owner.peers.add(owner)
    frame = stored(owner)
    restored: Any = frames.load(frame.data, frame.pin)
    with pytest.raises(StopIteration) as stop:
        restored.send(None)
    assert stop.value.value in stop.value.value.peers


def test_a_closure_over_a_container_that_waits_moves() -> None:
    owner = Owner("one")
    held = {owner: 1}
    owner.peers = held  # type: ignore[assignment]  # whatever leads back

    async def closed() -> Any:
        await tick()
        return (lambda: held)()

    target: Any = closed()
    target.send(None)
    frame = frames.dump(target)
    frames.discard(target)
    restored: Any = frames.load(frame.data, frame.pin)
    with pytest.raises(StopIteration) as stop:
        restored.send(None)
    assert list(stop.value.value.values()) == [1]
    assert next(iter(stop.value.value)) in stop.value.value


@pytest.mark.parametrize(
    "made", [lambda it: collections.Counter([it]), lambda it: Counted([it]), lambda it: iter({it: 1})]
)
def test_what_is_made_of_a_container_that_waits_is_refused(made: Any) -> None:
    owner = Owner("one")
    owner.peers = made(owner)
    frame = stored(owner)
    with pytest.raises(PinNotSatisfied, match="has no attribute 'card'"):
        frames.load(frame.data, frame.pin)


def test_a_hash_that_is_never_told_is_refused() -> None:
    frame = stored({Untold()})
    assert Untold.told
    Untold.told = False
    try:
        with pytest.raises(PinNotSatisfied, match="not told"):
            frames.load(frame.data, frame.pin)
    finally:
        Untold.told = True


class Untold:
    told = True

    def __hash__(self) -> int:
        if not self.told:
            raise ValueError("not told")
        return 1

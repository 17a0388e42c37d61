"""A node's process collects in full when what is allocated has grown, and not before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest
from sojourn.cluster.garbage import GROWTH, Garbage


class Cycle:
    def __init__(self) -> None:
        self.own = self


class Allocated:
    """As `sys.getallocatedblocks`, told what to say."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    def __call__(self) -> int:
        return self.blocks


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_cycles_are_collected_once_enough_is_allocated() -> None:
    allocated = Allocated(1_000)
    garbage = Garbage(allocated)
    cycle = ref(Cycle())
    allocated.blocks += GROWTH - 1
    assert not garbage.collect()
    assert cycle() is not None
    allocated.blocks += 1
    assert garbage.collect()
    assert cycle() is None


def test_what_lives_on_is_not_walked_again_until_half_as_much_has_come() -> None:
    allocated = Allocated(4 * GROWTH)
    garbage = Garbage(allocated)
    allocated.blocks += 2 * GROWTH - 1
    assert not garbage.collect()
    allocated.blocks += 1
    assert garbage.collect()
    assert not garbage.collect()


def test_what_was_freed_meanwhile_does_not_count() -> None:
    allocated = Allocated(2 * GROWTH)
    garbage = Garbage(allocated)
    allocated.blocks = 1_000
    assert not garbage.collect()
    allocated.blocks += GROWTH
    assert garbage.collect()


def test_by_default_the_interpreter_says_what_is_allocated() -> None:
    garbage = Garbage()
    kept = [object() for _ in range(garbage._least + GROWTH)]
    assert garbage.collect()
    assert kept

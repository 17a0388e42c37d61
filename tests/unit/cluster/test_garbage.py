"""A node's process collects in full when what is allocated has grown, and not before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest
from sojourn.cluster.garbage import GROWTH, Garbage


class Node:
    def __init__(self) -> None:
        self.own: Node = self


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_cycles_are_collected_once_they_are_many() -> None:
    garbage = Garbage()
    first = ref(Node())
    assert not garbage.collect()
    assert first() is not None
    for _ in range(GROWTH):
        Node()
    assert garbage.collect()
    assert first() is None


def test_what_lives_on_is_not_walked_again_until_as_much_has_come() -> None:
    garbage = Garbage()
    kept = [object() for _ in range(GROWTH)]
    assert garbage.collect()
    assert not garbage.collect()
    assert kept


def test_what_was_freed_meanwhile_does_not_count() -> None:
    kept = [object() for _ in range(2 * GROWTH)]
    garbage = Garbage()
    kept.clear()
    assert not garbage.collect()
    kept.extend(object() for _ in range(GROWTH + 1_000))
    assert garbage.collect()

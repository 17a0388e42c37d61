"""A step that has ended here and whose result is not recorded yet: looking at the record again must not start it a second time.

step b ends               its result waits, because a commit of the same actor is under way
a lease ends somewhere    every actor looks again for calls that nobody runs (PROTOCOL 3)
the record still names b as pending, with this node as its runner; b runs no more
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import gather
from sojourn.actors.workflow import workflow

from .conftest import MakeOwner, Owner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
ran: Counter[str] = Counter()
may_end = asyncio.Event()


@step(registry=REGISTRY)
async def first(actor: str) -> str:
    ran[f"first {actor}"] += 1
    return "first"


@step(registry=REGISTRY)
async def second(actor: str) -> str:
    ran[f"second {actor}"] += 1
    await may_end.wait()
    return "second"


@workflow(registry=REGISTRY)
async def both(me: str) -> list[str]:
    return [*await gather(first(me), second(me))]


class LeaseEndsDuringCommit:
    """While the first step's result is being committed the second step ends, and a lease of some node."""

    def __init__(self) -> None:
        self.owner: Owner | None = None
        self.armed = False
        self.happened = False

    def __call__(self, point: str, about: str = "") -> None:
        if point == "step_result":
            self.armed = True
        if point == "before_commit" and self.armed and not self.happened:
            self.happened = True
            may_end.set()
            assert self.owner is not None
            self.owner.partition.lease_ended("some/node")


async def test_a_step_that_ended_while_a_commit_was_under_way_does_not_run_again(owners: MakeOwner) -> None:
    may_end.clear()
    fault = LeaseEndsDuringCommit()
    owner = await owners(fault=fault)
    fault.owner = owner
    await owner.start("both-1", "both", "both-1")
    record = await owner.until_ended("both-1")
    assert completed(record) == ["first", "second"]
    assert fault.happened
    assert ran == {"first both-1": 1, "second both-1": 1}

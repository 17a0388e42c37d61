"""Who takes and gives a deployment's lanes while its node leaves."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from sojourn.broker.seam import Received
from sojourn.broker.subjects import ActorId, Subjects, actor_id
from sojourn.cluster.holding.lane_partition import LanePartition
from sojourn.cluster.holding.lanes import Lanes
from sojourn.cluster.hosting.nudges import NOTED
from sojourn.cluster.metrics import Metrics
from sojourn.cluster.tenure.ownership import Member, Owned, Owner, View

from .test_holdings import Bench

ACTOR = actor_id("order-1")
READY = Member("a", "L1", "ready", deployment="v1")
PEER = Member("b", "L2", "ready", deployment="v1")


class Directory:
    """The lanes of v1: one, which nobody has."""

    label = "v1"

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = asyncio.Event()

    async def lanes(self) -> dict[int, Owned]:
        self.asked.set()
        await self.answers.wait()
        return {0: Owned(Owner("z", "L0", 1, "free"), 1)}


class Served(LanePartition):
    """A lane that notes everything."""

    def __init__(self, *_: object, **__: object) -> None:
        self.noted: list[str] = []
        self.steps = asyncio.Event()

    async def start(self, *_: object, **__: object) -> None:
        """Serve."""

    async def nudged(self, actor: ActorId) -> bool:
        self.noted.append(actor)
        return True


class World:
    """The lanes of a node of v1, over fakes."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.directory = Directory()
        self.replies: list[bytes] = []
        self.replied = asyncio.Event()

        async def observe(view: View) -> bool:
            return False

        async def reply(request: Received, payload: bytes) -> None:
            self.replies.append(payload)
            self.replied.set()

        services: Any = SimpleNamespace(
            node_id="a",
            runner="a/L1",
            may_act=self.bench.gate.is_open,
            subjects=Subjects("ns", 1),
            monotonic=lambda: self.bench.now,
            clock=SimpleNamespace(now=lambda: 1_000.0),
            broker=SimpleNamespace(reply=reply),
            log=logging.getLogger("test"),
        )
        self.lanes = Lanes(
            services,
            self.bench.holdings,
            self.directory,  # type: ignore[arg-type]  # what is asked of it
            SimpleNamespace(observe=observe),  # type: ignore[arg-type]  # the same
            Metrics({}),
            Bench().holdings,
        )

    def view(self, *members: Member) -> View:
        return View(1, {member.node: member for member in members}, {})


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_lane_whose_attach_was_under_way_when_the_node_began_to_leave_is_handed_over_too(
    world: World,
) -> None:
    """Else its peers would wait for it until the node is gone, and its actors with them."""
    world.bench.attacher.slow.clear()
    world.bench.holdings.attach(0)
    await asyncio.sleep(0)
    world.lanes.drain(5.0)
    world.bench.attacher.slow.set()
    await world.bench.settled()
    await world.lanes.viewed(world.view(PEER))
    await world.bench.settled()
    assert world.bench.holdings.serving() == frozenset()
    assert world.bench.attacher.asked[-1] == "free"


async def test_a_poll_that_was_under_way_when_the_node_began_to_leave_takes_no_lane(world: World) -> None:
    world.directory.answers.clear()
    poll = asyncio.create_task(world.lanes.viewed(world.view(READY)))
    await world.directory.asked.wait()
    world.lanes.drain(5.0)
    world.directory.answers.set()
    await poll
    await world.bench.settled()
    assert world.bench.attacher.asked == []


async def test_a_node_that_leaves_says_at_once_that_it_notes_nothing(world: World) -> None:
    """Whoever asked would wait for its answer, each time, for as long as requests are given."""
    world.lanes.drain(5.0)
    await world.lanes._on_forwarded(Received("lane", ACTOR.encode(), {}, "inbox"))
    async with asyncio.timeout(5):
        await world.replied.wait()
    assert world.replies == [b"not mine"]


async def test_a_node_that_does_not_know_whether_it_has_the_lane_notes_nothing(world: World) -> None:
    """It was frozen, say: its successor may have read HELD before what it is told of now was moved there."""
    world.bench.next = Served  # type: ignore[assignment]  # what serves a lane
    world.bench.holdings.attach(0)
    await world.bench.settled()
    request = Received("lane", ACTOR.encode(), {}, "inbox")
    for in_doubt in (False, True):
        if in_doubt:
            world.bench.gate.shut("the lease may have ended")
        world.replied.clear()
        await world.lanes._on_forwarded(request)
        async with asyncio.timeout(5):
            await world.replied.wait()
    assert world.replies == [NOTED, b"not mine"]

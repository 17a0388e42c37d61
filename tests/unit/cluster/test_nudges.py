"""How the owner of a lane is told of its actors, on the in-memory broker."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from sojourn.broker.memory import MemoryServer
from sojourn.broker.seam import Received
from sojourn.broker.subjects import Token, actor_id
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.hosting.nudges import KNOWN_SECONDS, LANE, NOTED, Nudges
from sojourn.cluster.metrics import Metrics
from sojourn.cluster.tenure.directory import LaneDirectory
from sojourn.cluster.tenure.ownership import Owner

ACTOR = actor_id("order-1")


class World:
    """A broker, and a lane v1 of the actor's partition that node `b` has."""

    def __init__(self, broker: Any, topology: Topology) -> None:
        self.broker = broker
        self.subjects = topology.subjects
        self.living = {"b/L1"}
        self.now = 0.0
        self.told: list[list[str]] = []
        self.answer = NOTED
        self.replies: list[asyncio.Task[None]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.nudges = Nudges(
            broker,
            self.subjects,
            lives=lambda runner: runner in self.living,
            monotonic=lambda: self.now,
            meter=Metrics({}),
        )

    async def own(self, state: Any = "held") -> None:
        p = self.subjects.partition_of(ACTOR)
        directory = LaneDirectory(self.broker, self.subjects, "v1")
        entry = await directory.owner(p)
        epoch = entry.value.epoch + 1 if entry.value is not None else 1
        await directory.put_owner(p, Owner("b", "L1", epoch, state), expect=entry.revision)

    async def listen(self) -> None:
        async def reply(request: Received) -> None:
            await self.may_answer.wait()
            await self.broker.reply(request, self.answer)

        async def answer(request: Received) -> None:
            self.told.append(request.payload.decode().split("\n"))
            self.replies.append(asyncio.create_task(reply(request)))

        await self.broker.subscribe(self.subjects.probe(Token("b"), LANE), answer)

    async def stored(self) -> int:
        pattern = self.subjects.lane_filter(Token("v1"))
        return sum([1 async for _ in self.broker.scan(self.subjects.wake_stream, pattern)])


@pytest.fixture
async def world() -> World:
    broker = await MemoryServer(time.time).connect()
    topology = Topology(namespace="nudges", app="nudges", partitions=1)
    await apply(broker, topology)
    return World(broker, topology)


async def test_a_living_owner_is_asked_and_nothing_is_stored(world: World) -> None:
    await world.own()
    await world.listen()
    await world.nudges.nudge("v1", ACTOR)
    assert world.told == [[ACTOR]]
    assert await world.stored() == 0


async def test_actors_go_together_in_few_requests_and_each_once(world: World) -> None:
    await world.own()
    await world.listen()
    world.may_answer.clear()
    actors = [actor_id(f"a{number}") for number in range(100)]
    under_way = [asyncio.create_task(world.nudges.nudge("v1", actor)) for actor in actors for _ in range(3)]
    for _ in range(200):
        await asyncio.sleep(0)
    assert not any(task.done() for task in under_way)
    world.may_answer.set()
    await asyncio.gather(*under_way)
    assert sorted(actor for request in world.told for actor in request) == sorted(actors)
    assert len(world.told) <= 4
    assert await world.stored() == 0


async def test_nodes_and_lanes_that_nobody_is_told_of_any_more_are_forgotten(world: World) -> None:
    await world.own()
    await world.listen()
    await world.nudges.nudge("v1", ACTOR)
    world.now += KNOWN_SECONDS + 1.0
    await world.nudges.nudge("v2", ACTOR)
    assert not world.nudges._owners
    assert not world.nudges._targets


@pytest.mark.parametrize(
    "why", ["nobody had it", "free", "the owner is dead", "nobody listens", "it is another's"]
)
async def test_without_an_answer_a_nudge_is_stored_and_replaces_the_last_one(world: World, why: str) -> None:
    if why != "nobody had it":
        await world.own("free" if why == "free" else "held")
    if why == "the owner is dead":
        world.living.clear()
    if why == "it is another's":
        world.answer = b"not mine"
        await world.listen()
    for _ in range(3):
        await world.nudges.nudge("v1", ACTOR)
    await world.nudges.nudge("v1", actor_id("order-2"))
    assert await world.stored() == 2

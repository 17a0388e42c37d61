"""Every test here runs on each implementation of the seam: the in-memory twin and a real nats-server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from sojourn.broker.memory import MemoryServer
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Broker, ConsumerConfig, Delivery, Publish, Pull, StreamConfig
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects
from sojourn.broker.topology import Topology, apply

_numbers = itertools.count(1)


class World:
    """One server of either kind, and names nobody else uses on it."""

    def __init__(self, make: Callable[[], Awaitable[Broker]]) -> None:
        self._make = make
        self._made: list[Broker] = []

    async def connect(self) -> Broker:
        """A new connection, closed after the test."""
        self._made.append(await self._make())
        return self._made[-1]

    async def close(self) -> None:
        for broker in self._made:
            await broker.close()

    @staticmethod
    def name() -> str:
        return f"c{next(_numbers)}"


class Collector:
    """What a pull brought: `on_message` and `on_lost`, and waiting for them."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.lost: list[str] = []
        self._changed = asyncio.Event()

    def on_message(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self._changed.set()

    def on_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self._changed.set()

    @property
    def payloads(self) -> list[bytes]:
        return [delivery.message.payload for delivery in self.deliveries]

    async def until(self, holds: Callable[[Collector], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds(self):
                self._changed.clear()
                await self._changed.wait()

    async def count(self, n: int) -> list[Delivery]:
        await self.until(lambda self: len(self.deliveries) >= n)
        return self.deliveries

    async def loss(self) -> str:
        await self.until(lambda self: bool(self.lost))
        return self.lost[0]


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.integration)])
def nats_address(request: pytest.FixtureRequest) -> str | None:
    """Address of the real server, None for the twin. Not async: the module's server has a loop of its own."""
    if request.param == "memory":
        return None
    server: EmbeddedServer = request.getfixturevalue("nats_server")
    return server.url


@pytest.fixture
async def world(nats_address: str | None) -> AsyncIterator[World]:
    """A world of each kind."""
    if nats_address is None:
        made = World(MemoryServer().connect)
    else:
        options = NatsOptions(servers=nats_address)
        made = World(lambda: NatsBroker.connect(options))
    yield made
    await made.close()


@pytest.fixture
async def broker(world: World) -> Broker:
    """One connection."""
    return await world.connect()


@pytest.fixture
async def subjects(world: World, broker: Broker) -> Subjects:
    """A namespace with its topology applied."""
    topology = Topology(namespace=world.name(), app="test")
    await apply(broker, topology)
    return topology.subjects


@pytest.fixture
async def stream(world: World, broker: Broker) -> str:
    """A plain stream `X` with subjects `X.>`, everything allowed but schedules."""
    name = world.name()
    await broker.create_stream(
        StreamConfig(name, (f"{name}.>",), allow_ttl=True, allow_atomic=True, allow_rollup=True)
    )
    return name


@pytest.fixture
async def queue(world: World, broker: Broker) -> str:
    """A work queue `X` with subjects `X.>`."""
    name = world.name()
    await broker.create_stream(StreamConfig(name, (f"{name}.>",), retention="workqueue"))
    return name


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
def consume(broker: Broker, queue: str) -> Callable[[Collector], Awaitable[Pull]]:
    """Create the consumer `k` over all of the queue and pull it."""

    async def begin(collector: Collector) -> Pull:
        await broker.create_consumer(queue, ConsumerConfig("k", (f"{queue}.>",)))
        return await broker.pull(queue, "k", collector.on_message, collector.on_lost)

    return begin


async def fill(broker: Broker, subject: str, count: int) -> None:
    """Publish b"0", b"1", ... on one subject."""
    for n in range(count):
        await broker.publish(Publish(subject, b"%d" % n))

"""Fixtures for servers and connections: a real nats-server on a free port of 127.0.0.1.

`nats_server` is shared by the tests of one module, each of which takes a `namespace` of its own; a test
that stops or kills its server takes `own_server`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects
from sojourn.broker.topology import Topology, apply

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def nats_server() -> Iterator[EmbeddedServer]:
    """One server for the module. Started on a loop of its own, because each test has its own loop."""
    with asyncio.Runner() as runner:
        server = EmbeddedServer()
        runner.run(server.start())
        try:
            yield server
        finally:
            runner.run(server.kill())  # stopping in order takes a second per namespace
            runner.run(server.__aexit__(None, None, None))


@pytest.fixture
async def own_server() -> AsyncIterator[EmbeddedServer]:
    """A server for this test alone, to be stopped, killed and restarted at will."""
    async with EmbeddedServer() as server:
        yield server


@pytest.fixture
def namespace() -> str:
    """A namespace nobody else has used on this server."""
    return f"t{next(_numbers)}"


@pytest.fixture
async def connect(nats_server: EmbeddedServer) -> AsyncIterator[Callable[[], Awaitable[NatsBroker]]]:
    """Makes connections to the module's server; all are closed after the test."""
    brokers: list[NatsBroker] = []

    async def make() -> NatsBroker:
        brokers.append(await NatsBroker.connect(NatsOptions(servers=nats_server.url, name="test")))
        return brokers[-1]

    yield make
    for broker in brokers:
        await broker.close()


@pytest.fixture
async def broker(connect: Callable[[], Awaitable[NatsBroker]]) -> NatsBroker:
    """A connection to the module's server."""
    return await connect()


@pytest.fixture
async def topology(broker: NatsBroker, namespace: str) -> Topology:
    """A namespace with everything applied."""
    wanted = Topology(namespace=namespace, app="test")
    await apply(broker, wanted)
    return wanted


@pytest.fixture
def subjects(topology: Topology) -> Subjects:
    """Names of the applied namespace."""
    return topology.subjects

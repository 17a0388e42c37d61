"""A bucket that keeps former revisions of each record (`topology apply --history`): whoever lists actors sees each once, as it is now."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.client import Client
from sojourn.actors.registry import Registry
from sojourn.actors.workflow import workflow
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.census import take_census
from sojourn.cluster.hosting.views import list_indexes
from sojourn.cluster.node import Node, NodeOptions
from sojourn.codecs.keyring import Keyring

pytestmark = pytest.mark.integration

R = Registry()
note = Channel("note", int)


@workflow(registry=R)
async def sums_up() -> int:
    total = 0
    while (n := await note.receive()) > 0:
        total += n
    return total


async def test_lists_and_censuses_count_an_actor_once_whatever_it_was_before(
    nats_server: EmbeddedServer,
) -> None:
    wanted = Topology(namespace="history", app="app", partitions=4, history=8)
    broker = await NatsBroker.connect(NatsOptions(servers=nats_server.url))
    await apply(broker, wanted)
    node = Node(
        NodeOptions(
            app="unused",
            registry=R,
            nats=NatsOptions(servers=nats_server.url),
            keyring=Keyring.ephemeral(lambda n: b"k" * n),
            namespace="history",
            deployment="v1",
            health_port=None,
        )
    )
    running = asyncio.create_task(node.run())
    try:
        async with Client.connect(nats_server.url, namespace="history", by="test") as client:
            handles = [await client.start(sums_up(), id=f"sum{n}", timeout=30) for n in range(3)]
            for handle in handles:
                for number in (1, 2):
                    await handle.signal(note, number, wait="consumed", timeout=30)
            found = [index async for index in list_indexes(broker, wanted.subjects)]
            assert sorted(index.actor for index in found) == ["sum0", "sum1", "sum2"]
            assert {index.wait.partition(" ")[0] for index in found} == {"receive"}
            assert min(index.transition for index in found) >= 3
            census = await take_census(broker, wanted.subjects)
            assert census.deployments["v1"].suspended == 3
    finally:
        node.drain()
        async with asyncio.timeout(30):
            await running
        await broker.close()

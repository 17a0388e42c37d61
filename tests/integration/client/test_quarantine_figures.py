"""What a node's metrics page says of actors in quarantine: now, and how often; also after the partition has moved."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.client import Client
from sojourn.actors.errors import WorkflowQuarantined
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.workflow import workflow
from sojourn.broker.nats import NatsOptions
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.topology import Topology
from sojourn.cluster import pulse
from sojourn.cluster.node import Node, NodeOptions
from sojourn.codecs.keyring import Keyring

pytestmark = pytest.mark.integration

R = Registry()
note = Channel("note", int)
mood = {"broken": True}
MakeNode = Callable[[], Awaitable[Node]]


@step(registry=R)
async def double(n: int) -> int:
    return 2 * n


@workflow(registry=R)
async def fragile_after_mail() -> int:
    n = await note.receive()
    if mood["broken"]:
        raise ZeroDivisionError("a defect")
    return n


@workflow(registry=R)
async def fragile_after_a_step(n: int) -> int:
    doubled = await double(n)
    if mood["broken"]:
        raise ZeroDivisionError("a defect")
    return doubled


@pytest.fixture
async def nodes(
    nats_server: EmbeddedServer, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeNode]:
    monkeypatch.setattr(pulse, "MEASURE_SECONDS", 0.1)
    mood["broken"] = True
    running: dict[Node, asyncio.Task[None]] = {}

    async def make() -> Node:
        options = NodeOptions(
            app="unused",
            registry=R,
            nats=NatsOptions(servers=nats_server.url),
            keyring=Keyring.ephemeral(lambda n: b"k" * n),
            namespace=topology.namespace,
            drain_seconds=5.0,
            deployment="v1",
        )
        node = Node(options)
        running[node] = asyncio.create_task(node.run())
        async with asyncio.timeout(30):
            await node.wait_ready()
        return node

    yield make
    for node in running:
        node.drain()
    async with asyncio.timeout(30):
        await asyncio.gather(*running.values())


def _page(address: str) -> str:
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def _figures(page: str, name: str) -> dict[str, float]:
    found = re.findall(rf'^{name}\{{[^}}]*workflow="(\w+)"[^}}]*\}} (\S+)$', page, re.M)
    return {workflow: float(value) for workflow, value in found}


async def until_now(node: Node, expected: dict[str, float]) -> None:
    """Until the node's page says so many actors of each workflow are in quarantine now."""
    async with asyncio.timeout(30):
        while True:
            page = await asyncio.to_thread(_page, node.health_address)
            if _figures(page, "sojourn_actors_quarantined") == expected:
                return
            await asyncio.sleep(0.05)


async def test_the_page_counts_actors_in_quarantine_now_on_whatever_node_they_are_and_none_after_release(
    nodes: MakeNode, nats_server: EmbeddedServer, topology: Topology
) -> None:
    first = await nodes()
    async with Client.connect(nats_server.url, namespace=topology.namespace, by="test") as client:
        handles = [
            *[await client.start(fragile_after_mail(), id=f"mail{n}") for n in range(2)],
            await client.start(fragile_after_a_step(4), id="step0"),
        ]
        for handle in handles[:2]:
            await handle.signal(note, 7)
        for handle in handles:
            with pytest.raises(WorkflowQuarantined):
                await handle.result(timeout=30)
        held = {"fragile_after_mail": 2.0, "fragile_after_a_step": 1.0}
        await until_now(first, held)
        page = await asyncio.to_thread(_page, first.health_address)
        assert _figures(page, "sojourn_quarantined_total") == held

        first.drain()
        second = await nodes()
        await until_now(second, held)

        mood["broken"] = False
        for handle in handles[1:]:
            await handle.release()
        assert await handles[1].result(timeout=30) == 7
        assert await handles[2].result(timeout=30) == 8
        await until_now(second, {"fragile_after_mail": 1.0, "fragile_after_a_step": 0.0})
        await handles[0].terminate()
        await until_now(second, {"fragile_after_mail": 0.0, "fragile_after_a_step": 0.0})
        page = await asyncio.to_thread(_page, second.health_address)
        assert _figures(page, "sojourn_quarantined_total") == {}, "it held none itself"

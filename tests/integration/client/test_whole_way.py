"""A client, a real node with threads for steps and guard, a real server: the face that users see, end to end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.client import Client
from sojourn.actors.current import current
from sojourn.actors.errors import WorkflowCancelled
from sojourn.actors.lifespan import lifespan, resource
from sojourn.actors.registry import Registry
from sojourn.actors.retry import Retry
from sojourn.actors.step import step
from sojourn.actors.verbs import gather, sleep, spawn
from sojourn.actors.workflow import workflow
from sojourn.broker.nats import NatsOptions
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.topology import Topology
from sojourn.cluster.node import Node, NodeOptions
from sojourn.codecs.keyring import Keyring

pytestmark = pytest.mark.integration

R = Registry()
life: list[str] = []
keys: list[tuple[str, int]] = []
attempts = threading.Semaphore(0)


@dataclass
class Ledger:
    entries: dict[str, int]


@dataclass
class Transfer:
    source: str
    amount: int


approval = Channel("approval", bool)


@lifespan(registry=R)
async def ledger() -> AsyncIterator[Ledger]:
    life.append("opened")
    yield Ledger({})
    life.append("closed")


@step(registry=R, retry=Retry(3, "10ms"))
async def book(transfer: Transfer) -> int:
    entries = resource(Ledger).entries
    entries[current.step.key] = transfer.amount
    keys.append((current.step.key, current.step.attempt))
    if current.step.attempt == 1:
        raise ConnectionError("not yet")
    return sum(entries.values())


@step(registry=R)
def thread_name() -> str:
    return threading.current_thread().name


@workflow(registry=R)
async def child(amount: int) -> int:
    await sleep(0.1)
    return amount * 10


@workflow(registry=R)
async def transfer_money(transfer: Transfer) -> tuple[int, str, int]:
    booked, name = await gather(book(transfer), thread_name())
    helper = await spawn(child(booked), id=f"{current.actor.id}-child")
    if not await approval.receive(timeout="1m"):
        return 0, name, 0
    return booked, name, await helper


@pytest.fixture
async def client(nats_server: EmbeddedServer, topology: Topology) -> AsyncIterator[Client]:
    """A client of a namespace that one node serves."""
    life.clear()
    keys.clear()
    options = NodeOptions(
        app="unused",
        registry=R,
        nats=NatsOptions(servers=nats_server.url),
        keyring=Keyring.ephemeral(lambda n: b"k" * n),
        namespace=topology.namespace,
        drain_seconds=5.0,
    )
    node = Node(options)
    running = asyncio.create_task(node.run())
    async with asyncio.timeout(30):
        await node.wait_ready()
    assert life == ["opened"]
    async with Client.connect(nats_server.url, namespace=topology.namespace, by="test") as connected:
        yield connected
    node.drain()
    async with asyncio.timeout(30):
        await running
    assert life == ["opened", "closed"]


async def test_steps_children_and_mail_make_a_result(client: Client) -> None:
    handle = await client.start(transfer_money(Transfer("a", 7)), id="t1", tags=["money"])
    await handle.signal(approval, True, wait="consumed", timeout=30)
    booked, name, multiplied = await handle.result(timeout=30)
    assert (booked, multiplied) == (7, 70)
    assert name.startswith("sojourn-step-")
    first, second = keys
    assert (first[0], first[1], second[1]) == (second[0], 1, 2)
    assert first[0].startswith(f"t1/{handle.run}/")
    assert await client.handle("t1-child").result(timeout=30) == 70
    assert {index.actor async for index in client.list(tag="money")} == {"t1"}


async def test_cancelling_reaches_the_child(client: Client) -> None:
    handle = await client.start(transfer_money(Transfer("a", 7)), id="t2")
    assert await handle.cancel(reason="changed my mind")
    with pytest.raises(WorkflowCancelled, match="changed my mind"):
        await handle.result(timeout=30)
    assert "was cancelled" in (await handle.describe()).sentence

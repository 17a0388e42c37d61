"""Nodes and workers of one namespace in this process, over a real server: for tests of queued steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sojourn.actors.client import Client
from sojourn.actors.registry import Registry
from sojourn.actors.task import Task, parse_task
from sojourn.broker.dead import DeadLetters
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import ConsumerConfig, ConsumerState, Delivery
from sojourn.broker.subjects import Subjects, token
from sojourn.broker.topology import Limits, Topology, apply
from sojourn.cluster.hosting.services import Fault, no_fault
from sojourn.cluster.node import Node, NodeOptions
from sojourn.cluster.worker import Worker, WorkerOptions
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Record
from sojourn.codecs.seal import open_record

MIB = 1024 * 1024
SMALL = Limits(mail_bytes=16 * MIB, held_bytes=16 * MIB, dead_bytes=4 * MIB)


def keyring() -> Keyring:
    return Keyring.ephemeral(lambda count: b"k" * count)


@dataclass(eq=False)
class Shop:
    """A namespace with whatever nodes and workers a test starts; all end with it."""

    url: str
    registry: Registry
    broker: NatsBroker
    subjects: Subjects
    client: Client
    _running: list[tuple[Node | Worker, asyncio.Task[None]]] = field(default_factory=list)

    async def node(self, **options: Any) -> Node:
        """A node that serves."""
        made = Node(
            NodeOptions(
                **{
                    "app": "none",
                    "nats": NatsOptions(servers=self.url),
                    "keyring": keyring(),
                    "namespace": self.subjects.namespace,
                    "registry": self.registry,
                    "health_port": None,
                    **options,
                }
            )
        )
        await self._run(made)
        return made

    async def worker(self, *queues: str, fault: Fault = no_fault, **options: Any) -> Worker:
        """A worker that takes tasks."""
        made = Worker(
            WorkerOptions(
                **{
                    "app": "none",
                    "queues": queues or ("gpu",),
                    "nats": NatsOptions(servers=self.url),
                    "namespace": self.subjects.namespace,
                    "registry": self.registry,
                    "health_port": None,
                    "progress_seconds": 0.2,
                    "fault": fault,
                    **options,
                }
            )
        )
        await self._run(made)
        return made

    async def _run(self, made: Node | Worker) -> None:
        task = asyncio.create_task(made.run())
        self._running.append((made, task))
        ready = asyncio.create_task(made.wait_ready())
        async with asyncio.timeout(20):
            await asyncio.wait((ready, task), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if task.done():
            task.result()

    async def end(self, made: Node | Worker) -> None:
        """Drain it and wait until it has left."""
        made.drain()
        await self.ended(made)

    async def ended(self, made: Node | Worker) -> None:
        """Wait until it has left."""
        async with asyncio.timeout(30):
            await next(task for one, task in self._running if one is made)

    async def close(self) -> None:
        for made, _ in reversed(self._running):
            made.leave()
        await asyncio.gather(*(task for _, task in self._running), return_exceptions=True)
        await self.client.close()
        await self.broker.close()

    async def queue(self, name: str, *, ack_wait: float) -> None:
        """A queue's consumer before any node makes it: with less patience."""
        config = ConsumerConfig(
            Subjects.step_consumer(token(name)), (self.subjects.step(token(name)),), ack_wait=ack_wait
        )
        await self.broker.create_consumer(self.subjects.steps_stream, config)

    async def state(self, queue: str = "gpu") -> ConsumerState:
        found = await self.broker.consumer_state(
            self.subjects.steps_stream, Subjects.step_consumer(token(queue))
        )
        assert found is not None
        return found

    async def until(self, holds: Callable[[ConsumerState], bool], queue: str = "gpu") -> None:
        """Wait until the queue's state is as wanted."""
        async with asyncio.timeout(20):
            while not holds(await self.state(queue)):
                continue

    async def fetch(self, queue: str = "gpu") -> tuple[Delivery, Task]:
        """Take one task, as a worker would."""
        name = Subjects.step_consumer(token(queue))
        delivery = await self.broker.fetch(self.subjects.steps_stream, name, wait=10.0)
        assert delivery is not None
        task = parse_task(delivery.message.payload)
        assert task is not None
        return delivery, task

    async def record(self, actor: str) -> Record:
        stored = await self.broker.read_last(
            self.subjects.frames_stream, f"$KV.{self.subjects.frames_bucket}.{actor}"
        )
        assert stored is not None
        return open_record(stored.payload, keyring(), namespace=self.subjects.namespace, actor=actor)

    async def dead_letters(self) -> list[str]:
        return [
            f"{letter.reason}: {letter.detail}"
            async for letter in DeadLetters(self.broker, self.subjects).list()
        ]


@asynccontextmanager
async def shop(url: str, namespace: str, registry: Registry, partitions: int = 4) -> AsyncIterator[Shop]:
    """A namespace of its own on this server."""
    topology = Topology(namespace=namespace, app="app", partitions=partitions, limits=SMALL)
    broker = await NatsBroker.connect(NatsOptions(servers=url, name="test"))
    await apply(broker, topology)
    made = Shop(url, registry, broker, topology.subjects, Client(broker, topology.subjects))
    try:
        yield made
    finally:
        await made.close()

"""Nodes on a real server whose hosting side only counts: it pulls, notes, acknowledges.

Membership is tested without actors; every test waits on the diary, never on time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sojourn.actors.registry import Registry
from sojourn.broker.held import HeldEvent
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Delivery, Pull
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.hosting.services import PartitionServices
from sojourn.cluster.node import Node, NodeOptions
from sojourn.cluster.tenure.directory import Directory
from sojourn.cluster.tenure.lease import LeaseTerms
from sojourn.codecs.keyring import Keyring

PARTITIONS = 32


@dataclass(frozen=True)
class Figures:
    """As `services.PartitionStatistics`."""

    partition: int
    epoch: int
    hot: int = 0
    hosts: int = 0
    waiting: int = 0
    held: int = 0
    unacknowledged: int = 0
    running_steps: int = 0
    oldest_runnable: float = 0.0
    away: int = 0
    pinned: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Diary:
    """What happened to the partitions of all nodes of a test, in order, and who waits for it."""

    entries: list[tuple[str, str, int, int]] = field(default_factory=list)
    """(node, what, partition, epoch)."""
    delivered: list[tuple[str, int, str]] = field(default_factory=list)
    """(node, partition, subject)."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, node: str, what: str, p: int, epoch: int) -> None:
        self.entries.append((node, what, p, epoch))
        self.changed.set()

    async def wait_until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Return when the condition holds; looked at after every entry."""
        async with asyncio.timeout(seconds):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def serving(self) -> dict[int, str]:
        """Who serves which partition, by the diary. Fails if two do at a time without a drop or release
        between.
        """
        now: dict[int, str] = {}
        for node, what, p, _ in self.entries:
            if what == "start":
                now[p] = node
            elif what in ("drop", "released") and now.get(p) == node:
                del now[p]
        return now

    def epochs(self, p: int) -> list[int]:
        return [epoch for _, what, q, epoch in self.entries if q == p and what in ("start", "reattached")]

    def of(self, what: str) -> list[tuple[str, int, int]]:
        return [(node, p, epoch) for node, done, p, epoch in self.entries if done == what]


class CountingPartition:
    """As `services.ServedPartition`."""

    def __init__(
        self,
        diary: Diary,
        p: int,
        epoch: int,
        services: PartitionServices,
        on_lost: Callable[[str], None],
    ) -> None:
        self._diary = diary
        self.p = p
        self.epoch = epoch
        self.services = services
        self.lost = on_lost
        self._pulls: list[Pull] = []
        self._acks: set[asyncio.Task[bool]] = set()
        self.ended_runners: list[str] = []
        self.over = False
        self._generation = 0
        self.steps = asyncio.Event()
        self.steps.set()

    async def start(
        self, held: Sequence[HeldEvent], consumers: Mapping[str, str], *, taken_over: bool = False
    ) -> None:
        await self._pull(consumers)
        self._diary.note(self.services.node_id, "takeover" if taken_over else "free", self.p, self.epoch)
        self._diary.note(self.services.node_id, "start", self.p, self.epoch)

    async def reattached(self, epoch: int, held: Sequence[HeldEvent], consumers: Mapping[str, str]) -> None:
        await self._stop()
        self.epoch = epoch
        await self._pull(consumers)
        self._diary.note(self.services.node_id, "reattached", self.p, epoch)

    async def release(self, deadline: float) -> None:
        await self._stop()
        if self._acks:
            await asyncio.wait(self._acks, timeout=deadline - self.services.monotonic())
        self.over = True
        self._diary.note(self.services.node_id, "released", self.p, self.epoch)

    async def wait_steps_finished(self) -> None:
        await self.steps.wait()

    def drop(self) -> None:
        if not self.over:
            self.over = True
            for pull in self._pulls:
                task = asyncio.ensure_future(pull.stop())
                task.add_done_callback(lambda _: None)
            self._diary.note(self.services.node_id, "drop", self.p, self.epoch)

    def lease_ended(self, runner: str) -> None:
        self.ended_runners.append(runner)
        self._diary.note(self.services.node_id, f"ended {runner}", self.p, self.epoch)

    def statistics(self) -> Figures:
        return Figures(self.p, self.epoch)

    async def _pull(self, consumers: Mapping[str, str]) -> None:
        subjects = self.services.subjects
        streams = {"mail": subjects.mail_stream, "ctl": subjects.ctl_stream, "wake": subjects.wake_stream}
        for short, consumer in consumers.items():
            self._pulls.append(
                await self.services.broker.pull(
                    streams[short], consumer, self._take, self._pull_lost(self._generation)
                )
            )

    def _pull_lost(self, generation: int) -> Callable[[str], None]:
        return lambda reason: self.lost(reason) if generation == self._generation else None

    def _take(self, delivery: Delivery) -> None:
        self._diary.delivered.append((self.services.node_id, self.p, delivery.message.subject))
        self._diary.changed.set()
        task = asyncio.ensure_future(self.services.broker.ack(delivery))
        self._acks.add(task)
        task.add_done_callback(self._acknowledged)

    def _acknowledged(self, task: asyncio.Task[bool]) -> None:
        self._acks.discard(task)
        if not task.cancelled() and task.exception() is None and not task.result():
            self.lost("an acknowledgement was refused")

    async def _stop(self) -> None:
        self._generation += 1
        pulls, self._pulls = self._pulls, []
        for pull in pulls:
            await pull.stop()


async def poll_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """For what announces itself to nobody."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nothing sets an event for it
            await asyncio.sleep(0.01)


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    return poll_until


class Cutter:
    """A TCP proxy before the server that knows connections by their client's name, and cuts them by it."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, str] = {}
        self._cut: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._open):
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, name: str) -> None:
        """Cut the connections of this client, and every new one of it, until `mend`."""
        self._cut.add(name)
        for writer, known in tuple(self._open.items()):
            if known == name:
                writer.transport.abort()

    def mend(self, name: str) -> None:
        self._cut.discard(name)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            writer.write(await upstream_reader.readline())  # INFO
            hello = await reader.readline()  # CONNECT {...}
            name = json.loads(hello.partition(b" ")[2]).get("name", "")
            if name in self._cut:
                return
            self._open[writer] = name
            upstream.write(hello)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, upstream))
                both.create_task(_pump(upstream_reader, writer))
        except* (OSError, asyncio.IncompleteReadError, ValueError, EOFError):
            pass
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()
            upstream.transport.abort()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    raise EOFError


class Cluster:
    """Real nodes in this process, one loop for all engines, each with its own guard thread and
    connections.
    """

    def __init__(self, server: EmbeddedServer, namespace: str) -> None:
        self.server = server
        self.url = server.url
        """Where nodes connect to; a test may put a `Cutter` there."""
        self.namespace = namespace
        self.subjects = Subjects(namespace, PARTITIONS)
        self.diary = Diary()
        self.hosted: dict[tuple[str, int], CountingPartition] = {}
        self._running: dict[str, tuple[Node, asyncio.Task[None]]] = {}

    def options(self, node_id: str, **changes: Any) -> NodeOptions:
        def factory(
            p: int, epoch: int, services: PartitionServices, *, on_lost: Callable[[str], None]
        ) -> CountingPartition:
            made = CountingPartition(self.diary, p, epoch, services, on_lost)
            self.hosted[services.node_id, p] = made
            return made

        wanted: dict[str, Any] = {
            "app": "tests",
            "nats": NatsOptions(servers=self.url),
            "keyring": Keyring.ephemeral(lambda n: b"k" * n),
            "namespace": self.namespace,
            "node_id": node_id,
            "registry": Registry(),
            "partition_factory": factory,
            "drain_seconds": 5.0,
            "terms": LeaseTerms(move=0.3),
            **changes,
        }
        return NodeOptions(**wanted)

    async def start(self, node_id: str, **changes: Any) -> Node:
        """Start a node; returns when it has joined."""
        node = Node(self.options(node_id, **changes))
        task = asyncio.create_task(node.run(), name=f"node-{node_id}")
        self._running[node_id] = (node, task)
        ready = asyncio.create_task(node.wait_ready())
        await asyncio.wait((ready, task), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            ready.cancel()
            del self._running[node_id]
            task.result()
        return node

    async def wait_ended(self, node_id: str) -> None:
        """Return when the node's `run` has."""
        async with asyncio.timeout(20):
            await self._running.pop(node_id)[1]

    async def all_served(self, *nodes: str, shares: tuple[int, ...] | None = None) -> None:
        """Return when exactly these nodes serve all partitions, each some (or its share, sorted)."""

        def settled() -> bool:
            serving = self.diary.serving()
            counts = sorted(list(serving.values()).count(node) for node in nodes)
            return (
                len(serving) == PARTITIONS
                and set(serving.values()) == set(nodes)
                and (shares is None or tuple(counts) == shares)
            )

        await self.diary.wait_until(settled)

    async def all_taken_over_by(self, node_id: str) -> None:
        """Return when every partition was last attached by this node (the former owner may not know yet)."""

        def taken() -> bool:
            last = {p: node for node, what, p, _ in self.diary.entries if what == "start"}
            return set(last.values()) == {node_id} and len(last) == PARTITIONS

        await self.diary.wait_until(taken)

    async def doubt_all(self, node_id: str) -> None:
        """Have every partition of the node attached anew."""
        before = len(self.diary.of("reattached"))
        mine = [hosted for (node, _), hosted in self.hosted.items() if node == node_id and not hosted.over]
        for hosted in mine:
            hosted.lost("a test says so")
        await self.diary.wait_until(lambda: len(self.diary.of("reattached")) >= before + len(mine))

    async def start_twin(self, node_id: str) -> None:
        """Run another node under an id that is in use."""
        await Node(self.options(node_id)).run()

    async def stop(self) -> None:
        for node, _ in self._running.values():
            node.leave()
        for node_id in tuple(self._running):
            await self.wait_ended(node_id)


@pytest.fixture
async def cluster(nats_server: EmbeddedServer, namespace: str) -> AsyncIterator[Cluster]:
    """A namespace of its own on the module's server, and nodes started by the test."""
    async for made in _cluster(nats_server, namespace):
        yield made


@pytest.fixture
async def own_cluster(own_server: EmbeddedServer) -> AsyncIterator[Cluster]:
    """The same on a server that the test may stop and restart."""
    async for made in _cluster(own_server, "own"):
        yield made


@pytest.fixture
async def restorable(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Path]]:
    """On a server whose store is in a folder that the test may copy and put back."""
    store = tmp_path / "store"
    async with EmbeddedServer(store) as server:
        async for made in _cluster(server, "own"):
            yield made, store


async def _cluster(server: EmbeddedServer, namespace: str) -> AsyncIterator[Cluster]:
    broker = await NatsBroker.connect(NatsOptions(servers=server.url))
    await apply(broker, Topology(namespace=namespace, app="tests", partitions=PARTITIONS))
    await broker.close()
    made = Cluster(server, namespace)
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
async def cutter(cluster: Cluster) -> AsyncIterator[Cutter]:
    """Between the nodes of `cluster` and the server."""
    made = Cutter(cluster.server.port)
    await made.start()
    cluster.url = made.url
    yield made
    await cluster.stop()
    await made.stop()


@pytest.fixture
async def directory(cluster: Cluster, connect: Callable[[], Awaitable[NatsBroker]]) -> Directory:
    """The cluster bucket, seen by somebody who is no node."""
    return Directory(await connect(), cluster.subjects)

"""Three replicas: the leader of a stream dies, and nothing acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from sojourn.broker.errors import FencedOff, MoveUnsettled, OutcomeUnknown
from sojourn.broker.frames import FrameStore
from sojourn.broker.held import HeldStore, Move, Moved
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Broker, ConsumerConfig, Delivery, Publish, Stored, StreamConfig
from sojourn.broker.subjects import Mail, actor_id, channel_name
from sojourn.broker.topology import Topology, apply, check_drift
from sojourn.codecs.record import Origin

from .cluster import Cluster, cluster, silent, until_known
from .test_faults import Writer, check_exactly_once, commit_until, more_commits

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TOPOLOGY = Topology(namespace="n", app="app", replicas=3)
ACTOR = actor_id("a")
P = TOPOLOGY.subjects.partition_of(ACTOR)


async def connect(servers: Cluster) -> NatsBroker:
    return await NatsBroker.connect(NatsOptions(servers=servers.urls, reconnect_wait=0.05))


async def apply_when_ready(broker: Broker) -> None:
    """A fresh cluster is healthy a moment before it can place streams."""
    await until_known(lambda: apply(broker, TOPOLOGY))


async def test_a_killed_leader_loses_and_doubles_no_commit() -> None:
    async with cluster() as servers:
        broker = await connect(servers)
        await apply_when_ready(broker)
        assert await check_drift(broker, TOPOLOGY.namespace) == TOPOLOGY
        subjects = TOPOLOGY.subjects
        frames, done = FrameStore(broker, subjects), asyncio.Event()
        held = HeldStore(broker, subjects)
        await held.fence(P, 1)
        writers = [Writer(frames, f"w{n}") for n in range(20)]
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(commit_until(writer, done))
            await more_commits(writers, 300)
            leader = await servers.leader(broker, subjects.frames_stream)
            await servers.servers[leader].kill()
            await more_commits(writers, 300)
            done.set()

        assert sum(writer.unknown for writer in writers) > 0
        await check_exactly_once(broker, subjects, writers)
        await broker.close()


def moves(first: int, count: int) -> list[Move]:
    """Mails numbered from `first`, as moves."""
    event = Mail(P, ACTOR, channel_name("c"))
    return [
        Move(event, Stored("SJ_n_MAIL", n, "x", b"%d" % n, {}, 1.0), Origin("mail", 1, n))
        for n in range(first, first + count)
    ]


async def move_settled(held: HeldStore, batch: list[Move]) -> Moved:
    while True:
        try:
            result = await held.move(P, batch)
        except MoveUnsettled:
            continue
        assert isinstance(result, Moved)
        return result


async def test_moves_go_through_a_killed_leader_once_each_and_in_order() -> None:
    async with cluster() as servers:
        broker = await connect(servers)
        await apply_when_ready(broker)
        subjects = TOPOLOGY.subjects
        held = HeldStore(broker, subjects)
        await held.fence(P, 1)
        moved = 0
        for round_ in range(40):
            if round_ == 20:
                leader = await servers.leader(broker, subjects.held_stream)
                under_way = asyncio.create_task(move_settled(held, moves(moved, 25)))
                await servers.servers[leader].kill()
                await under_way
            else:
                await move_settled(held, moves(moved, 25))
            moved += 25

        events = await held.list(P)
        assert [int(event.payload) for event in events] == list(range(moved))

        successor = HeldStore(broker, subjects)
        await successor.fence(P, 2)
        with pytest.raises(FencedOff):
            await held.move(P, moves(moved, 1))
        assert len(await successor.list(P)) == moved
        await broker.close()


async def test_partitions_are_attached_and_served_on_three_replicas() -> None:
    """Consumers are raft groups of their own there: creating, pulling and losing one must work as on one
    replica.
    """
    async with cluster() as servers:
        broker = await connect(servers)
        await apply_when_ready(broker)
        subjects, held = TOPOLOGY.subjects, HeldStore(broker, TOPOLOGY.subjects)
        delivered: asyncio.Queue[Delivery] = asyncio.Queue()
        lost: asyncio.Queue[str] = asyncio.Queue()

        async def attach(partition: int, epoch: int) -> None:
            for name in await broker.consumers(subjects.mail_stream):
                found = subjects.parse_consumer(name)
                if found is not None and found[0] == partition and found[1] < epoch:
                    assert await broker.delete_consumer(subjects.mail_stream, name)
            name = subjects.consumer(partition, epoch)
            await broker.create_consumer(
                subjects.mail_stream, ConsumerConfig(name, (subjects.in_filter(partition),))
            )
            await held.fence(partition, epoch)
            await broker.pull(subjects.mail_stream, name, delivered.put_nowait, lost.put_nowait)

        await asyncio.gather(*(attach(partition, 1) for partition in range(16)))
        actors = [actor_id(f"a{n}") for n in range(200)]
        here = [actor for actor in actors if subjects.partition_of(actor) < 16]
        for actor in here:
            await broker.publish(Publish(subjects.mail(actor, channel_name("c"))))
        async with asyncio.timeout(20):
            first = [await delivered.get() for _ in here]
        assert lost.empty()

        await asyncio.gather(*(attach(partition, 2) for partition in range(16)))
        async with asyncio.timeout(20):
            again = [await delivered.get() for _ in here]
            for delivery in again:
                assert await broker.ack(delivery)
        assert {d.message.seq for d in again} == {d.message.seq for d in first}
        assert lost.qsize() == 16
        assert not await broker.ack(first[0])
        await broker.close()


async def test_the_word_of_a_replica_that_knows_no_leader_is_not_the_streams_state() -> None:
    """It answers for itself although it may lag: that is no stream that went back (I8)."""
    async with cluster() as servers, AsyncExitStack() as stack:
        broker = await connect(servers)
        stack.push_async_callback(broker.close)
        await until_known(lambda: broker.create_stream(StreamConfig("S", ("s.>",), replicas=3)))
        leader = servers.servers[await servers.leader(broker, "S")]
        left_alone, other = (server for server in servers.servers.values() if server is not leader)
        stack.enter_context(silent(leader, other))
        alone = await NatsBroker.connect(NatsOptions(servers=(left_alone.url,)))
        stack.push_async_callback(alone.close)
        async with asyncio.timeout(60):
            while True:
                with pytest.raises(OutcomeUnknown) as unknown:
                    await alone.stream_info("S")
                if "knows no leader" in str(unknown.value):
                    break

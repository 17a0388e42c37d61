"""Three replicas: the leader of a stream dies, and nothing acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.frames import FrameStore
from sojourn.broker.held import HeldStore
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Broker
from sojourn.broker.topology import Topology, apply, check_drift

from .cluster import Cluster, cluster
from .test_faults import Writer, check_exactly_once, commit_until, more_commits

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TOPOLOGY = Topology(namespace="n", app="app", replicas=3)


async def connect(servers: Cluster) -> NatsBroker:
    return await NatsBroker.connect(NatsOptions(servers=servers.urls, reconnect_wait=0.05))


async def apply_when_ready(broker: Broker) -> None:
    """A fresh cluster is healthy a moment before it can place streams."""
    async with asyncio.timeout(30):
        while True:
            try:
                await apply(broker, TOPOLOGY)
            except OutcomeUnknown:
                await asyncio.sleep(0.1)
            else:
                return


async def test_a_killed_leader_loses_and_doubles_no_commit() -> None:
    async with cluster() as servers:
        broker = await connect(servers)
        await apply_when_ready(broker)
        assert await check_drift(broker, TOPOLOGY.namespace) == TOPOLOGY
        subjects = TOPOLOGY.subjects
        frames, done = FrameStore(broker, subjects), asyncio.Event()
        held = HeldStore(broker, subjects)
        await held.fence(1, 1)
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

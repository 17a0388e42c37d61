"""A pull asks for nothing while its reader has no room, and goes on afterwards as if nothing had been."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import ConsumerConfig, Delivery, Publish, StreamConfig
from sojourn.broker.server import EmbeddedServer
from sojourn.cluster.hosting.crowd import Crowd

pytestmark = pytest.mark.integration

BATCH = 20
HEARTBEAT = 0.2


async def test_a_reader_without_room_gets_one_batch_at_most_and_later_the_rest() -> None:
    async with EmbeddedServer() as server:
        broker = await NatsBroker.connect(NatsOptions(servers=server.url, heartbeat=HEARTBEAT))
        await broker.create_stream(StreamConfig("S", ("s.>",), retention="workqueue"))
        await broker.create_consumer("S", ConsumerConfig("c", ("s.>",)))
        for number in range(200):
            await broker.publish(Publish("s.a", str(number).encode()))
        crowd, taken, lost = Crowd(full=5), list[Delivery](), list[str]()
        all_taken = asyncio.Event()

        def take(delivery: Delivery) -> None:
            crowd.began()
            taken.append(delivery)
            if len(taken) == 200:
                all_taken.set()

        await broker.pull("S", "c", take, lost.append, batch=BATCH, room=crowd)
        await asyncio.sleep(5 * HEARTBEAT)  # longer than a pull waits for a heartbeat that it may expect
        assert 5 <= len(taken) <= 2 * BATCH
        assert lost == []

        async def rest() -> None:
            ended = 0
            while not all_taken.is_set():
                await asyncio.sleep(0.001)
                while ended < len(taken):
                    crowd.ended()
                    ended += 1

        async with asyncio.timeout(20):
            await rest()
        assert [delivery.message.payload for delivery in taken] == [str(n).encode() for n in range(200)]
        assert lost == []
        await broker.close()

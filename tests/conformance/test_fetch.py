"""Consumers that many readers share, one message at a time: what workers of queued steps live on."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.broker.errors import Refused
from sojourn.broker.seam import Broker, ConsumerConfig, ConsumerState, Delivery

from .conftest import World, fill


async def consumer(broker: Broker, queue: str, **settings: float) -> None:
    await broker.create_consumer(queue, ConsumerConfig("k", (f"{queue}.>",), **settings))  # type: ignore[arg-type]  # numbers only


async def fetched(broker: Broker, queue: str, wait: float = 5.0) -> Delivery:
    found = await broker.fetch(queue, "k", wait=wait)
    assert found is not None
    return found


async def test_a_message_is_fetched_whether_it_was_stored_before_or_after(broker: Broker, queue: str) -> None:
    await consumer(broker, queue)
    await fill(broker, f"{queue}.a", 1)

    first = await fetched(broker, queue)
    later = asyncio.create_task(fetched(broker, queue))
    await fill(broker, f"{queue}.a", 1)

    assert first.message == await broker.read(queue, 1)
    assert (await later).message.seq == 2


async def test_nothing_to_fetch_is_none(broker: Broker, queue: str) -> None:
    await consumer(broker, queue)

    assert await broker.fetch(queue, "k", wait=1.0) is None


async def test_a_fetch_from_no_consumer_is_refused(broker: Broker, queue: str) -> None:
    with pytest.raises(Refused):
        await broker.fetch(queue, "k", wait=1.0)


async def test_readers_share_the_messages_one_each(world: World, broker: Broker, queue: str) -> None:
    await consumer(broker, queue)
    other = await world.connect()
    waiting = [asyncio.create_task(fetched(one, queue)) for one in (broker, other, broker, other)]
    await asyncio.sleep(0)

    await fill(broker, f"{queue}.a", 4)

    assert sorted([(await one).message.payload for one in waiting]) == [b"0", b"1", b"2", b"3"]


async def test_an_acknowledged_message_is_gone_and_another_is_fetched(broker: Broker, queue: str) -> None:
    await consumer(broker, queue)
    await fill(broker, f"{queue}.a", 2)

    assert await broker.ack(await fetched(broker, queue))

    assert await broker.read(queue, 1) is None
    assert (await fetched(broker, queue)).message.payload == b"1"


async def test_what_is_not_acknowledged_comes_again_and_says_how_often(broker: Broker, queue: str) -> None:
    await consumer(broker, queue, ack_wait=1.0)
    await fill(broker, f"{queue}.a", 1)

    first, second = await fetched(broker, queue), await fetched(broker, queue)

    assert first.message == second.message
    assert (first.redelivered, first.deliveries) == (False, 1)
    assert (second.redelivered, second.deliveries) == (True, 2)


async def test_what_is_in_progress_does_not_come_again(broker: Broker, queue: str) -> None:
    await consumer(broker, queue, ack_wait=1.5)
    await fill(broker, f"{queue}.a", 1)
    delivery = await fetched(broker, queue)

    again = asyncio.create_task(broker.fetch(queue, "k", wait=2.0))
    for _ in range(4):
        assert await broker.in_progress(delivery)
        await asyncio.wait((again,), timeout=0.5)

    assert await again is None
    assert await broker.ack(delivery)


async def test_what_is_handed_back_comes_again_for_anyone_after_its_delay(
    world: World, broker: Broker, queue: str
) -> None:
    await consumer(broker, queue, ack_wait=60.0)
    await fill(broker, f"{queue}.a", 1)
    other = await world.connect()

    assert await broker.hand_back(await fetched(broker, queue), 0.3)

    assert (await fetched(other, queue)).deliveries == 2


async def test_the_state_of_a_consumer_counts_messages_and_readers(broker: Broker, queue: str) -> None:
    assert await broker.consumer_state(queue, "k") is None
    await consumer(broker, queue)
    await fill(broker, f"{queue}.a", 3)
    delivery = await fetched(broker, queue)

    assert await broker.consumer_state(queue, "k") == ConsumerState(2, 1, 0)
    for one in (delivery, await fetched(broker, queue), await fetched(broker, queue)):
        await broker.ack(one)
    reader = asyncio.create_task(broker.fetch(queue, "k", wait=5.0))
    async with asyncio.timeout(5):
        while await broker.consumer_state(queue, "k") != ConsumerState(0, 0, 1):
            continue
    await fill(broker, f"{queue}.a", 1)
    assert await reader is not None


async def test_too_many_readers_are_refused(broker: Broker, queue: str) -> None:
    await consumer(broker, queue, max_waiting=1)
    first = asyncio.create_task(broker.fetch(queue, "k", wait=5.0))
    async with asyncio.timeout(5):
        while (await broker.consumer_state(queue, "k")) != ConsumerState(0, 0, 1):
            continue

    with pytest.raises(Refused):
        await broker.fetch(queue, "k", wait=1.0)

    await fill(broker, f"{queue}.a", 1)
    assert await first is not None

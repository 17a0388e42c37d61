"""Consumers: order, acknowledgement, take-over by deleting and creating, and every loss told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from sojourn.broker.errors import Refused
from sojourn.broker.seam import Broker, ConsumerConfig, Delivery, Publish, Pull

from .conftest import Collector, World, fill

Consume = Callable[[Collector], Awaitable[Pull]]


async def test_messages_come_in_order_whether_stored_before_or_after(
    broker: Broker, queue: str, collector: Collector, consume: Consume
) -> None:
    await fill(broker, f"{queue}.a", 3)
    await consume(collector)
    await collector.count(3)
    await fill(broker, f"{queue}.b", 3)
    await collector.count(6)

    assert [d.message.seq for d in collector.deliveries] == [1, 2, 3, 4, 5, 6]
    assert [d.consumer_seq for d in collector.deliveries] == [1, 2, 3, 4, 5, 6]
    assert not any(d.redelivered for d in collector.deliveries)


async def test_a_delivery_is_the_message_as_it_is_stored(
    broker: Broker, queue: str, collector: Collector, consume: Consume
) -> None:
    await broker.publish(Publish(f"{queue}.a", b"x", {"Sj-X": "1"}))
    await consume(collector)

    (delivery,) = await collector.count(1)

    assert delivery.message == await broker.read(queue, 1)


async def test_many_messages_pass_one_pull_in_order(
    broker: Broker, queue: str, collector: Collector, consume: Consume
) -> None:
    await consume(collector)
    await fill(broker, f"{queue}.a", 1300)

    await collector.count(1300)

    assert collector.payloads == [b"%d" % n for n in range(1300)]
    assert not collector.lost


async def test_an_acknowledged_message_leaves_the_queue(
    broker: Broker, queue: str, collector: Collector, consume: Consume
) -> None:
    await fill(broker, f"{queue}.a", 2)
    await consume(collector)
    first, _ = await collector.count(2)

    assert await broker.ack(first)

    assert await broker.read(queue, 1) is None
    assert await broker.read(queue, 2) is not None


async def test_acknowledging_twice_is_fine(
    broker: Broker, queue: str, collector: Collector, consume: Consume
) -> None:
    await fill(broker, f"{queue}.a", 1)
    await consume(collector)
    (delivery,) = await collector.count(1)

    assert await broker.ack(delivery)
    assert await broker.ack(delivery)


async def test_readers_of_a_shared_consumer_miss_nothing_and_take_no_others_message_for_a_gap(
    broker: Broker, queue: str, collector: Collector
) -> None:
    # Two readers: each sees every other sequence number or so. (The twin gives all to one, which is a share too.)
    await broker.create_consumer(queue, ConsumerConfig("k", (f"{queue}.>",)))
    for _ in range(2):
        await broker.pull(queue, "k", collector.on_message, collector.on_lost, batch=10, shared=True)
    await fill(broker, f"{queue}.a", 200)

    await collector.count(200)

    assert sorted(d.message.seq for d in collector.deliveries) == list(range(1, 201))
    assert not collector.lost


async def test_a_new_consumer_brings_everything_unacknowledged_in_order(
    broker: Broker, queue: str, collector: Collector, consume: Consume
) -> None:
    """Take-over: the old owner has 1 to 4 in hand and has acknowledged 2; the new owner gets 1, 3, 4, 5."""
    await fill(broker, f"{queue}.a", 4)
    await consume(collector)
    await collector.count(4)
    await broker.ack(collector.deliveries[1])

    assert await broker.delete_consumer(queue, "k")
    await broker.create_consumer(queue, ConsumerConfig("k2", (f"{queue}.>",)))
    await fill(broker, f"{queue}.b", 1)
    newer = Collector()
    await broker.pull(queue, "k2", newer.on_message, newer.on_lost)
    await newer.count(4)

    assert [d.message.seq for d in newer.deliveries] == [1, 3, 4, 5]
    assert "onsumer" in await collector.loss()


async def test_a_late_acknowledgement_of_a_deleted_consumer_changes_nothing(
    broker: Broker, queue: str, collector: Collector, consume: Consume
) -> None:
    await fill(broker, f"{queue}.a", 1)
    await consume(collector)
    (delivery,) = await collector.count(1)
    await broker.delete_consumer(queue, "k")
    await broker.create_consumer(queue, ConsumerConfig("k2", (f"{queue}.>",)))

    assert not await broker.ack(delivery)

    assert await broker.read(queue, 1) is not None


async def test_an_unacknowledged_message_comes_again_after_its_time(
    broker: Broker, queue: str, collector: Collector
) -> None:
    await fill(broker, f"{queue}.a", 1)
    await broker.create_consumer(queue, ConsumerConfig("k", (f"{queue}.>",), ack_wait=1.0))
    await broker.pull(queue, "k", collector.on_message, collector.on_lost)

    first, second = await collector.count(2)

    assert (first.redelivered, second.redelivered) == (False, True)
    assert first.message.seq == second.message.seq == 1
    assert second.consumer_seq == 2


async def test_the_window_bounds_what_is_unacknowledged(
    broker: Broker, queue: str, collector: Collector
) -> None:
    await fill(broker, f"{queue}.a", 5)
    await broker.create_consumer(queue, ConsumerConfig("k", (f"{queue}.>",), max_ack_pending=2))
    await broker.pull(queue, "k", collector.on_message, collector.on_lost)
    await collector.count(2)

    await broker.ack(collector.deliveries[0])
    await collector.count(3)

    assert [d.message.seq for d in collector.deliveries] == [1, 2, 3]


async def test_a_consumer_gets_only_what_its_filters_name(
    broker: Broker, queue: str, collector: Collector
) -> None:
    for subject in ("a.x", "b.x", "c.x", "a.y"):
        await broker.publish(Publish(f"{queue}.{subject}"))
    await broker.create_consumer(queue, ConsumerConfig("k", (f"{queue}.a.*", f"{queue}.c.>")))
    await broker.pull(queue, "k", collector.on_message, collector.on_lost)

    await collector.count(3)

    assert [d.message.seq for d in collector.deliveries] == [1, 3, 4]


async def test_overlapping_filters_on_a_work_queue_are_refused(broker: Broker, queue: str) -> None:
    await broker.create_consumer(queue, ConsumerConfig("k", (f"{queue}.a.>",)))
    await broker.create_consumer(queue, ConsumerConfig("other", (f"{queue}.b.>",)))

    with pytest.raises(Refused) as caught:
        await broker.create_consumer(queue, ConsumerConfig("k2", (f"{queue}.a.x",)))

    assert caught.value.code == 10100
    assert sorted(await broker.consumers(queue)) == ["k", "other"]


async def test_creating_the_same_consumer_again_is_fine(broker: Broker, queue: str) -> None:
    config = ConsumerConfig("k", (f"{queue}.>",))
    await broker.create_consumer(queue, config)
    await broker.create_consumer(queue, config)

    assert list(await broker.consumers(queue)) == ["k"]


async def test_deleting_a_consumer_that_is_not_there_says_so(broker: Broker, queue: str) -> None:
    assert not await broker.delete_consumer(queue, "k")


async def test_pulling_from_no_consumer_is_refused(broker: Broker, queue: str, collector: Collector) -> None:
    with pytest.raises(Refused):
        await broker.pull(queue, "nope", collector.on_message, collector.on_lost)


async def test_a_stopped_pull_brings_nothing_more_and_tells_no_loss(
    world: World, broker: Broker, queue: str, collector: Collector, consume: Consume
) -> None:
    pull = await consume(collector)
    await fill(broker, f"{queue}.a", 1)
    await collector.count(1)
    await pull.stop()
    await pull.stop()

    await broker.delete_consumer(queue, "k")
    await broker.create_consumer(queue, ConsumerConfig("k2", (f"{queue}.>",)))
    newer = Collector()
    await broker.pull(queue, "k2", newer.on_message, newer.on_lost)
    await fill(broker, f"{queue}.b", 1)
    await newer.count(2)

    assert len(collector.deliveries) == 1
    assert not collector.lost


async def test_a_deleted_message_is_not_delivered(
    broker: Broker, queue: str, collector: Collector, consume: Consume
) -> None:
    await fill(broker, f"{queue}.a", 3)
    await broker.delete(queue, 2)
    await consume(collector)

    await collector.count(2)

    assert [d.message.seq for d in collector.deliveries] == [1, 3]
    assert [d.consumer_seq for d in collector.deliveries] == [1, 2]


async def test_a_handler_that_fails_ends_the_pull_because_it_may_have_missed_a_message(
    broker: Broker, queue: str, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(delivery: Delivery) -> None:
        raise RuntimeError("a bug above")

    await broker.create_consumer(queue, ConsumerConfig("k", (f"{queue}.>",)))
    await broker.pull(queue, "k", broken, collector.on_lost)
    await fill(broker, f"{queue}.a", 1)

    assert "handler failed" in await collector.loss()
    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert await broker.read(queue, 1) is not None

"""What time brings about: TTLs, markers, schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sojourn.broker.errors import Refused
from sojourn.broker.seam import Broker, ConsumerConfig, Publish, StreamConfig

from .conftest import Collector, World


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that only the passing of time brings and no event announces."""
    async with asyncio.timeout(10):
        while not await holds():  # noqa: ASYNC110  # the broker announces the end of a TTL to nobody
            await asyncio.sleep(0.02)


@pytest.fixture
async def clockwork(world: World, broker: Broker) -> str:
    """A work queue with schedules."""
    name = world.name()
    await broker.create_stream(
        StreamConfig(name, (f"{name}.>",), retention="workqueue", allow_schedules=True, allow_ttl=True)
    )
    return name


async def test_a_message_goes_when_its_time_is_over(broker: Broker, stream: str) -> None:
    await broker.publish(Publish(f"{stream}.a", b"x", ttl=1))
    assert await broker.read_last(stream, f"{stream}.a") is not None

    async def gone() -> bool:
        return await broker.read_last(stream, f"{stream}.a") is None

    await until(gone)
    await broker.publish(Publish(f"{stream}.a", expect_last=0))


async def test_a_renewed_lease_lives_by_its_newest_message(world: World, broker: Broker) -> None:
    """The TTL belongs to a message: the old one's end must not take the key of the new one."""
    name = world.name()
    await broker.create_stream(
        StreamConfig(name, (f"{name}.>",), discard="new", max_msgs_per_subject=1, allow_ttl=True)
    )
    first = await broker.publish(Publish(f"{name}.lease", b"1", ttl=1))
    await broker.publish(Publish(f"{name}.lease", b"2", ttl=60, expect_last=first.seq))
    await broker.publish(Publish(f"{name}.other", b"x", ttl=2))

    async def other_gone() -> bool:
        return await broker.read_last(name, f"{name}.other") is None

    await until(other_gone)
    kept = await broker.read_last(name, f"{name}.lease")
    assert kept is not None
    assert kept.payload == b"2"


async def test_a_marker_says_that_the_last_message_of_a_subject_went(world: World, broker: Broker) -> None:
    name = world.name()
    await broker.create_stream(
        StreamConfig(name, (f"{name}.>",), allow_ttl=True, allow_rollup=True, marker_ttl=1.0)
    )
    await broker.publish(Publish(f"{name}.a", b"x", ttl=1))

    async def marked() -> bool:
        last = await broker.read_last(name, f"{name}.a")
        return last is not None and last.headers.get("Nats-Marker-Reason") == "MaxAge"

    await until(marked)
    last = await broker.read_last(name, f"{name}.a")
    assert last is not None
    assert (last.payload, last.seq) == (b"", 2)


async def test_a_time_to_live_is_never_shorter_than_the_markers(world: World, broker: Broker) -> None:
    """A surprise of the server: a lease of a second on a bucket with markers of a minute lives a minute."""
    name = world.name()
    await broker.create_stream(
        StreamConfig(name, (f"{name}.>",), allow_ttl=True, allow_rollup=True, marker_ttl=60.0)
    )
    plain = world.name()
    await broker.create_stream(StreamConfig(plain, (f"{plain}.>",), allow_ttl=True))
    await broker.publish(Publish(f"{name}.a", b"x", ttl=1))
    await broker.publish(Publish(f"{plain}.a", b"x", ttl=1))

    async def other_gone() -> bool:
        return await broker.read_last(plain, f"{plain}.a") is None

    await until(other_gone)
    assert await broker.read_last(name, f"{name}.a") is not None


async def test_a_schedule_fires_once_with_its_headers_and_payload(
    broker: Broker, clockwork: str, collector: Collector
) -> None:
    await broker.create_consumer(clockwork, ConsumerConfig("k", (f"{clockwork}.wake.>",)))
    await broker.pull(clockwork, "k", collector.on_message, collector.on_lost)
    now = (await broker.stream_info(clockwork)).now
    await broker.publish(
        Publish(
            f"{clockwork}.timer.1",
            b"p",
            {"Sj-Run": "r"},
            schedule_at=now + 0.3,
            schedule_target=f"{clockwork}.wake.a",
        )
    )
    assert not collector.deliveries

    (delivery,) = await collector.count(1)

    message = delivery.message
    assert (message.subject, message.payload) == (f"{clockwork}.wake.a", b"p")
    assert (message.headers["Sj-Run"], message.headers["Nats-Scheduler"]) == ("r", f"{clockwork}.timer.1")
    assert message.time >= now + 0.3
    assert await broker.read_last(clockwork, f"{clockwork}.timer.1") is None


async def test_a_schedule_in_the_past_fires(broker: Broker, clockwork: str, collector: Collector) -> None:
    await broker.create_consumer(clockwork, ConsumerConfig("k", (f"{clockwork}.wake.>",)))
    await broker.pull(clockwork, "k", collector.on_message, collector.on_lost)
    await broker.publish(
        Publish(f"{clockwork}.timer.1", schedule_at=1_000_000.0, schedule_target=f"{clockwork}.wake.a")
    )

    await collector.count(1)


async def test_a_schedule_replaces_the_one_on_its_subject(broker: Broker, clockwork: str) -> None:
    now = (await broker.stream_info(clockwork)).now
    for ahead in (1000.0, 10 * 365 * 86400.0):
        await broker.publish(
            Publish(f"{clockwork}.timer.1", schedule_at=now + ahead, schedule_target=f"{clockwork}.wake.a")
        )

    assert dict(await broker.subjects(clockwork, ">")) == {f"{clockwork}.timer.1": 1}


async def test_a_carrier_cancels_a_schedule_and_goes_by_itself(broker: Broker, clockwork: str) -> None:
    now = (await broker.stream_info(clockwork)).now
    await broker.publish(
        Publish(f"{clockwork}.timer.1", schedule_at=now + 1000, schedule_target=f"{clockwork}.wake.a")
    )
    await broker.publish(Publish(f"{clockwork}.timer.off", ttl=1, cancel_schedule=f"{clockwork}.timer.1"))

    assert await broker.read_last(clockwork, f"{clockwork}.timer.1") is None

    async def empty() -> bool:
        return (await broker.stream_info(clockwork)).messages == 0

    await until(empty)


async def test_cancelling_a_schedule_that_is_not_there_is_fine(broker: Broker, clockwork: str) -> None:
    await broker.publish(Publish(f"{clockwork}.timer.off", ttl=1, cancel_schedule=f"{clockwork}.timer.1"))


async def test_a_schedule_cannot_cancel_itself(broker: Broker, clockwork: str) -> None:
    with pytest.raises(Refused) as caught:
        await broker.publish(Publish(f"{clockwork}.timer.1", cancel_schedule=f"{clockwork}.timer.1"))

    assert caught.value.code == 10212


async def test_a_schedule_for_another_stream_is_refused(broker: Broker, clockwork: str) -> None:
    with pytest.raises(Refused) as caught:
        await broker.publish(Publish(f"{clockwork}.timer.1", schedule_at=2e9, schedule_target="elsewhere.a"))

    assert caught.value.code == 10190


async def test_a_stream_with_schedules_cannot_discard_new(world: World, broker: Broker) -> None:
    name = world.name()

    with pytest.raises(Refused) as caught:
        await broker.create_stream(StreamConfig(name, (f"{name}.>",), discard="new", allow_schedules=True))

    assert caught.value.code == 10052

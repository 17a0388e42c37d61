"""The twin's faults and its virtual time: what upper layers' tests rely on."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.broker.errors import OutcomeUnknown, WrongLastSequence
from sojourn.broker.memory import MemoryServer
from sojourn.broker.memory_faults import Fault
from sojourn.broker.seam import Broker, ConsumerConfig, Delivery, Publish, StreamConfig


class VirtualClock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def server(clock: VirtualClock) -> MemoryServer:
    return MemoryServer(clock, timers=False)


@pytest.fixture
async def broker(server: MemoryServer) -> Broker:
    broker = await server.connect()
    await broker.create_stream(
        StreamConfig("S", ("S.>",), retention="workqueue", allow_ttl=True, allow_schedules=True)
    )
    return broker


async def test_a_dropped_write_never_arrives(server: MemoryServer, broker: Broker) -> None:
    server.faults.inject(Fault.DROP)
    with pytest.raises(OutcomeUnknown):
        await broker.publish(Publish("S.a"))

    assert await broker.read_last("S", "S.a") is None
    await broker.publish(Publish("S.a"))


async def test_a_lost_reply_leaves_the_write_stored(server: MemoryServer, broker: Broker) -> None:
    server.faults.inject(Fault.LOSE_REPLY)
    with pytest.raises(OutcomeUnknown):
        await broker.publish(Publish("S.a"))

    assert await broker.read_last("S", "S.a") is not None


async def test_a_delayed_write_arrives_late_on_its_own_merits(server: MemoryServer, broker: Broker) -> None:
    server.faults.inject(Fault.DELAY, times=2)
    for payload in (b"late", b"later"):
        with pytest.raises(OutcomeUnknown):
            await broker.publish(Publish("S.a", payload, expect_last=0))
    assert await broker.read_last("S", "S.a") is None

    assert server.release_delayed() == 2

    stored = await broker.read_last("S", "S.a")
    assert stored is not None
    assert stored.payload == b"late"


async def test_a_delayed_write_loses_against_one_that_came_before_it(
    server: MemoryServer, broker: Broker
) -> None:
    server.faults.inject(Fault.DELAY)
    with pytest.raises(OutcomeUnknown):
        await broker.publish(Publish("S.a", b"late", expect_last=0))
    await broker.publish(Publish("S.a", b"first", expect_last=0))

    server.release_delayed()

    stored = await broker.read_last("S", "S.a")
    assert stored is not None
    assert stored.payload == b"first"


async def test_faults_can_choose_their_operations(server: MemoryServer, broker: Broker) -> None:
    server.faults.inject(
        Fault.DROP, when=lambda operation, messages: bool(messages) and messages[0].subject == "S.b"
    )
    await broker.publish(Publish("S.a"))

    with pytest.raises(OutcomeUnknown):
        await broker.publish(Publish("S.b"))


async def test_a_cut_connection_refuses_everything_and_ends_pulls(
    server: MemoryServer, broker: Broker
) -> None:
    seen: list[bool] = []
    lost: list[str] = []
    broker.on_connection(seen.append)
    await broker.create_consumer("S", ConsumerConfig("k", ("S.>",)))
    await broker.pull("S", "k", lambda delivery: None, lost.append)

    broker.cut()  # type: ignore[attr-defined]  # the twin's
    with pytest.raises(OutcomeUnknown):
        await broker.publish(Publish("S.a"))
    broker.restore()  # type: ignore[attr-defined]  # the twin's
    await broker.publish(Publish("S.a"))

    assert seen == [False, True]
    assert lost == ["the connection was cut"]


async def test_a_cut_while_an_answer_is_under_way_loses_the_answer(
    server: MemoryServer, broker: Broker
) -> None:
    attempt = asyncio.create_task(broker.publish(Publish("S.a", expect_last=0)))
    while not server.streams["S"].messages:  # noqa: ASYNC110  # step by step until it is stored
        await asyncio.sleep(0)
    broker.cut()  # type: ignore[attr-defined]  # the twin's

    with pytest.raises(OutcomeUnknown):
        await attempt
    broker.restore()  # type: ignore[attr-defined]  # the twin's
    with pytest.raises(WrongLastSequence):
        await broker.publish(Publish("S.a", expect_last=0))


async def test_a_delivery_into_a_dead_connection_shows_as_a_gap(server: MemoryServer, broker: Broker) -> None:
    got: list[Delivery] = []
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    await broker.create_consumer("S", ConsumerConfig("k", ("S.>",)))
    await broker.pull("S", "k", got.append, lost.set_result)
    server.faults.inject(Fault.DROP, when=lambda operation, messages: operation == "deliver")

    await broker.publish(Publish("S.a"))

    assert (await lost).startswith("gap: ")
    assert not got


async def test_nothing_happens_before_its_time_and_everything_after(
    server: MemoryServer, broker: Broker, clock: VirtualClock
) -> None:
    await broker.publish(Publish("S.lease", ttl=30))
    await broker.publish(Publish("S.timer.1", schedule_at=clock.now + 86400.0, schedule_target="S.wake"))
    assert server.next_due() == clock.now + 30

    clock.now += 86399.0
    server.advance()
    assert await broker.read_last("S", "S.lease") is None
    assert await broker.read_last("S", "S.wake") is None
    assert server.next_due() == clock.now + 1

    clock.now += 1.0
    server.advance()
    assert await broker.read_last("S", "S.wake") is not None
    assert server.next_due() is None


async def test_an_unacknowledged_message_comes_again_when_its_hour_is_over(
    server: MemoryServer, broker: Broker, clock: VirtualClock
) -> None:
    got: asyncio.Queue[Delivery] = asyncio.Queue()
    await broker.create_consumer("S", ConsumerConfig("k", ("S.>",)))
    await broker.pull("S", "k", got.put_nowait, lambda reason: None)
    await broker.publish(Publish("S.a"))
    assert not (await got.get()).redelivered

    clock.now += 3600.0
    server.advance()

    assert (await got.get()).redelivered

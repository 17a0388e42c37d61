"""Plain messages: subscriptions, requests, replies."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.broker.errors import NoResponders, OutcomeUnknown
from sojourn.broker.seam import Broker, Publish, Received

from .conftest import World


async def test_a_plain_message_reaches_every_matching_subscription(world: World, broker: Broker) -> None:
    root, other = world.name(), await world.connect()
    received: asyncio.Queue[tuple[str, Received]] = asyncio.Queue()

    async def first(message: Received) -> None:
        received.put_nowait(("first", message))

    async def second(message: Received) -> None:
        received.put_nowait(("second", message))

    await broker.subscribe(f"{root}.*", first)
    await other.subscribe(f"{root}.>", second)
    await asyncio.gather(broker.stream_config("x"), other.stream_config("x"))  # both subscriptions are in
    await broker.send(f"{root}.a", b"x", {"Sj-X": "1"})

    async with asyncio.timeout(5):
        found = dict([await received.get(), await received.get()])
    assert set(found) == {"first", "second"}
    message = found["second"]
    assert (message.subject, message.payload, message.headers["Sj-X"]) == (f"{root}.a", b"x", "1")


async def test_a_request_gets_the_answer(world: World, broker: Broker) -> None:
    root, other = world.name(), await world.connect()

    async def answer(message: Received) -> None:
        await other.reply(message, message.payload + b"!", {"Sj-Y": "2"})

    await other.subscribe(f"{root}.ask", answer)
    await other.stream_config("x")

    reply = await broker.request(f"{root}.ask", b"hello")

    assert (reply.payload, reply.headers["Sj-Y"]) == (b"hello!", "2")


async def test_many_requests_at_once_get_their_own_answers(world: World, broker: Broker) -> None:
    root, other = world.name(), await world.connect()

    async def answer(message: Received) -> None:
        await other.reply(message, message.payload)

    await other.subscribe(f"{root}.ask", answer)
    await other.stream_config("x")

    replies = await asyncio.gather(*(broker.request(f"{root}.ask", b"%d" % n) for n in range(200)))

    assert [reply.payload for reply in replies] == [b"%d" % n for n in range(200)]


async def test_nobody_there_is_told_at_once(world: World, broker: Broker) -> None:
    with pytest.raises(NoResponders) as caught:
        await broker.request(f"{world.name()}.ask")

    assert caught.value.subject.endswith(".ask")


async def test_a_request_without_answer_has_no_known_outcome(world: World, broker: Broker) -> None:
    root = world.name()

    async def silent(message: Received) -> None:
        return

    await broker.subscribe(f"{root}.ask", silent)

    with pytest.raises(OutcomeUnknown):
        await broker.request(f"{root}.ask", timeout=0.05)


async def test_a_stopped_subscription_gets_nothing(world: World, broker: Broker) -> None:
    root = world.name()

    async def never(message: Received) -> None:
        raise AssertionError("stopped")

    subscription = await broker.subscribe(f"{root}.a", never)
    await subscription.stop()
    await subscription.stop()

    with pytest.raises(NoResponders):
        await broker.request(f"{root}.a")


async def test_a_plain_message_on_a_streams_subject_is_stored_too(broker: Broker, stream: str) -> None:
    """A signal needs no SDK: `nats pub` is enough."""
    await broker.send(f"{stream}.a", b"x")
    await broker.publish(Publish(f"{stream}.b"))  # the same connection: behind it in order

    stored = await broker.read_last(stream, f"{stream}.a")

    assert stored is not None
    assert stored.payload == b"x"

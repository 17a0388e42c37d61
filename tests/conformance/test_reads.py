"""Reads: by sequence, by subject, in order, and what a stream says of itself."""

from __future__ import annotations

import pytest
from sojourn.broker.errors import StreamNotFound
from sojourn.broker.seam import Broker, Publish, StreamConfig

from .conftest import World, fill


async def test_what_is_not_stored_reads_as_none(broker: Broker, stream: str) -> None:
    await fill(broker, f"{stream}.a", 1)

    assert await broker.read(stream, 0) is None
    assert await broker.read(stream, 9) is None
    assert await broker.read_last(stream, f"{stream}.b") is None
    assert await broker.read_next(stream, f"{stream}.b", 1) is None
    assert await broker.read_next(stream, f"{stream}.>", 2) is None


async def test_the_last_message_of_a_subject_is_read(broker: Broker, stream: str) -> None:
    await fill(broker, f"{stream}.a", 3)
    await fill(broker, f"{stream}.b", 1)

    stored = await broker.read_last(stream, f"{stream}.a")

    assert stored is not None
    assert (stored.seq, stored.payload) == (3, b"2")


async def test_the_next_message_under_a_filter_is_read(broker: Broker, stream: str) -> None:
    await fill(broker, f"{stream}.p.a", 2)
    await fill(broker, f"{stream}.q", 1)
    await fill(broker, f"{stream}.p.b", 1)

    found = await broker.read_next(stream, f"{stream}.p.>", 3)

    assert found is not None
    assert (found.seq, found.subject) == (4, f"{stream}.p.b")


async def test_a_scan_gives_everything_under_its_filter_in_order(broker: Broker, stream: str) -> None:
    await broker.publish_batch([Publish(f"{stream}.{'ab'[n % 2]}", b"%d" % n) for n in range(700)])

    found = [int(s.payload) async for s in broker.scan(stream, f"{stream}.a")]

    assert found == list(range(0, 700, 2))


async def test_a_scan_starts_and_stops_where_it_is_told(broker: Broker, stream: str) -> None:
    await fill(broker, f"{stream}.a", 6)

    found = [s.seq async for s in broker.scan(stream, f"{stream}.>", from_seq=3, limit=2)]

    assert found == [3, 4]


async def test_a_scan_of_nothing_ends(broker: Broker, stream: str) -> None:
    assert [s async for s in broker.scan(stream, f"{stream}.>")] == []


async def test_a_scan_carries_headers_and_times_as_a_leader_read_does(broker: Broker, stream: str) -> None:
    await broker.publish(Publish(f"{stream}.a", b"x", {"Sj-X": "1"}))

    scanned = [s async for s in broker.scan(stream, f"{stream}.>")]

    assert scanned == [await broker.read(stream, 1)]


async def test_subjects_are_counted(broker: Broker, stream: str) -> None:
    await fill(broker, f"{stream}.p.a", 2)
    await fill(broker, f"{stream}.p.b", 1)
    await fill(broker, f"{stream}.q", 1)

    assert dict(await broker.subjects(stream, f"{stream}.p.*")) == {f"{stream}.p.a": 2, f"{stream}.p.b": 1}


async def test_deleting_what_is_gone_says_so_wherever_in_the_stream_it_was(
    broker: Broker, stream: str
) -> None:
    await fill(broker, f"{stream}.a", 5)
    for seq in (3, 1, 5):  # between others, the first, the last: the server has a word of its own for each
        assert await broker.delete(stream, seq)
        assert not await broker.delete(stream, seq)
    assert not await broker.delete(stream, 99)


async def test_a_message_is_deleted_once(broker: Broker, stream: str) -> None:
    await fill(broker, f"{stream}.a", 2)

    assert await broker.delete(stream, 1)
    assert not await broker.delete(stream, 1)
    assert await broker.read(stream, 1) is None


async def test_a_purge_takes_only_what_is_under_its_filter(broker: Broker, stream: str) -> None:
    await fill(broker, f"{stream}.a", 2)
    await fill(broker, f"{stream}.b", 1)

    assert await broker.purge(stream, f"{stream}.a") == 2
    assert [s.subject async for s in broker.scan(stream, f"{stream}.>")] == [f"{stream}.b"]


async def test_a_stream_tells_its_state_and_the_brokers_time(broker: Broker, stream: str) -> None:
    empty = await broker.stream_info(stream)
    await fill(broker, f"{stream}.a", 3)
    await broker.delete(stream, 1)

    info = await broker.stream_info(stream)

    assert (info.name, info.messages, info.first_seq, info.last_seq) == (stream, 2, 2, 3)
    assert info.created == empty.created
    assert info.bytes > 0
    assert info.now >= empty.now


async def test_a_stream_made_anew_has_another_creation_time(broker: Broker, world: World) -> None:
    """The identity of an event contains it: sequences start again in a new stream."""
    infos = []
    for _ in range(2):
        name = world.name()
        await broker.create_stream(StreamConfig(name, (f"{name}.>",)))
        infos.append((await broker.stream_info(name)).created)

    assert infos[0] < infos[1]


async def test_every_question_about_a_missing_stream_says_so(broker: Broker) -> None:
    for ask in (
        lambda: broker.stream_info("nope"),
        lambda: broker.read("nope", 1),
        lambda: broker.read_last("nope", "a"),
        lambda: broker.subjects("nope", ">"),
        lambda: broker.consumers("nope"),
        lambda: broker.purge("nope", ">"),
        lambda: anext(broker.scan("nope", ">")),
    ):
        with pytest.raises(StreamNotFound) as caught:
            await ask()
        assert caught.value.name == "nope"
    assert await broker.stream_config("nope") is None

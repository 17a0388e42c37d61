"""Writes: expectations, limits, refusals, duplicates, roll-up, batches."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.broker.errors import BrokerClosed, MailboxFull, OutcomeUnknown, Refused, WrongLastSequence
from sojourn.broker.seam import Broker, Publish, StreamConfig
from sojourn.broker.subjects import Subjects, actor_id, channel_name

from .conftest import World


async def test_a_stored_message_reads_back_as_it_was_published(broker: Broker, stream: str) -> None:
    ack = await broker.publish(Publish(f"{stream}.a", b"\x00\xff", {"Sj-X": "1"}))

    stored = await broker.read(stream, ack.seq)

    assert stored is not None
    assert (ack.stream, ack.seq, ack.duplicate) == (stream, 1, False)
    assert (stored.stream, stored.seq, stored.subject) == (stream, 1, f"{stream}.a")
    assert (stored.payload, stored.headers["Sj-X"]) == (b"\x00\xff", "1")


async def test_expecting_no_message_stores_only_the_first(broker: Broker, stream: str) -> None:
    await broker.publish(Publish(f"{stream}.a", expect_last=0))

    with pytest.raises(WrongLastSequence) as caught:
        await broker.publish(Publish(f"{stream}.a", expect_last=0))

    assert (caught.value.actual, caught.value.expected) == (1, 0)


async def test_an_expectation_is_about_the_subject_not_the_stream(broker: Broker, stream: str) -> None:
    first = await broker.publish(Publish(f"{stream}.a", expect_last=0))
    await broker.publish(Publish(f"{stream}.b", expect_last=0))

    third = await broker.publish(Publish(f"{stream}.a", expect_last=first.seq))

    assert third.seq == 3


async def test_an_expectation_can_be_about_a_filter(broker: Broker, stream: str) -> None:
    await broker.publish(Publish(f"{stream}.p.a"))
    second = await broker.publish(Publish(f"{stream}.p.b"))
    await broker.publish(Publish(f"{stream}.q.a"))

    with pytest.raises(WrongLastSequence) as caught:
        await broker.publish(Publish(f"{stream}.p.c", expect_last=1, expect_filter=f"{stream}.p.>"))
    stored = await broker.publish(
        Publish(f"{stream}.p.c", expect_last=second.seq, expect_filter=f"{stream}.p.>")
    )

    assert caught.value.actual == second.seq
    assert stored.seq == 4


async def test_a_deleted_last_message_no_longer_counts_for_expectations(broker: Broker, stream: str) -> None:
    first = await broker.publish(Publish(f"{stream}.a"))
    second = await broker.publish(Publish(f"{stream}.a"))
    await broker.delete(stream, second.seq)

    with pytest.raises(WrongLastSequence):
        await broker.publish(Publish(f"{stream}.a", expect_last=second.seq))
    await broker.publish(Publish(f"{stream}.a", expect_last=first.seq))


async def test_of_many_racing_creators_exactly_one_stores(broker: Broker, stream: str) -> None:
    outcomes = await asyncio.gather(
        *(broker.publish(Publish(f"{stream}.a", b"%d" % n, expect_last=0)) for n in range(20)),
        return_exceptions=True,
    )

    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, WrongLastSequence) for outcome in outcomes) == 19


async def test_a_roll_up_leaves_only_itself_of_its_subject(broker: Broker, stream: str) -> None:
    for subject in ("a", "b", "a"):
        await broker.publish(Publish(f"{stream}.{subject}"))

    await broker.publish(Publish(f"{stream}.a", b"new", rollup=True))

    left = [(s.subject, s.payload) async for s in broker.scan(stream, f"{stream}.>")]
    assert left == [(f"{stream}.b", b""), (f"{stream}.a", b"new")]


async def test_a_roll_up_is_refused_where_the_stream_does_not_allow_it(broker: Broker, queue: str) -> None:
    await broker.publish(Publish(f"{queue}.a"))

    with pytest.raises(Refused) as caught:
        await broker.publish(Publish(f"{queue}.b", headers={"Nats-Rollup": "all"}))

    assert caught.value.code == 10111
    assert (await broker.stream_info(queue)).messages == 1


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Nats-TTL": "5"}, 10166),
        ({"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target": "x.y"}, 10188),
        ({"Nats-Schedule-Next": "purge", "Nats-Scheduler": "x.y"}, 10188),
        ({"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"}, 10174),
    ],
)
async def test_a_stream_without_flags_refuses_headers_that_act(
    broker: Broker, queue: str, headers: dict[str, str], code: int
) -> None:
    with pytest.raises(Refused) as caught:
        await broker.publish(Publish(f"{queue}.a", headers=headers))

    assert caught.value.code == code


async def test_the_same_message_id_is_stored_once_in_the_stream(broker: Broker, stream: str) -> None:
    first = await broker.publish(Publish(f"{stream}.a", b"1", msg_id="m"))
    again = await broker.publish(Publish(f"{stream}.b", b"2", msg_id="m"))

    assert (again.seq, again.duplicate) == (first.seq, True)
    assert (await broker.stream_info(stream)).messages == 1


async def test_a_full_subject_refuses_and_other_subjects_do_not(world: World, broker: Broker) -> None:
    name = world.name()
    await broker.create_stream(
        StreamConfig(
            name, (f"{name}.>",), discard="new", max_msgs_per_subject=2, discard_new_per_subject=True
        )
    )
    for _ in range(2):
        await broker.publish(Publish(f"{name}.a"))

    with pytest.raises(MailboxFull) as caught:
        await broker.publish(Publish(f"{name}.a"))
    await broker.publish(Publish(f"{name}.b"))

    assert caught.value.subject == f"{name}.a"


async def test_a_stream_that_is_full_in_bytes_refuses(world: World, broker: Broker) -> None:
    name = world.name()
    await broker.create_stream(StreamConfig(name, (f"{name}.>",), discard="new", max_bytes=4096))
    await broker.publish(Publish(f"{name}.a", bytes(3000)))

    with pytest.raises(MailboxFull):
        await broker.publish(Publish(f"{name}.b", bytes(3000)))


async def test_a_message_over_the_size_limit_is_refused(world: World, broker: Broker) -> None:
    name = world.name()
    await broker.create_stream(StreamConfig(name, (f"{name}.>",), max_msg_size=100))

    with pytest.raises(Refused) as caught:
        await broker.publish(Publish(f"{name}.a", bytes(200)))

    assert caught.value.code == 10054


async def test_a_bucket_keeps_as_many_revisions_as_its_history(world: World, broker: Broker) -> None:
    name = world.name()
    await broker.create_stream(StreamConfig(name, (f"{name}.>",), discard="new", max_msgs_per_subject=2))
    for n in range(5):
        await broker.publish(Publish(f"{name}.a", b"%d" % n, expect_last=n))

    assert [s.payload async for s in broker.scan(name, f"{name}.>")] == [b"3", b"4"]


async def test_publishing_to_no_stream_has_no_known_outcome(broker: Broker) -> None:
    with pytest.raises(OutcomeUnknown):
        await broker.publish(Publish("no.such.stream"))


async def test_a_batch_is_stored_whole_and_acknowledged_with_its_last_sequence(
    broker: Broker, stream: str
) -> None:
    await broker.publish(Publish(f"{stream}.a"))

    ack = await broker.publish_batch([Publish(f"{stream}.a", b"%d" % n) for n in range(3)])

    assert ack.seq == 4
    assert [s.payload async for s in broker.scan(stream, f"{stream}.>", from_seq=2)] == [b"0", b"1", b"2"]


async def test_a_batch_with_one_failed_expectation_stores_nothing(broker: Broker, stream: str) -> None:
    await broker.publish(Publish(f"{stream}.b"))

    with pytest.raises(WrongLastSequence) as caught:
        await broker.publish_batch(
            [
                Publish(f"{stream}.a", expect_last=0),
                Publish(f"{stream}.b", expect_last=0),
                Publish(f"{stream}.c"),
            ]
        )

    assert caught.value.actual == 1
    assert (await broker.stream_info(stream)).messages == 1


async def test_a_batch_is_judged_by_the_state_before_it(broker: Broker, stream: str) -> None:
    """A fence and the events it closes share a filter; the expectation on it must not see the batch's own
    messages.
    """
    fence = await broker.publish(Publish(f"{stream}.p.fence", rollup=True))
    mark = {"expect_last": fence.seq, "expect_filter": f"{stream}.p.>"}

    ack = await broker.publish_batch(
        [
            Publish(f"{stream}.p.a", **mark),
            Publish(f"{stream}.p.a"),
            Publish(f"{stream}.p.fence", rollup=True),
        ]
    )

    assert ack.seq == fence.seq + 3
    assert dict(await broker.subjects(stream, f"{stream}.p.>")) == {
        f"{stream}.p.a": 2,
        f"{stream}.p.fence": 1,
    }


async def test_a_batch_over_a_limit_stores_nothing(world: World, broker: Broker) -> None:
    name = world.name()
    await broker.create_stream(
        StreamConfig(
            name,
            (f"{name}.>",),
            discard="new",
            max_msgs_per_subject=2,
            discard_new_per_subject=True,
            allow_atomic=True,
        )
    )

    with pytest.raises(MailboxFull):
        await broker.publish_batch([Publish(f"{name}.a") for _ in range(3)])

    assert (await broker.stream_info(name)).messages == 0


async def test_mail_is_stored_under_the_partition_of_its_actor(broker: Broker, subjects: Subjects) -> None:
    for name in ("order-42", "a", "x" * 128, "=_-"):
        actor = actor_id(name)
        ack = await broker.publish(Publish(subjects.mail(actor, channel_name("c"))))
        stored = await broker.read(subjects.mail_stream, ack.seq)
        assert stored is not None
        assert stored.subject == f"sj.{subjects.namespace}.in.{subjects.partition_of(actor)}.mail.{actor}.c"


async def test_a_record_is_announced_by_its_headers_only(broker: Broker, subjects: Subjects) -> None:
    actor = actor_id("a")
    seen: asyncio.Future[tuple[str, bytes, dict[str, str]]] = asyncio.get_running_loop().create_future()

    async def take(message: object) -> None:
        seen.set_result((message.subject, message.payload, dict(message.headers)))  # type: ignore[attr-defined]  # Received

    await broker.subscribe(subjects.changed(actor), take)
    await broker.publish(Publish(subjects.frame(actor), b"secret", {"Sj-Index": "actor=a"}))

    async with asyncio.timeout(5):
        subject, payload, headers = await seen
    assert (subject, payload) == (subjects.changed(actor), b"")
    assert (headers["Sj-Index"], headers["Nats-Sequence"]) == ("actor=a", "1")


async def test_a_closed_connection_says_so_and_closes_twice(world: World, stream: str) -> None:
    broker = await world.connect()
    await broker.close()
    await broker.close()

    with pytest.raises(BrokerClosed):
        await broker.publish(Publish(f"{stream}.a"))

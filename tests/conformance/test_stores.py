"""What is built over the seam once: records, cluster keys, dead letters, timers, the clock. On both brokers."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.broker import timers
from sojourn.broker.clock import BrokerClock
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.dead import DeadLettered, DeadLetters
from sojourn.broker.errors import WrongLastSequence
from sojourn.broker.frames import FrameStore, Settlement
from sojourn.broker.index_headers import index_headers
from sojourn.broker.seam import Broker, ConsumerConfig, Publish
from sojourn.broker.subjects import Mail, Subjects, Token, actor_id, channel_name, token
from sojourn.broker.topology import Limits, Topology, apply
from sojourn.codecs.record import Index, Origin, Status

from .conftest import Collector, World

ACTOR = actor_id("order-42")
RUN = Token("r1")


@pytest.fixture
def frames(broker: Broker, subjects: Subjects) -> FrameStore:
    return FrameStore(broker, subjects)


@pytest.fixture
def keys(broker: Broker, subjects: Subjects) -> ClusterKeys:
    return ClusterKeys(broker, subjects)


def index(actor: str, transition: int) -> Index:
    return Index(actor, "r1", "onboard", Status.SUSPENDED, transition, 1.0, 2.0, stage="ärger & co")


# records
async def test_a_record_is_created_read_and_changed_by_its_revision(frames: FrameStore) -> None:
    assert await frames.read(ACTOR) is None
    first = await frames.put(ACTOR, b"1", expect=0)
    second = await frames.put(ACTOR, b"2", expect=first)

    record = await frames.read(ACTOR)

    assert record is not None
    assert (record.data, record.revision) == (b"2", second)


async def test_a_commit_over_anothers_commit_is_refused(frames: FrameStore) -> None:
    first = await frames.put(ACTOR, b"1", expect=0)
    await frames.put(ACTOR, b"theirs", expect=first)

    with pytest.raises(WrongLastSequence):
        await frames.put(ACTOR, b"mine", expect=first)


async def test_a_commit_costs_one_round_trip(broker: Broker, frames: FrameStore) -> None:
    first = await frames.put(ACTOR, b"1", expect=0)
    before = broker.requests_sent  # type: ignore[attr-defined]  # both have it; not part of the seam

    await frames.put(ACTOR, b"2", expect=first, headers=index_headers(index(ACTOR, 2)))

    assert broker.requests_sent - before == 1  # type: ignore[attr-defined]  # as above


async def test_an_unknown_outcome_settles_as_stored_old_or_others(frames: FrameStore) -> None:
    first = await frames.put(ACTOR, b"1", expect=0)
    old = await frames.settle(ACTOR, expect=first, is_mine=lambda data: data == b"mine")
    mine = await frames.put(ACTOR, b"mine", expect=first)
    stored = await frames.settle(ACTOR, expect=first, is_mine=lambda data: data == b"mine")
    theirs = await frames.put(ACTOR, b"theirs", expect=mine)
    others = await frames.settle(ACTOR, expect=first, is_mine=lambda data: data == b"mine")

    assert (old.settlement, old.revision) == (Settlement.OLD, first)
    assert (stored.settlement, stored.revision) == (Settlement.STORED, mine)
    assert (others.settlement, others.revision) == (Settlement.OTHERS, theirs)


async def test_a_first_commit_of_unknown_outcome_settles_on_an_empty_key(frames: FrameStore) -> None:
    settled = await frames.settle(ACTOR, expect=0, is_mine=lambda data: True)

    assert (settled.settlement, settled.revision, settled.record) == (Settlement.OLD, 0, None)


async def test_views_read_indexes_from_headers(frames: FrameStore) -> None:
    for n in range(3):
        actor = actor_id(f"a{n}")
        await frames.put(actor, b"x", expect=0, headers=index_headers(index(actor, n)))
    await frames.put_part(actor_id("a1"), Token("map"), 0, b"part", expect=0)

    found = [(facts.actor, facts.transition, facts.stage) async for facts, _ in frames.scan_indexes()]

    assert found == [("a0", 0, "ärger & co"), ("a1", 1, "ärger & co"), ("a2", 2, "ärger & co")]


async def test_a_sealed_record_leaves_only_itself_and_goes_in_time(frames: FrameStore) -> None:
    first = await frames.put(ACTOR, b"1", expect=0)
    await frames.put(ACTOR, b"sealed", expect=first, ttl=1, rollup=True)

    async with asyncio.timeout(10):
        while await frames.read(ACTOR) is not None:  # noqa: ASYNC110  # nothing announces the end of a TTL
            await asyncio.sleep(0.02)
    await frames.put(ACTOR, b"again", expect=0)


# cluster keys
async def test_a_free_key_is_taken_once(keys: ClusterKeys) -> None:
    revision = await keys.put("owner", 7, value=b"a", expect=0)

    with pytest.raises(WrongLastSequence):
        await keys.put("owner", 7, value=b"b", expect=0)

    entry = await keys.get("owner", 7)
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == ("owner.7", b"a", revision)


async def test_keys_are_listed_by_prefix(keys: ClusterKeys) -> None:
    for key in (("node", "a"), ("node", "b"), ("owner", 1)):
        await keys.put(*key, value=b"x")

    assert sorted(await keys.list("node")) == ["node.a", "node.b"]
    assert sorted(await keys.list()) == ["node.a", "node.b", "owner.1", "topology"]


async def test_a_deleted_key_is_free_at_once(keys: ClusterKeys) -> None:
    revision = await keys.put("node", "a", value=b"x", expect=0)
    await keys.delete("node", "a", expect=revision)

    assert await keys.get("node", "a") is None
    assert dict(await keys.list("node")) == {}
    await keys.put("node", "a", value=b"y", expect=0)


# dead letters
@pytest.fixture
async def mail(broker: Broker, subjects: Subjects) -> tuple[Origin, Mail, object]:
    """One stored mail: origin, parsed subject, message."""
    ack = await broker.publish(
        Publish(subjects.mail(ACTOR, channel_name("c")), b"body", {"Sj-X": "1", "Sj-Origin": "forged"})
    )
    stored = await broker.read(subjects.mail_stream, ack.seq)
    assert stored is not None
    created = (await broker.stream_info(subjects.mail_stream)).created
    parsed = subjects.parse(stored.subject)
    assert isinstance(parsed, Mail)
    return Origin("mail", created, ack.seq), parsed, stored


async def test_a_dead_letter_is_written_once_and_reads_back(
    broker: Broker, subjects: Subjects, mail: tuple[Origin, Mail, object]
) -> None:
    dead, (origin, _, stored) = DeadLetters(broker, subjects), mail

    first = await dead.write(origin, stored, "unknown channel", "it has: höhe, b")  # type: ignore[arg-type]  # Stored
    again = await dead.write(origin, stored, "another reason")  # type: ignore[arg-type]  # Stored
    letter = await dead.read(origin)

    assert (first, again) == (DeadLettered.WRITTEN, DeadLettered.ALREADY)
    assert letter is not None
    assert (letter.reason, letter.detail, letter.payload) == ("unknown channel", "it has: höhe, b", b"body")
    assert (letter.origin, letter.subject) == (origin, stored.subject)  # type: ignore[attr-defined]  # Stored
    assert letter.headers["Sj-X"] == "1"
    assert [found async for found in dead.list()] == [letter]
    assert dead.written == {"unknown channel": 1}


async def test_full_dead_letters_drop_mail_from_outside_and_keep_the_rest(
    world: World, broker: Broker
) -> None:
    topology = Topology(namespace=world.name(), app="app", limits=Limits(dead_bytes=4096))
    await apply(broker, topology)
    dead, subjects = DeadLetters(broker, topology.subjects), topology.subjects
    ack = await broker.publish(Publish(subjects.mail(ACTOR, channel_name("c")), bytes(3000)))
    stored = await broker.read(subjects.mail_stream, ack.seq)
    assert stored is not None

    outcomes = [
        await dead.write(Origin(stream, 1, seq), stored, "why")
        for stream, seq in (("mail", 1), ("mail", 2), ("ctl", 1))
    ]

    assert outcomes == [DeadLettered.WRITTEN, DeadLettered.DROPPED, DeadLettered.FULL]
    assert dead.dropped == {"why": 1}


# timers
async def test_an_armed_timer_wakes_its_actor_by_run_and_number(
    broker: Broker, subjects: Subjects, collector: Collector
) -> None:
    p = subjects.partition_of(ACTOR)
    await broker.create_consumer(subjects.wake_stream, ConsumerConfig("k", (subjects.wake_filter(p),)))
    await broker.pull(subjects.wake_stream, "k", collector.on_message, collector.on_lost)
    clock = BrokerClock(broker, subjects.wake_stream)
    await clock.sync()

    await broker.publish(timers.arm(subjects, ACTOR, RUN, 2, at=clock.now() + 3600))
    await broker.publish(timers.arm(subjects, ACTOR, RUN, 3, at=clock.now() + 0.2, payload=b"p"))
    (delivery,) = await collector.count(1)

    assert delivery.message.subject == subjects.wake(ACTOR, timers.TIMER_KIND)
    assert timers.fired(delivery.message.headers) == timers.Fired("r1", 3)
    assert delivery.message.payload == b"p"


async def test_a_disarmed_timer_is_gone(broker: Broker, subjects: Subjects) -> None:
    clock = BrokerClock(broker, subjects.wake_stream)
    await clock.sync()
    await broker.publish(timers.arm(subjects, ACTOR, RUN, 2, at=clock.now() + timers.MAX_AHEAD_SECONDS))

    await broker.publish(timers.disarm(subjects, ACTOR, RUN, 2))
    await broker.publish(timers.disarm(subjects, ACTOR, RUN, 99))

    assert await broker.read_last(subjects.wake_stream, subjects.timer(ACTOR, RUN, 2)) is None


@pytest.mark.parametrize("over", ["fired", "cancelled"])
async def test_a_copy_of_an_arm_that_comes_late_arms_nothing(
    broker: Broker, subjects: Subjects, collector: Collector, over: str
) -> None:
    p = subjects.partition_of(ACTOR)
    await broker.create_consumer(subjects.wake_stream, ConsumerConfig("k", (subjects.wake_filter(p),)))
    await broker.pull(subjects.wake_stream, "k", collector.on_message, collector.on_lost)
    clock = BrokerClock(broker, subjects.wake_stream)
    await clock.sync()
    arm = timers.arm(subjects, ACTOR, RUN, 2, at=clock.now() + (0.2 if over == "fired" else 3600))
    await broker.publish(arm)
    if over == "fired":
        await collector.count(1)
    else:
        await broker.publish(timers.disarm(subjects, ACTOR, RUN, 2))

    late = await broker.publish(arm)

    assert late.duplicate
    assert await broker.read_last(subjects.wake_stream, subjects.timer(ACTOR, RUN, 2)) is None


async def test_a_carrier_is_delivered_to_nobody(
    broker: Broker, subjects: Subjects, collector: Collector
) -> None:
    p = subjects.partition_of(ACTOR)
    await broker.create_consumer(subjects.wake_stream, ConsumerConfig("k", (subjects.wake_filter(p),)))
    await broker.pull(subjects.wake_stream, "k", collector.on_message, collector.on_lost)

    await broker.publish(timers.disarm(subjects, ACTOR, RUN, 2))
    await broker.publish(Publish(subjects.wake(ACTOR, token("nudge"))))
    await collector.count(1)

    assert [d.message.subject for d in collector.deliveries] == [subjects.wake(ACTOR, token("nudge"))]


# the clock
async def test_the_clock_agrees_with_the_broker_whatever_the_local_one_says(
    broker: Broker, subjects: Subjects
) -> None:
    clocks = []
    loop = asyncio.get_running_loop()
    for wrong_by in (0.0, 3600.0):
        clock = BrokerClock(broker, subjects.wake_stream, monotonic=lambda w=wrong_by: loop.time() + w)
        await clock.sync()
        clocks.append(clock)

    first, second = (clock.now() for clock in clocks)

    assert abs(first - second) < 0.5 + sum(clock.uncertainty for clock in clocks)


async def test_the_clock_does_not_step_back(broker: Broker, subjects: Subjects) -> None:
    local = [1000.0]
    clock = BrokerClock(broker, subjects.wake_stream, monotonic=lambda: local[0])
    await clock.sync()
    before = clock.now()
    local[0] -= 50.0

    assert clock.now() == before

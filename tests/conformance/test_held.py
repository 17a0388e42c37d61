"""Held events: fences, atomic moves, unknown outcomes, full subjects. On both brokers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
from sojourn.broker.errors import FencedOff, MoveUnsettled, OutcomeUnknown
from sojourn.broker.held import MAX_MOVE, HeldStore, Move, Moved, MoveRefused
from sojourn.broker.seam import Ack, Broker, Publish, Stored
from sojourn.broker.subjects import Mail, Subjects, Token, actor_id, channel_name
from sojourn.broker.topology import Limits, Topology, apply
from sojourn.codecs.record import Origin

from .conftest import World

ACTOR = actor_id("order-42")
Mails = Callable[..., Awaitable[list[Move]]]


class Unreliable:
    """A connection whose next batches are stored or not, and whose answers to them are lost either way."""

    def __init__(self, broker: Broker, fates: Sequence[bool]) -> None:
        self._broker = broker
        self._fates = list(fates)

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)

    async def publish_batch(self, messages: Sequence[Publish], *, timeout: float = 5.0) -> Ack:
        if not self._fates:
            return await self._broker.publish_batch(messages, timeout=timeout)
        if self._fates.pop(0):
            await self._broker.publish_batch(messages, timeout=timeout)
        raise OutcomeUnknown("publish", messages[-1].subject, "the answer was lost")


@pytest.fixture
def mails(broker: Broker, subjects: Subjects) -> Mails:
    """Publishes mails to `ACTOR` and gives them as moves."""

    async def publish(*payloads: bytes, channel: str = "c") -> list[Move]:
        created = (await broker.stream_info(subjects.mail_stream)).created
        moves = []
        for payload in payloads:
            message = Publish(
                subjects.mail(ACTOR, channel_name(channel)), payload, {"Sj-X": "1", "Sj-Origin": "forged"}
            )
            ack = await broker.publish(message)
            stored = await broker.read(subjects.mail_stream, ack.seq)
            assert stored is not None
            event = subjects.parse(stored.subject)
            moves.append(Move(event, stored, Origin("mail", created, ack.seq)))  # type: ignore[arg-type]  # Mail
        return moves

    return publish


@pytest.fixture
def p(subjects: Subjects) -> int:
    return subjects.partition_of(ACTOR)


@pytest.fixture
def held(broker: Broker, subjects: Subjects) -> HeldStore:
    return HeldStore(broker, subjects, node="n1", patience=0.0)  # one server: no leader is behind


async def test_moved_events_are_listed_with_their_origin_in_order(
    held: HeldStore, mails: Mails, p: int
) -> None:
    await held.fence(p, 1)
    moves = await mails(b"a", b"b", b"c")

    result = await held.move(p, moves)
    events = await held.list(p)

    assert isinstance(result, Moved)
    assert [event.seq for event in events] == list(result.seqs)
    assert [(e.actor, e.kind, e.name, e.payload) for e in events] == [
        (ACTOR, "mail", "c", payload) for payload in (b"a", b"b", b"c")
    ]
    assert [event.origin for event in events] == [move.origin for move in moves]
    assert all(abs(e.time - m.stored.time) < 0.001 for e, m in zip(events, moves, strict=True))
    assert dict(events[0].headers) == {"Sj-X": "1"}
    assert list(await held.of_actor(ACTOR)) == list(events)


async def test_moves_follow_each_other(held: HeldStore, mails: Mails, p: int) -> None:
    await held.fence(p, 1)
    for payload in (b"a", b"b", b"c"):
        assert isinstance(await held.move(p, await mails(payload)), Moved)

    assert [event.payload for event in await held.list(p)] == [b"a", b"b", b"c"]


async def test_a_deleted_event_is_gone_and_moves_go_on(held: HeldStore, mails: Mails, p: int) -> None:
    await held.fence(p, 1)
    result = await held.move(p, await mails(b"a", b"b"))
    assert isinstance(result, Moved)
    first, second = (seq for seq in result.seqs if seq is not None)

    assert await held.delete(first)
    assert not await held.delete(first)

    assert await held.stored_among([first, second, 10**9]) == {second}
    assert isinstance(await held.move(p, await mails(b"c")), Moved)
    assert [event.payload for event in await held.list(p)] == [b"b", b"c"]


async def test_a_former_owner_can_move_nothing(
    broker: Broker, subjects: Subjects, held: HeldStore, mails: Mails, p: int
) -> None:
    await held.fence(p, 1)
    successor = HeldStore(broker, subjects)
    await successor.fence(p, 2)

    with pytest.raises(FencedOff) as caught:
        await held.move(p, await mails(b"late"))
    with pytest.raises(FencedOff):
        await held.fence(p, 1)

    assert (caught.value.own_epoch, caught.value.found_epoch) == (1, 2)
    assert list(await successor.list(p)) == []


async def test_a_new_owner_lists_what_the_former_one_moved(
    broker: Broker, subjects: Subjects, held: HeldStore, mails: Mails, p: int
) -> None:
    await held.fence(p, 1)
    await held.move(p, await mails(b"a"))
    successor = HeldStore(broker, subjects)
    await successor.fence(p, 2)

    assert [event.payload for event in await successor.list(p)] == [b"a"]


async def test_the_same_owner_attaches_again_under_a_new_epoch(held: HeldStore, mails: Mails, p: int) -> None:
    await held.fence(p, 1)
    await held.move(p, await mails(b"a"))
    await held.fence(p, 2)

    assert isinstance(await held.move(p, await mails(b"b")), Moved)
    assert [event.payload for event in await held.list(p)] == [b"a", b"b"]


async def test_a_move_whose_answer_was_lost_is_stored_once(
    broker: Broker, subjects: Subjects, mails: Mails, p: int
) -> None:
    held = HeldStore(Unreliable(broker, [True]), subjects)  # type: ignore[arg-type]  # the seam by delegation
    await held.fence(p, 1)

    result = await held.move(p, await mails(b"a", b"b"))

    assert isinstance(result, Moved)
    events = await held.list(p)
    assert [event.payload for event in events] == [b"a", b"b"]
    assert [event.seq for event in events] == list(result.seqs)


async def test_a_move_that_never_arrived_is_sent_again(
    broker: Broker, subjects: Subjects, mails: Mails, p: int
) -> None:
    held = HeldStore(Unreliable(broker, [False, False]), subjects)  # type: ignore[arg-type]  # the seam by delegation
    await held.fence(p, 1)

    assert isinstance(await held.move(p, await mails(b"a")), Moved)
    assert [event.payload for event in await held.list(p)] == [b"a"]


async def test_a_move_that_stays_unknown_is_repeated_before_anything_else(
    broker: Broker, subjects: Subjects, mails: Mails, p: int
) -> None:
    """The third try is stored and its answer lost; the caller must repeat the same events, and they stay one."""
    held = HeldStore(Unreliable(broker, [False, False, True]), subjects)  # type: ignore[arg-type]  # the seam by delegation
    await held.fence(p, 1)
    moves = await mails(b"a")
    with pytest.raises(MoveUnsettled):
        await held.move(p, moves)
    with pytest.raises(ValueError, match="unsettled"):
        await held.move(p, await mails(b"other"))

    assert isinstance(await held.move(p, moves), Moved)

    assert [event.payload for event in await held.list(p)] == [b"a"]
    assert isinstance(await held.move(p, await mails(b"b")), Moved)


async def test_a_move_of_unknown_outcome_is_settled_against_a_later_owner(
    broker: Broker, subjects: Subjects, mails: Mails, p: int
) -> None:
    """It was stored, then the new owner fenced and lists it: the old one must not store it a second time."""
    held = HeldStore(Unreliable(broker, [True, False, False]), subjects)  # type: ignore[arg-type]  # the seam by delegation
    await held.fence(p, 1)
    moves = await mails(b"a")
    with pytest.raises(MoveUnsettled):
        await held.move(p, moves)
    successor = HeldStore(broker, subjects)
    await successor.fence(p, 2)

    with pytest.raises(FencedOff):
        await held.move(p, moves)

    assert [event.payload for event in await successor.list(p)] == [b"a"]


async def test_a_stray_write_makes_the_owner_list_again(
    broker: Broker, subjects: Subjects, held: HeldStore, mails: Mails, p: int
) -> None:
    """A fence of the same epoch from elsewhere: not a reason to leave, but what is held must be looked at
    again.
    """
    await held.fence(p, 1)
    twin = HeldStore(broker, subjects)
    await twin.fence(p, 1)

    assert await held.move(p, await mails(b"a")) == MoveRefused(1)


async def test_a_full_subject_does_not_keep_the_others_out(world: World, broker: Broker) -> None:
    topology = Topology(namespace=world.name(), app="app", limits=Limits(per_subject=3))
    await apply(broker, topology)
    subjects = topology.subjects
    held, p = HeldStore(broker, subjects), subjects.partition_of(ACTOR)
    await held.fence(p, 1)
    created = (await broker.stream_info(subjects.mail_stream)).created

    async def moves(channel: str, count: int) -> list[Move]:
        made = []
        for _ in range(count):
            ack = await broker.publish(Publish(subjects.mail(ACTOR, channel_name(channel)), b"x"))
            stored = await broker.read(subjects.mail_stream, ack.seq)
            assert stored is not None
            event = subjects.parse(stored.subject)
            made.append(Move(event, stored, Origin("mail", created, ack.seq)))  # type: ignore[arg-type]  # Mail
            await broker.delete(subjects.mail_stream, ack.seq)
        return made

    await held.move(p, await moves("full", 3))
    result = await held.move(p, [*await moves("full", 1), *await moves("free", 2)])

    assert isinstance(result, Moved)
    assert [seq is not None for seq in result.seqs] == [False, True, True]
    assert [event.name for event in await held.list(p)] == ["full"] * 3 + ["free"] * 2


async def test_a_sender_cannot_smuggle_headers_that_act_into_held(
    held: HeldStore, mails: Mails, subjects: Subjects, p: int
) -> None:
    """HELD allows roll-up and MAIL does not: a header the one ignores must not act in the other."""
    await held.fence(p, 1)
    await held.move(p, await mails(b"kept"))
    (move,) = await mails(b"bad")
    forged = msgspec.structs.replace(
        move.stored, headers={"Nats-Rollup": "all", "nats-ttl": "1", "Nats-Msg-Id": "x", "Sj-X": "1"}
    )

    await held.move(p, [dataclasses.replace(move, stored=forged)])

    assert [event.payload for event in await held.list(p)] == [b"kept", b"bad"]
    assert dict((await held.list(p))[1].headers) == {"Sj-X": "1"}


async def test_a_move_has_a_bound(held: HeldStore, mails: Mails, p: int) -> None:
    await held.fence(p, 1)
    (move,) = await mails(b"a")

    with pytest.raises(ValueError, match=f"1 to {MAX_MOVE}"):
        await held.move(p, [move] * (MAX_MOVE + 1))


async def test_partitions_do_not_disturb_each_other(
    broker: Broker, subjects: Subjects, held: HeldStore, mails: Mails, p: int
) -> None:
    await held.fence(p, 1)
    other = HeldStore(broker, subjects)
    await other.fence((p + 1) % subjects.partitions, 9)

    assert isinstance(await held.move(p, await mails(b"a")), Moved)


async def test_a_partition_can_be_attached_when_held_is_full_to_the_byte(
    world: World, broker: Broker
) -> None:
    """Otherwise a flood of mail to unknown actors could keep every new owner out for ever."""
    topology = Topology(namespace=world.name(), app="app", limits=Limits(held_bytes=40_000))
    await apply(broker, topology)
    subjects = topology.subjects
    held, p = HeldStore(broker, subjects), subjects.partition_of(ACTOR)
    await held.fence(p, 1)
    event, sequence = Mail(p, ACTOR, channel_name("c")), 0
    for size in (8000, 1000, 100, 10, 1):
        while True:
            sequence += 1
            stored = Stored(subjects.mail_stream, sequence, "x", bytes(size), {}, 1.0)
            result = await held.move(p, [Move(event, stored, Origin("mail", 1, sequence))])
            if result == Moved((None,)):
                break

    successor = HeldStore(broker, subjects, node="n" * 128)
    await successor.fence(p, 10**9)
    await successor.fence(p, 10**9 + 1)
    assert await successor.delete((await successor.list(p))[0].seq)


STRANGE_HEADERS = [
    {"Sj-Origin": "mail.1.7", "Sj-Origin-Time": "yesterday"},
    {"Sj-Origin": "mail.1.8", "Sj-Origin-Time": "nan"},
    {"Sj-Origin": "mail.1.9", "Sj-Origin-Time": "inf"},
    {"Sj-Origin": "mail.1.10"},
    {"Sj-Origin": f"mail.1.{'9' * 5000}"},
    {"Sj-Origin": "mail.\N{SUPERSCRIPT TWO}.1"},
    {"Sj-Origin": "mail.-1.1"},
    {"Sj-Origin": "elsewhere.1.1"},
    {},
]


async def test_what_a_foreign_hand_put_into_held_keeps_nobody_from_attaching(
    broker: Broker, held: HeldStore, subjects: Subjects, mails: Mails, p: int
) -> None:
    """It is an event when it says from where, at the time of its copy when it does not say from when; else it is none."""
    subject = subjects.held(ACTOR, Token("mail"), Token("c"))
    for headers in STRANGE_HEADERS:
        await broker.publish(Publish(subject, b"x", headers))
    await held.fence(p, 1)
    await held.move(p, await mails(b"ours"))

    events = await held.list(p)

    assert [(event.origin.seq, event.payload) for event in events[:-1]] == [
        (7, b"x"),
        (8, b"x"),
        (9, b"x"),
        (10, b"x"),
    ]
    assert events[-1].payload == b"ours"
    assert all(math.isfinite(event.time) for event in events)

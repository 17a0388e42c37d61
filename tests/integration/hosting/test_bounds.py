"""What happens at the bounds of streams: a channel's 20 messages, and dead letters of 64 KiB."""

from __future__ import annotations

from typing import Any

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.errors import MailboxFull
from sojourn.actors.registry import Registry
from sojourn.actors.verbs import send
from sojourn.actors.workflow import workflow
from sojourn.broker.topology import Limits
from sojourn.codecs.record import Operation, Record

from .conftest import MIB, MakeOwner, Owner, completed

pytestmark = pytest.mark.integration

PER_SUBJECT = 20
STREAMS = Limits(mail_bytes=16 * MIB, held_bytes=16 * MIB, dead_bytes=64 * 1024, per_subject=PER_SUBJECT)
REGISTRY = Registry()
note = Channel("note", str)
gate = Channel("gate", int)


@workflow(registry=REGISTRY)
async def collect(n: int) -> list[str]:
    return [await note.receive() for _ in range(n)]


async def test_mail_that_a_full_mailbox_cannot_hold_is_dead_and_the_rest_is_kept(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("full", "collect", PER_SUBJECT)
    await owner.until_waiting("full", "receive")
    await owner.control("full", "pause")
    await owner.until("full", lambda record: record.index.hold == "paused")
    for n in range(PER_SUBJECT + 5):
        await owner.signal("full", "note", str(n))
        await owner.until_messages("mail", 0)
    assert await owner.messages("held") == PER_SUBJECT
    assert await owner.dead_reasons() == ["mailbox full"] * 5
    await owner.control("full", "resume")
    assert completed(await owner.until_ended("full")) == [str(n) for n in range(PER_SUBJECT)]
    await owner.until_quiet()


@workflow(registry=REGISTRY)
async def talk(to: str, times: int) -> str:
    for n in range(times):
        await send(to, note, str(n))
    await note.receive()
    return "heard"


async def test_a_sender_is_told_of_mail_that_a_full_mailbox_could_not_hold(
    owners: MakeOwner, caplog: pytest.LogCaptureFixture
) -> None:
    owner = await owners()
    await owner.start("shut", "collect", PER_SUBJECT)
    await owner.until_waiting("shut", "receive")
    await owner.control("shut", "pause")
    await owner.until("shut", lambda record: record.index.hold == "paused")
    await owner.start("talker", "talk", "shut", PER_SUBJECT + 2)

    await owner.until_waiting("talker", "receive")
    await owner.until_messages("ctl", 0)
    dead = await owner.dead_reasons()  # a batch in which one does not fit may be refused as a whole
    assert set(dead) == {"mailbox full"}
    assert len(dead) + await owner.messages("held") == PER_SUBJECT + 2

    def undelivered(record: Record) -> list[Operation]:
        return [one for one in record.index.operations if one.outcome == "undelivered"]

    record = await owner.until("talker", lambda record: len(undelivered(record)) == len(dead))
    assert {(one.kind, one.name) for one in undelivered(record)} == {("send", "shut")}
    said = [entry.getMessage() for entry in caplog.records if "was not taken" in entry.getMessage()]
    told = "talker: mail to shut on note was not taken and is among the dead letters: mailbox full"
    assert said == [told] * len(dead)
    assert record.index.wait == "receive note", "the workflow itself goes on"
    await owner.signal("talker", "note", "bye")
    assert completed(await owner.until_ended("talker")) == "heard"
    await owner.control("shut", "terminate")
    await owner.until_ended("shut")
    await owner.until_quiet()


async def test_a_sender_is_told_of_mail_for_a_channel_that_is_not_there_and_of_mail_for_one_that_has_ended(
    owners: MakeOwner,
) -> None:
    owner = await owners()
    await owner.start("over", "collect", 0)
    await owner.until_ended("over")
    await owner.start("late", "talk", "over", 1)
    await owner.until(
        "late", lambda record: any(one.outcome == "undelivered" for one in record.index.operations)
    )
    await owner.signal("late", "note", "bye")
    await owner.until_ended("late")
    await owner.until_quiet()


@workflow(registry=REGISTRY)
async def deaf() -> str:
    await gate.receive()
    return await note.receive()


@workflow(registry=REGISTRY)
async def press(to: str) -> list[Any]:
    sent = 0
    try:
        while True:
            await send(to, note, str(sent), timeout="100ms")
            sent += 1
    except MailboxFull as full:
        return [sent, full.actor, full.channel]


async def test_a_send_that_finds_no_room_within_its_time_raises_and_what_was_stored_arrives(
    owners: MakeOwner,
) -> None:
    owner = await owners()
    await owner.start("deaf", "deaf")
    await owner.until_waiting("deaf", "receive")
    await owner.start("presser", "press", "deaf")
    sent, *where = completed(await owner.until_ended("presser"))
    assert (sent, where) == (PER_SUBJECT, ["deaf", "note"])
    await owner.signal("deaf", "gate", 1)
    assert completed(await owner.until_ended("deaf")) == "0"
    await owner.until_messages("ctl", 0)


async def test_a_send_goes_on_when_there_is_room_in_time(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("slow", "listens_late", PER_SUBJECT + 1)
    await owner.until_waiting("slow", "receive")
    await owner.start("patient", "talk", "slow", PER_SUBJECT + 1)
    await owner.until("patient", lambda record: len(record.index.operations) == PER_SUBJECT + 1)
    await owner.signal("slow", "gate", 1)
    assert completed(await owner.until_ended("slow")) == [str(n) for n in range(PER_SUBJECT + 1)]
    await owner.signal("patient", "note", "bye")
    assert completed(await owner.until_ended("patient")) == "heard"
    await owner.until_quiet()


@workflow(registry=REGISTRY)
async def listens_late(n: int) -> list[str]:
    await gate.receive()
    return [await note.receive() for _ in range(n)]


async def test_mail_from_outside_is_counted_and_dropped_when_the_dead_letters_are_full(
    owners: MakeOwner,
) -> None:
    owner = await owners()
    await owner.start("ended", "collect", 0)
    await owner.until_ended("ended")
    for _ in range(10):
        await owner.signal("ended", "note", "x" * 10_000)
    await owner.until_messages("mail", 0)
    await owner.until_quiet()
    written, dropped = owner.services.dead.written.total(), owner.services.dead.dropped.total()
    assert written + dropped == 10
    assert dropped >= 4
    counted = owner.services.meter
    assert counted.value("dead_letters_dropped", reason="the actor has ended (completed)") == dropped


class Counts:
    """How much of an actor's mail is in memory whenever one more is dead."""

    def __init__(self) -> None:
        self.owner: Owner | None = None
        self.most = 0

    def __call__(self, point: str, about: str = "") -> None:
        if point == "dead_stored":
            assert self.owner is not None
            self.most = max(self.most, len(self.owner.partition._hosts[about].mailbox))


async def test_the_held_mail_of_an_actor_that_ended_is_swept_a_part_at_a_time(
    owners: MakeOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it may be as much as HELD takes."""
    monkeypatch.setattr("sojourn.cluster.mail.mailbox.SWEEP", 4)
    counts = Counts()
    owner = counts.owner = await owners(fault=counts)
    await owner.start("swept", "collect", 1)
    await owner.until_waiting("swept", "receive")
    await owner.control("swept", "pause")
    await owner.until("swept", lambda record: record.index.hold == "paused")
    for n in range(PER_SUBJECT):
        await owner.signal("swept", "note", str(n))
    await owner.until_messages("held", PER_SUBJECT)
    await owner.until_messages("mail", 0)
    await owner.until_quiet()
    await owner.control("swept", "terminate")
    await owner.until_messages("held", 0)
    await owner.until_quiet()
    assert len(await owner.dead_reasons()) == PER_SUBJECT
    assert counts.most <= 4


async def test_held_mail_of_an_earlier_run_is_swept_though_the_present_one_receives_nothing_on_its_channel(
    owners: MakeOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sojourn.cluster.mail.mailbox.SWEEP", 4)
    owner = await owners()
    await owner.start("twice", "collect", 1)
    await owner.until_waiting("twice", "receive")
    await owner.control("twice", "pause")
    await owner.until("twice", lambda record: record.index.hold == "paused")
    for n in range(PER_SUBJECT):
        await owner.signal("twice", "note", str(n))
    await owner.until_messages("held", PER_SUBJECT)
    await owner.until_messages("mail", 0)
    await owner.until_quiet()
    await owner.start("twice", "deaf", if_exists="restart")
    await owner.until("twice", lambda record: record.index.wait == "receive gate")
    await owner.until_messages("held", 0)
    assert len(await owner.dead_reasons()) == PER_SUBJECT
    await owner.control("twice", "terminate")
    await owner.until_ended("twice")
    await owner.until_quiet()

"""Interleavings that the search in tests/model found in the rules as they were implemented, acted out on the real server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import spawn
from sojourn.actors.workflow import workflow
from sojourn.broker.nats import NatsBroker
from sojourn.broker.seam import Delivery
from sojourn.broker.subjects import Subjects
from sojourn.codecs.record import Origin, Status

from .conftest import Crash, MakeOwner, completed
from .test_lost_wakeups import Unsteady

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)
other = Channel("other", int)
gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
started: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@step(registry=REGISTRY)
async def gated(name: str) -> str:
    started[name].set()
    await gates[name].wait()
    return name


@workflow(registry=REGISTRY)
async def waiter() -> int:
    return await note.receive()


@workflow(registry=REGISTRY)
async def parent(child: str) -> int:
    await spawn(waiter(), id=child)
    return await note.receive()


@workflow(registry=REGISTRY)
async def short(n: int) -> int:
    return n


@workflow(registry=REGISTRY)
async def other_then_note() -> int:
    await other.receive()
    return await note.receive()


@workflow(registry=REGISTRY)
async def note_other_note() -> list[int]:
    return [await note.receive(), await other.receive(), await note.receive()]


@workflow(registry=REGISTRY)
async def steps_between(first: str, second: str) -> list[int]:
    await gated(first)
    taken = [await note.receive()]
    await gated(second)
    return [*taken, await note.receive()]


async def test_a_restart_whose_owner_dies_before_the_flush_still_cancels_the_children(
    owners: MakeOwner,
) -> None:
    """The commit that ends the old run names the start as its lease: else the next owner believes its outbox flushed."""
    crash = Crash("after_terminal_commit", about="m1")
    first = await owners(fault=crash)
    await first.start("m1", "parent", "m1-child")
    await first.until_waiting("m1-child", "receive")
    await first.until_quiet()
    await first.start("m1", "short", 7, if_exists="restart")
    await crash.happened.wait()
    second = await owners(taken_over=True)
    record = await second.until(
        "m1", lambda record: record.index.workflow == "short" and record.index.status.ended
    )
    assert completed(record) == 7
    child = await second.until_ended("m1-child")
    assert child.index.status is Status.CANCELLED
    await second.until_quiet()


class Halt(Crash):
    """A fault that shuts its owner's gate when it is for the `count`th time about to commit what user code did."""

    def __call__(self, point: str, about: str = "") -> None:
        if self.count and point == self.point and about == self.about:
            self.count -= 1
            if self.count:
                return
            assert self.owner is not None
            self.owner.services.gate.shut("the test holds it up")
            self.happened.set()


async def test_held_mail_is_read_again_after_a_commit_that_was_anothers(owners: MakeOwner) -> None:
    """A former owner consumed it, deleted it, and forgot it, while this one had it in memory."""
    early, late = (Halt("before_user_commit", 0, "m2") for _ in range(2))
    first = await owners(fault=early)
    await first.start("m2", "note_other_note")
    await first.until_waiting("m2", "receive")
    await first.control("m2", "pause")
    await first.until("m2", lambda record: record.index.hold == "paused")
    await first.signal("m2", "note", 1)
    await first.until_messages("held", 1)
    await first.until_quiet()
    early.count = 1
    await first.control("m2", "resume")
    await early.happened.wait()
    late.count = 1
    second = await owners(fault=late)
    await late.happened.wait()  # it has taken the held mail, and is about to commit that

    first.services.gate.open()
    await first.until("m2", lambda record: len(record.envelope.waits) == 1 and record.envelope.epoch == 1)
    await first.until_messages("held", 0)
    await first.partition._serving.floors.refresh()
    await second.signal("m2", "other", 2)
    await second.until_messages("mail", 1)
    stored = await second.watcher.read_next(second.subjects.mail_stream, second.subjects.in_filter(0), 1)
    assert stored is not None
    # The former owner had this one in its buffer.
    origin = Origin("mail", first.services.stream_created["mail"], stored.seq)
    first.partition._receive(origin, Delivery(stored, "$JS.ACK.of.a.consumer.that.is.gone", False, 1))
    await first.until("m2", lambda record: record.index.resumes == 3)
    first.die()

    second.services.gate.open()
    await second.until("m2", lambda record: record.envelope.epoch == 1 and record.index.resumes == 3)
    await second.signal("m2", "note", 3)
    assert completed(await second.until_ended("m2")) == [1, 2, 3]
    await second.until_quiet()


async def test_what_a_later_owner_moved_is_not_forgotten_by_a_former_one(
    owners: MakeOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source is gone because there is a held copy now, which the former owner does not know of."""
    first = await owners()
    await first.start("m3", "steps_between", "m3-a", "m3-b")
    await started["m3-a"].wait()
    await first.signal("m3", "note", 1)
    async with asyncio.timeout(10):
        while first.partition.statistics().waiting < 2:  # noqa: ASYNC110 - nothing tells of a delivery
            await asyncio.sleep(0.01)
    await first.partition._hosts["m3"].wait_rest(5.0)
    monkeypatch.setattr("sojourn.cluster.mail.mailbox.MOVE_AFTER_SECONDS", 0.0)
    second = await owners()
    await second.until_messages("held", 1)
    await second.until_messages("mail", 0)
    gates["m3-a"].set()
    await started["m3-b"].wait()  # the former owner has taken the mail from its memory
    first.partition._serving.floors.touch("mail")
    await first.partition._serving.floors.refresh()
    gates["m3-b"].set()
    await first.until("m3", lambda record: record.index.steps == 2)
    first.die()
    second.partition.lease_ended(first.services.runner)
    await second.signal("m3", "note", 2)
    assert completed(await second.until_ended("m3")) == [1, 2]
    await second.until_quiet()
    assert await second.messages("held") == 0


async def test_a_held_event_that_somebody_else_took_says_that_the_record_is_an_old_one(
    owners: MakeOwner,
    connect: Callable[[], Awaitable[NatsBroker]],
    subjects: Subjects,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its former owner ended the actor, and died before it had seen what else was there. The present one, which had read the record
    before that, kept mail for an actor that it took for suspended until something came that the actor waited for.
    """
    monkeypatch.setattr("sojourn.cluster.mail.mailbox.MOVE_AFTER_SECONDS", 0.0)
    early = Halt("before_user_commit", 3, "m8")
    first = await owners(fault=early)
    await first.start("m8", "other_then_note")
    await first.until_waiting("m8", "receive")
    await first.signal("m8", "note", 1)
    await first.until_messages("held", 1)
    await first.until_quiet()
    await first.signal("m8", "other", 1)
    await early.happened.wait()

    held_back = Unsteady(await connect())
    held_back.stalled = subjects.held_stream
    second = await owners(broker=held_back)
    await held_back.met.wait()  # it has read the record, and is about to read the held mail
    first.services.gate.open()
    assert completed(await first.until_ended("m8")) == 1
    await first.until_messages("held", 0)
    first.die()
    await second.signal("m8", "other", 2)
    held_back.go_on.set()

    await second.until_messages("mail", 0)
    await second.until_quiet()
    await second.until_messages("held", 0)
    assert len(await second.dead_reasons()) == 1


async def test_mail_with_a_dead_letter_is_not_consumed_by_a_later_run(owners: MakeOwner) -> None:
    """Its owner wrote the letter and died before it acknowledged the mail; then the id was started again."""
    crash = Crash("dead_stored", about="m7")
    first = await owners(fault=crash)
    await first.start("m7", "short", 1)
    await first.until_ended("m7")
    await first.until_quiet()
    await first.signal("m7", "note", 1)
    await crash.happened.wait()
    await first.start("m7", "waiter", if_exists="restart")
    second = await owners(taken_over=True)
    await second.until_waiting("m7", "receive")
    await second.until_messages("mail", 0)
    await second.signal("m7", "note", 2)
    assert completed(await second.until_ended("m7")) == 2
    await second.until_quiet()
    assert len(await second.dead_reasons()) == 1

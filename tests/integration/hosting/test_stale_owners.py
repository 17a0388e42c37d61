"""An owner that is none any more and does not know it: what it still does has no effect, and what it found out is not lost."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import gather
from sojourn.actors.workflow import workflow
from sojourn.broker.nats import NatsBroker
from sojourn.broker.seam import Delivery, Pull
from sojourn.cluster.hosting.commits import read_record
from sojourn.cluster.hosting.hot_cache import Hot
from sojourn.codecs.record import Origin

from .conftest import MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)
ran: Counter[str] = Counter()
gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
started: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@step(registry=REGISTRY)
async def gated_step(name: str) -> str:
    ran[name] += 1
    started[name].set()
    await gates[name].wait()
    return name


async def notes(n: int) -> list[int]:
    return [await note.receive() for _ in range(n)]


@workflow(registry=REGISTRY)
async def both(name: str, n: int) -> list[Any]:
    return list(await gather(gated_step(name), notes(n)))


@workflow(registry=REGISTRY)
async def collect(n: int) -> list[int]:
    return await notes(n)


async def test_a_result_that_a_former_owner_could_not_commit_reaches_the_new_one(owners: MakeOwner) -> None:
    """Its node lives on, so nobody else starts the step: the outcome has to come through `done`."""
    first = await owners()
    await first.start("s1", "both", "stale", 2)
    await started["stale"].wait()
    await first.until_waiting("s1", "receive")
    second = await owners()
    await second.signal("s1", "note", 1)
    await second.until("s1", lambda record: record.envelope.epoch == 2)
    # The record has moved on under the first owner, which now learns the result of its step and tries to commit it.
    first.lost.clear()
    first.was_lost.clear()
    gates["stale"].set()
    await first.was_lost.wait()
    assert any("epoch 2" in reason for reason in first.lost)
    record = await second.record("s1")
    assert record is not None
    assert record.envelope.epoch == 2
    first.partition.drop()
    await second.signal("s1", "note", 2)
    assert completed(await second.until_ended("s1")) == ["stale", [1, 2]]
    assert ran["stale"] == 1
    await second.until_quiet()


async def test_an_owner_that_reads_a_higher_epoch_commits_nothing(owners: MakeOwner) -> None:
    first = await owners()
    await first.start("s2", "collect", 2)
    await first.until_waiting("s2", "receive")
    await first.control("s2", "pause")
    await first.until("s2", lambda record: record.index.hold == "paused")
    await first.signal("s2", "note", 1)
    await first.until_messages("held", 1)
    await first.until_quiet()
    second = await owners()
    await second.control("s2", "resume")
    await second.until("s2", lambda record: record.envelope.epoch == 2 and not record.index.hold)
    await second.until_quiet()
    commits = first.services.marks.commits
    # It still has the held mail in its list, and now looks at the actor as an owner does after an attach.
    first.services.hot_cache.drop("s2")
    first.was_lost.clear()
    first.partition.look_again()
    await first.was_lost.wait()
    assert first.services.marks.commits == commits
    first.partition.drop()
    await second.signal("s2", "note", 2)
    assert completed(await second.until_ended("s2")) == [1, 2]


class Echo:
    """A connection that remembers what it handed over, to hand it over again: what lay in a client's buffer."""

    def __init__(self, broker: NatsBroker) -> None:
        self._broker = broker
        self.deliveries: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def pull(
        self,
        stream: str,
        consumer: str,
        on_message: Callable[[Delivery], None],
        on_lost: Callable[[str], None],
        **options: Any,
    ) -> Pull:
        def remember(delivery: Delivery) -> None:
            self.deliveries.append(lambda: on_message(delivery))
            on_message(delivery)

        return await self._broker.pull(stream, consumer, remember, on_lost, **options)


async def test_a_message_that_is_gone_is_no_event_when_it_comes_out_of_a_buffer(
    owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]]
) -> None:
    echo = Echo(await connect())
    owner = await owners(broker=echo)
    await owner.start("s3", "collect", 4)
    await owner.until_waiting("s3", "receive")
    await owner.signal("s3", "note", 1)
    await owner.until("s3", lambda record: record.index.resumes == 2)
    await owner.until_quiet()
    await owner.partition._serving.floors.refresh()
    await owner.signal("s3", "note", 2)
    record = await owner.until("s3", lambda record: record.index.resumes == 3)
    await owner.until_quiet()
    assert len(record.envelope.consumed) == 1  # what is gone has left the set
    for again in list(echo.deliveries):
        again()
    await owner.signal("s3", "note", 3)
    await owner.signal("s3", "note", 4)
    assert completed(await owner.until_ended("s3")) == [1, 2, 3, 4]
    await owner.until_quiet()


async def test_a_former_owner_writes_no_dead_letter_for_what_the_new_one_will_consume(
    owners: MakeOwner,
) -> None:
    """It believes that the actor has ended; under the new owner the id was started again and has yet to take this mail."""
    first = await owners()
    await first.start("s4", "collect", 0)
    await first.until_ended("s4")
    await first.until_quiet()
    ended = await read_record(first.services, "s4")
    second = await owners()
    await second.start("s4", "both", "again", 1, if_exists="restart")
    await started["again"].wait()
    second.services.gate.shut("it is about to consume the mail")
    await second.signal("s4", "note", 7)
    await second.until_messages("mail", 1)
    stored = await second.watcher.read_next(second.subjects.mail_stream, second.subjects.in_filter(0), 1)
    assert stored is not None
    origin = Origin("mail", first.services.stream_created["mail"], stored.seq)
    first.was_lost.clear()
    first.services.hot_cache.keep("s4", Hot(ended.record, ended.revision, 0), first.services.monotonic())
    first.partition._receive(origin, Delivery(stored, "$JS.ACK.of.a.consumer.that.is.gone", False, 1))
    await first.was_lost.wait()
    assert await second.messages("dead") == 0
    first.partition.drop()
    second.services.gate.open()
    gates["again"].set()
    assert completed(await second.until_ended("s4")) == ["again", [7]]

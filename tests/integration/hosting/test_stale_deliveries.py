"""With three replicas a new consumer may deliver what is gone: its leader's own copy of the stream is behind (tried, see
docs/reference/nats-answers.md). What is stored no more never becomes an event again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.workflow import workflow
from sojourn.broker.nats import NatsBroker
from sojourn.broker.seam import Delivery, Pull, Stored
from sojourn.broker.subjects import Subjects

from .conftest import MakeOwner, Owner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)


@workflow(registry=REGISTRY)
async def collect(n: int) -> list[int]:
    return [await note.receive() for _ in range(n)]


class Behind:
    """A connection whose new consumers deliver, before anything else, a message that is stored no more."""

    def __init__(self, broker: NatsBroker, gone: Stored | None = None) -> None:
        self._broker = broker
        self.gone = gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def pull(
        self, stream: str, consumer: str, on_message: Callable[[Delivery], None], *rest: Any, **more: Any
    ) -> Pull:
        if self.gone is not None and stream == self.gone.stream:
            token = f"$JS.ACK.{stream}.{consumer}.1.{self.gone.seq}.1.{round(self.gone.time * 1e9)}.0"
            on_message(Delivery(self.gone, token, False, 1))
        return await self._broker.pull(stream, consumer, on_message, *rest, **more)


async def pruned(owner: Owner, subjects: Subjects) -> Stored:
    """An actor `c` that has consumed a mail whose origin has left its consumed set; the mail as it was stored."""
    await owner.start("c", "collect", 3)
    await owner.until_waiting("c", "receive")
    await owner.signal("c", "note", 1)
    mail = await owner.watcher.read_next(subjects.mail_stream, ">", 1)
    assert mail is not None
    await owner.until("c", lambda record: record.index.resumes == 2)
    await owner.until_quiet()
    await owner.partition._serving.floors.refresh()
    await owner.signal("c", "note", 2)
    record = await owner.until("c", lambda record: record.index.resumes == 3)
    await owner.until_quiet()
    assert mail.seq not in {origin.seq for origin in record.envelope.consumed}
    return mail


@pytest.mark.parametrize("anew", [False, True], ids=["another owner", "the same owner"])
async def test_mail_that_a_new_consumer_delivers_from_a_replica_that_is_behind_is_not_taken_twice(
    owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]], subjects: Subjects, *, anew: bool
) -> None:
    first_broker = Behind(await connect())
    owner = await owners(broker=first_broker, patience=1.0)
    mail = await pruned(owner, subjects)
    if anew:
        first_broker.gone = mail
        await owner.reattach(owner.epoch + 1)
    else:
        owner.die()
        owner = await owners(broker=Behind(await connect(), mail), taken_over=True, patience=1.0)
    await owner.signal("c", "note", 3)
    assert completed(await owner.until_ended("c")) == [1, 2, 3]


async def test_nor_is_a_copy_of_it_made_for_an_actor_that_takes_no_mail_now(
    owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]], subjects: Subjects
) -> None:
    first = await owners(patience=1.0)
    mail = await pruned(first, subjects)
    await first.control("c", "pause")
    await first.until("c", lambda record: record.index.hold == "paused")
    await first.until_quiet()
    first.die()
    owner = await owners(broker=Behind(await connect(), mail), patience=1.0)
    await owner.signal("c", "note", 3)
    await owner.until_messages("held", 1)
    await owner.until_quiet()
    assert await owner.messages("held") == 1
    await owner.control("c", "resume")
    assert completed(await owner.until_ended("c")) == [1, 2, 3]

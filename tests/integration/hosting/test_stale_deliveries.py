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

from .conftest import MakeOwner, completed

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


@pytest.mark.parametrize("anew", [False, True], ids=["another owner", "the same owner"])
async def test_mail_that_a_new_consumer_delivers_from_a_replica_that_is_behind_is_not_taken_twice(
    owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]], subjects: Subjects, *, anew: bool
) -> None:
    first_broker = Behind(await connect())
    first = await owners(broker=first_broker, patience=1.0)
    await first.start("c", "collect", 3)
    await first.until_waiting("c", "receive")
    await first.signal("c", "note", 1)
    first_mail = await first.watcher.read_next(subjects.mail_stream, ">", 1)
    assert first_mail is not None
    await first.until("c", lambda record: record.index.resumes == 2)
    await first.until_quiet()
    await first.partition._serving.floors.refresh()
    await first.signal("c", "note", 2)
    pruned = await first.until("c", lambda record: record.index.resumes == 3)
    await first.until_quiet()
    assert first_mail.seq not in {origin.seq for origin in pruned.envelope.consumed}

    owner = first
    if anew:
        first_broker.gone = first_mail
        await first.reattach(first.epoch + 1)
    else:
        first.die()
        owner = await owners(broker=Behind(await connect(), first_mail), taken_over=True, patience=1.0)
    await owner.signal("c", "note", 3)
    assert completed(await owner.until_ended("c")) == [1, 2, 3]

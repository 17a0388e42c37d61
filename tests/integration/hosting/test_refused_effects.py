"""An effect that the broker does not take yet holds nothing else up, and is forgotten with whatever wanted it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.retry import Retry
from sojourn.actors.step import step
from sojourn.actors.verbs import gather, send, sleep
from sojourn.actors.workflow import workflow
from sojourn.broker.errors import Refused
from sojourn.broker.nats import NatsBroker
from sojourn.broker.seam import Ack, Publish
from sojourn.broker.subjects import Subjects, actor_id, channel_name, token
from sojourn.cluster.hosting import actor_work

from .conftest import MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)
started, may_end = asyncio.Event(), asyncio.Event()


@step(registry=REGISTRY)
async def gated(n: int) -> int:
    started.set()
    await may_end.wait()
    return n


@step(queue="gpu", timeout="300ms", queue_timeout=0, retry=Retry(1), registry=REGISTRY)
async def queued(n: int) -> int:
    return n


async def naps() -> int:
    for _ in range(3):
        await sleep(0.01)
    return await note.receive()


async def tries() -> str:
    try:
        await queued(1)
    except TimeoutError:
        return "given up"
    return "done"


@workflow(registry=REGISTRY)
async def tells_and_naps(to: str) -> list[Any]:
    return list(await gather(send(to, note, 1), naps()))


@workflow(registry=REGISTRY)
async def runs_and_tries() -> list[Any]:
    return list(await gather(gated(1), tries()))


class NoRoom:
    """A connection over which one subject takes nothing."""

    def __init__(self, broker: NatsBroker, subject: str) -> None:
        self._broker = broker
        self._subject = subject
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def publish(self, message: Publish, *, timeout: float = 2.0) -> Ack:
        if message.subject == self._subject:
            self.refused += 1
            raise Refused(10077, "maximum messages exceeded", message.subject)
        return await self._broker.publish(message, timeout=timeout)


async def test_timers_are_armed_while_mail_to_somebody_is_not_taken(
    owners: MakeOwner,
    connect: Callable[[], Awaitable[NatsBroker]],
    subjects: Subjects,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actor_work, "FLUSH_AGAIN_SECONDS", (3600.0, 3600.0))
    full = NoRoom(await connect(), subjects.send(actor_id("full"), channel_name("note")))
    owner = await owners(broker=full)
    await owner.start("t", "tells_and_naps", "full")
    await owner.until_waiting("t", "receive")
    assert full.refused == 1


async def test_a_task_that_was_not_taken_and_is_not_wanted_any_more_is_not_tried_for(
    owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]], subjects: Subjects
) -> None:
    full = NoRoom(await connect(), subjects.step(token("gpu")))
    owner = await owners(broker=full)
    await owner.start("r", "runs_and_tries")
    await started.wait()
    await owner.until("r", lambda record: not any(call.queue for call in record.envelope.calls))
    assert full.refused
    async with asyncio.timeout(10):
        while owner.partition._hosts["r"]._work.moments():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    may_end.set()
    assert completed(await owner.until_ended("r")) == [1, "given up"]

"""Writes whose outcome the owner does not learn: never sent, sent and not answered, or arriving late (PROTOCOL 4.2, 4.6, 4.7)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import send, sleep, spawn
from sojourn.actors.workflow import workflow
from sojourn.broker.errors import BrokerError, OutcomeUnknown
from sojourn.broker.nats import NatsBroker
from sojourn.broker.seam import Ack, Delivery, Publish

from .conftest import MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)
report = Channel("report", int)
ran: Counter[str] = Counter()


@step(registry=REGISTRY)
async def double(actor: str, n: int) -> int:
    ran[actor] += 1
    return 2 * n


@workflow(registry=REGISTRY)
async def helper(parent: str, n: int) -> int:
    await send(parent, report, n)
    return await double(f"{parent}-helper", n)


@workflow(registry=REGISTRY)
async def errand(me: str, n: int) -> list[int]:
    first = await double(me, n)
    child = await spawn(helper(me, first), id=f"{me}-helper")
    notes = [await note.receive() for _ in range(4)]
    reported = await report.receive()
    await sleep(0.05)
    return [first, reported, await child, *notes]


class Flaky:
    """A connection whose writes sometimes have no answer. What is not a write goes straight through."""

    def __init__(self, broker: NatsBroker, seed: int, rate: float) -> None:
        self._broker = broker
        self._random = random.Random(seed)
        self.rate = rate
        self._late: set[asyncio.Task[None]] = set()
        self.troubles: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def _troubled(self, what: str, subject: str, write: Callable[[], Awaitable[Any]]) -> Any:
        if self._random.random() >= self.rate:
            return await write()
        how = self._random.choice(("never sent", "not answered", "late"))
        self.troubles[f"{what} {how}"] += 1
        if how == "not answered":
            await write()
        elif how == "late":
            task = asyncio.create_task(self._after(self._random.uniform(0.0, 0.1), write))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        raise OutcomeUnknown(what, subject, how)

    async def _after(self, seconds: float, write: Callable[[], Awaitable[Any]]) -> None:
        await asyncio.sleep(seconds)
        try:
            await write()
        except BrokerError:
            return  # refused, as a late write should be

    async def publish(self, message: Publish, *, timeout: float = 2.0) -> Ack:
        return await self._troubled("publish", message.subject, lambda: self._broker.publish(message))

    async def publish_batch(self, messages: Sequence[Publish], *, timeout: float = 5.0) -> Ack:
        return await self._troubled(
            "batch", messages[0].subject, lambda: self._broker.publish_batch(messages)
        )

    async def ack(self, delivery: Delivery, *, timeout: float = 2.0) -> bool:
        return await self._troubled("ack", delivery.token, lambda: self._broker.ack(delivery))

    async def delete(self, stream: str, seq: int, *, erase: bool = False) -> bool:
        return await self._troubled("delete", stream, lambda: self._broker.delete(stream, seq))

    async def end(self) -> None:
        self.rate = 0.0
        if self._late:
            await asyncio.wait(self._late)


@pytest.mark.parametrize("seed", range(6))
async def test_unknown_outcomes_neither_lose_nor_double(
    owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]], seed: int
) -> None:
    flaky = Flaky(await connect(), seed, 0.0)
    owner = await owners(broker=flaky)
    flaky.rate = 0.25
    ids = [f"flaky-{seed}-{n}" for n in range(4)]
    for actor in ids:
        await owner.start(actor, "errand", actor, 5)
        for value in range(4):
            await owner.signal(actor, "note", value)
    for actor in ids:
        assert completed(await owner.until_ended(actor, seconds=40)) == [10, 10, 20, 0, 1, 2, 3]
        # Nobody died: a step whose result was committed, or may have been, never runs again.
        assert ran[actor] == ran[f"{actor}-helper"] == 1
    await flaky.end()
    await owner.until_quiet()
    assert owner.lost == []
    assert flaky.troubles, "the seed must make trouble"


@pytest.mark.parametrize("seed", range(4))
async def test_moves_of_unknown_outcome_store_each_event_once(
    owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]], seed: int
) -> None:
    flaky = Flaky(await connect(), seed, 0.0)
    owner = await owners(broker=flaky)
    actor = f"moves-{seed}"
    await owner.start(actor, "errand", actor, 5)
    await owner.until_waiting(actor, "receive")
    await owner.control(actor, "pause")
    await owner.until(actor, lambda record: record.index.hold == "paused")
    flaky.rate = 0.4
    for value in range(4):
        await owner.signal(actor, "note", value)
        await asyncio.sleep(0.05)
    await owner.until_messages("mail", 0)
    await flaky.end()
    await owner.control(actor, "resume")
    assert completed(await owner.until_ended(actor, seconds=40)) == [10, 10, 20, 0, 1, 2, 3]
    await owner.until_quiet()
    await owner.until_messages("held", 0)
    assert owner.lost == []

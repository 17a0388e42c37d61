"""Seeded disorder: owners die, are replaced while they still believe, attach anew, hand over, and a tenth of all writes has no answer.

Whatever the order: every actor ends with the right result, mail is consumed once and in order, nothing is left anywhere, and no step runs
more often than owners died under it. The seed is in the test's name.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import send, sleep, spawn
from sojourn.actors.workflow import workflow
from sojourn.broker.nats import NatsBroker

from .conftest import MakeOwner, Owner, completed
from .test_unknown_outcomes import Flaky

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)
report = Channel("report", int)
ran: Counter[str] = Counter()


@step(registry=REGISTRY)
async def slow_double(actor: str, n: int) -> int:
    ran[actor] += 1
    await asyncio.sleep(0.02)
    return 2 * n


@workflow(registry=REGISTRY)
async def helper(parent: str, n: int) -> int:
    await send(parent, report, n)
    return await slow_double(f"{parent}-helper", n)


@workflow(registry=REGISTRY)
async def errand(me: str, rounds: int) -> list[int]:
    child = await spawn(helper(me, rounds), id=f"{me}-helper")
    seen = []
    for n in range(rounds):
        seen.append(await note.receive())
        await slow_double(f"{me}-{n}", n)
        await sleep(0.05)
    seen.append(await report.receive())
    return [*seen, await child]


class Partition0:
    """Plays membership: one owner after another, whoever lost it looks whether it is still the owner."""

    def __init__(self, owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]], seed: int) -> None:
        self._owners = owners
        self._connect = connect
        self.random = random.Random(seed)
        self.rate = 0.1
        self.deaths = 0
        self.epoch = 0
        self.current: Owner | None = None
        self.flaky: list[Flaky] = []
        self._changing = asyncio.Lock()

    async def new_owner(self, *, taken_over: bool) -> None:
        flaky = Flaky(await self._connect(), self.random.randrange(10**6), 0.0)
        self.flaky.append(flaky)
        owner = await self._owners(broker=flaky, attach=False)
        self.epoch = owner.epoch = max(self.epoch + 1, owner.epoch)
        owner.partition._serving.epoch = owner.epoch
        self.current = owner
        await owner.attach(taken_over=taken_over)
        flaky.rate = self.rate

    async def disturb(self) -> None:
        async with self._changing:
            owner = self.current
            assert owner is not None
            match self.random.choice(("dies", "stale", "again", "hands over", "nothing")):
                case "dies":
                    self.deaths += 1
                    owner.die()
                    await self.new_owner(taken_over=True)
                case "stale":
                    # Its lease ended, it does not know, and goes on until something tells it.
                    self.deaths += 1
                    owner.living.discard(owner.services.runner)
                    await self.new_owner(taken_over=True)
                    await asyncio.sleep(self.random.uniform(0.0, 0.05))
                    owner.die()
                case "again":
                    self.epoch += 1
                    flaky, rate = self.flaky[-1], self.flaky[-1].rate
                    flaky.rate = 0.0
                    await owner.reattach(self.epoch)
                    flaky.rate = rate
                case "hands over":
                    await owner.partition.release(owner.services.monotonic() + 5)
                    await self.new_owner(taken_over=False)
                    # A runner that leaves tells its outcomes first; its lease then ends.
                    await owner.partition.wait_steps_finished()

    async def settle(self) -> Owner:
        """Calm down: all writes are answered from now on, one owner remains."""
        self.rate = 0.0
        for flaky in self.flaky:
            await flaky.end()
        assert self.current is not None
        if self.current.lost:
            self.epoch += 1
            await self.current.reattach(self.epoch)
        return self.current


@pytest.mark.parametrize("seed", range(8))
async def test_disorder(owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]], seed: int) -> None:
    world = Partition0(owners, connect, seed)
    await world.new_owner(taken_over=False)
    owner = world.current
    assert owner is not None
    ids = [f"chaos-{seed}-{n}" for n in range(6)]
    rounds = 4
    for actor in ids:
        await owner.start(actor, "errand", actor, rounds)
    for value in range(rounds):
        for actor in ids:
            await owner.signal(actor, "note", value)
        await asyncio.sleep(world.random.uniform(0.0, 0.1))
        await world.disturb()
    for _ in range(4):
        await asyncio.sleep(world.random.uniform(0.0, 0.15))
        await world.disturb()
    owner = await world.settle()
    for actor in ids:
        record = await owner.until_ended(actor, seconds=40)
        assert completed(record) == [*range(rounds), rounds, 2 * rounds]
    await owner.until_quiet(seconds=40)
    assert await owner.messages("held") == 0
    assert await owner.messages("dead") == 0
    assert max(ran[f"{actor}-{n}"] for actor in ids for n in range(rounds)) <= 1 + world.deaths

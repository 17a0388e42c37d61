"""What actors cost: round trips per local step, memory once parked."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.limits import Limits
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import gather, sleep
from sojourn.actors.workflow import workflow
from sojourn.codecs.record import Status

from .conftest import MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
word = Channel("word", int)


@step(registry=REGISTRY)
async def add(n: int) -> int:
    return n + 1


@workflow(registry=REGISTRY)
async def count_to(n: int) -> int:
    total = 0
    for _ in range(n):
        total = await add(total)
    return total


@workflow(registry=REGISTRY)
async def nap(seconds: float) -> str:
    await sleep(seconds)
    return "rested"


async def twice(n: int) -> int:
    return await add(await add(n)) - n


@workflow(registry=REGISTRY)
async def count_apart(branches: int) -> int:
    return sum(await gather(*(twice(n) for n in range(branches))))


@workflow(registry=REGISTRY)
async def naps(branches: int) -> int:
    await gather(*(sleep(0.5) for _ in range(branches)))
    return branches


@workflow(registry=REGISTRY)
async def listen() -> int:
    return await word.receive()


@pytest.mark.usefixtures("quick_code")
async def test_a_local_step_costs_one_round_trip(owners: MakeOwner) -> None:
    owner = await owners(limits=Limits(transitions_per_second=100_000))

    async def requests_of(actor: str, steps: int) -> int:
        before = owner.broker.requests_sent
        await owner.start(actor, "count_to", steps)
        assert completed(await owner.until_ended(actor, seconds=30)) == steps
        await owner.until_quiet()
        return owner.broker.requests_sent - before

    few, many = await requests_of("few", 1), await requests_of("many", 101)
    # Once a second at most three floors are read, whatever the actors do; nothing else may come on top.
    assert 100 <= many - few <= 106
    # The start, one commit for each result: with the next suspension, or with the end, which is the seal too.
    assert owner.services.marks.commits == (1 + 1) + (1 + 101)


async def test_parked_actors_leave_nothing_in_the_owners_memory(owners: MakeOwner) -> None:
    owner = await owners(hot_actors=10)
    await asyncio.gather(*(owner.start(f"s{n}", "listen") for n in range(200)))
    await owner.until_messages("ctl", 0)
    await owner.until_quiet()
    assert owner.partition.statistics().hosts == 0
    assert 0 < owner.partition.statistics().hot <= 10


async def test_who_sleeps_for_long_or_has_ended_is_not_kept_hot(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("long", "nap", 3600)
    await owner.until_waiting("long", "sleep")
    await owner.start("counter", "count_to", 1)
    await owner.until_ended("counter")
    await owner.until_quiet()
    assert owner.partition.statistics().hot == 0

    await owner.start("short", "nap", 5)
    await owner.until_waiting("short", "sleep")
    await owner.start("mail", "listen")
    await owner.until_waiting("mail", "receive")
    await owner.until_quiet()
    assert owner.partition.statistics().hot == 2


async def test_who_is_parked_at_once_goes_on_from_its_record(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("long", "nap", 3600)
    await owner.until_waiting("long", "sleep")
    await owner.until_quiet()
    assert owner.partition.statistics().hot == 0
    await owner.control("long", "cancel")
    assert (await owner.until_ended("long")).index.status is Status.CANCELLED


async def test_branches_whose_steps_end_together_do_not_cost_a_commit_each(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("wide", "count_apart", 200)
    assert completed(await owner.until_ended("wide", seconds=30)) == 200 * 2
    record = await owner.record("wide")
    assert record is not None
    assert record.index.steps == 400
    assert record.index.transition < 100


async def test_timers_of_many_branches_are_armed_side_by_side(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("naps", "naps", 200)
    assert completed(await owner.until_ended("naps", seconds=30)) == 200
    record = await owner.record("naps")
    assert record is not None
    assert record.index.transition < 100

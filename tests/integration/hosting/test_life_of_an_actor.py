"""The whole way of one actor on a real server: start, step, sleep, receive, result."""

from __future__ import annotations

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import sleep
from sojourn.actors.workflow import workflow

from .conftest import MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
approval = Channel("approval", str)


@step(registry=REGISTRY)
async def double(n: int) -> int:
    return 2 * n


@step(registry=REGISTRY)
def triple(n: int) -> int:
    return 3 * n


@workflow(registry=REGISTRY)
async def onboard(n: int) -> str:
    first = await double(n)
    await sleep(0.3)
    answer = await approval.receive()
    second = await triple(first)
    return f"{answer} {first} {second}"


async def test_an_actor_starts_runs_steps_sleeps_receives_and_ends(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("a1", "onboard", 5)
    await owner.until_waiting("a1", "receive")
    await owner.signal("a1", "approval", "yes")
    assert completed(await owner.until_ended("a1")) == "yes 10 30"
    await owner.until_quiet()
    assert (await owner.record("a1")).index.sealed

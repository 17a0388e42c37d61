"""`map`: results in order, a bounded number at a time, and what a failure or a cancel does to the rest."""

from __future__ import annotations

from typing import Any

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.errors import OnlyInWorkflow, WorkflowCancelled, WorkflowFailed
from sojourn.actors.limits import Limits
from sojourn.actors.mapping import map
from sojourn.actors.registry import Registry
from sojourn.actors.retry import Retry
from sojourn.actors.scopes import timeout
from sojourn.actors.step import step
from sojourn.actors.verbs import create_task, gather, sleep
from sojourn.actors.workflow import workflow

from sojourn.testing import World

REGISTRY = Registry()
go = Channel("go", int)
running: list[int] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    running.clear()


@step(registry=REGISTRY, retry=Retry(attempts=1))
async def double(n: int) -> int:
    running.append(n)
    if n == 13:
        raise OSError("unlucky")
    return 2 * n


@step(registry=REGISTRY, retry=Retry(attempts=2, backoff="1h..1h"))
async def stubborn(n: int) -> int:
    running.append(n)
    raise OSError("again")


@step(registry=REGISTRY)
async def two(a: int, b: int) -> int:
    return a + b


@workflow(registry=REGISTRY)
async def doubles(start: int, count: int, limit: int) -> list[int]:
    return await map(double, range(start, start + count), limit=limit)


@workflow(registry=REGISTRY)
async def twice_and_beside(count: int) -> list[Any]:
    task = create_task(map(double, range(count), limit=2))
    await sleep("1s")
    a, b = await gather(map(double, [1, 2]), sleep("1h"))
    return [await task, a, b, await map(double.options(timeout="5s"), [3])]


@workflow(registry=REGISTRY)
async def stuck_in_retries(count: int) -> str:
    try:
        async with timeout("10m"):
            await map(stubborn, range(count), limit=3)
    except TimeoutError:
        return "late"
    return "no"


@workflow(registry=REGISTRY)
async def unlucky() -> str:
    try:
        await map(double, [12, 13, 14, 15], limit=1)
    except OSError as error:
        return str(error)
    return "no"


@workflow(registry=REGISTRY)
async def cleans_up() -> None:
    try:
        await map(stubborn, range(10), limit=4)
    finally:
        running.append(-1)


@workflow(registry=REGISTRY)
async def wrong() -> None:
    await map(str, [1, 2])  # type: ignore[arg-type]  # what the test is about


@pytest.fixture(params=["moved", "hot", "crashing"])
def world(request: pytest.FixtureRequest) -> World:
    return World(REGISTRY, move=request.param != "hot", crash=request.param == "crashing")


@pytest.mark.parametrize(("count", "limit"), [(0, 5), (1, 1), (7, 3), (300, 100), (5, 1000)])
async def test_the_results_stand_in_the_order_of_the_items(world: World, count: int, limit: int) -> None:
    actor = await world.start(doubles(100, count, limit))
    assert actor.result() == [2 * n for n in range(100, 100 + count)]


async def test_no_more_than_the_limit_are_under_way() -> None:
    world = World(REGISTRY)
    actor = await world.start(stuck_in_retries(10))
    assert len(actor.record.envelope.calls) == 3
    assert sorted(running) == [0, 1, 2]
    await world.advance("11m")
    assert actor.result() == "late"
    assert sorted(running) == [0, 1, 2], "the others never began"


async def test_the_first_failure_is_raised_and_what_has_not_begun_never_does(world: World) -> None:
    actor = await world.start(unlucky())
    assert actor.result() == "unlucky"
    assert set(running) == {12, 13}


async def test_several_maps_and_other_branches_go_on_side_by_side(world: World) -> None:
    actor = await world.start(twice_and_beside(5))
    await world.advance("2h")
    assert actor.result() == [[0, 2, 4, 6, 8], [2, 4], None, [6]]


async def test_a_cancel_reaches_every_item_and_the_cleanup_around_them(world: World) -> None:
    actor = await world.start(cleans_up())
    await actor.cancel(reason="enough")
    with pytest.raises(WorkflowCancelled):
        actor.result()
    assert running[-1] == -1
    assert actor.record.envelope.calls == ()


async def test_it_keeps_within_the_limit_of_branches() -> None:
    world = World(REGISTRY, limits=Limits(branches=4))
    actor = await world.start(doubles(0, 12, 100))
    assert actor.result() == [2 * n for n in range(12)]


async def test_what_is_no_step_is_refused_at_the_call() -> None:
    world = World(REGISTRY)
    actor = await world.start(wrong())
    assert "map() takes a step of one argument" in actor.record.index.hold_reason


async def test_the_frame_grows_with_the_items_and_not_with_the_limit() -> None:
    world = World(REGISTRY)
    small, large = await world.start(stuck_in_retries(10)), await world.start(stuck_in_retries(1_000))
    assert large.frame_bytes - small.frame_bytes < 60 * 990


async def test_outside_of_a_workflow_it_says_so() -> None:
    with pytest.raises(OnlyInWorkflow):
        await map(double, [1])


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        map(double, [1], limit=0)


async def test_a_failed_item_fails_the_workflow_with_its_own_exception() -> None:
    world = World(REGISTRY)
    actor = await world.start(doubles(0, 20, 4))
    with pytest.raises(WorkflowFailed, match="unlucky"):
        actor.result()

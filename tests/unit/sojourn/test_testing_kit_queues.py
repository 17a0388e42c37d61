"""The testing kit: queued steps run inline, or wait until the test has them run."""

from __future__ import annotations

import pytest

from sojourn import Registry, Rejected, Retry, StepTimeout, current, step, workflow
from sojourn.testing import Queued, World

R = Registry()
ran: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


@step(queue="gpu", timeout="10m", queue_timeout="1h", retry=Retry(2, "1m"), registry=R)
async def resize(name: str, *, size: int) -> str:
    ran.append((name, current.step.attempt))
    if name == "broken" and current.step.attempt == 1:
        raise OSError("card")
    if name == "forbidden":
        raise Rejected("no")
    return f"{name}@{size}"


@workflow(registry=R)
async def thumbnail(name: str) -> str:
    try:
        return await resize(name, size=64)
    except StepTimeout:
        return "nobody came"


@pytest.fixture(params=["moved", "hot", "crashing"])
def world(request: pytest.FixtureRequest) -> World:
    return World(R, move=request.param != "hot", crash=request.param == "crashing")


async def test_a_queued_step_runs_like_any_other(world: World) -> None:
    made = await world.start(thumbnail("a"))

    assert made.result() == "a@64"
    assert made.executed[0].kwargs == {"size": 64}
    assert world.queued() == []


async def test_it_is_tried_again(world: World) -> None:
    made = await world.start(thumbnail("broken"))
    await world.advance("2m")

    assert made.result() == "broken@64"
    assert sorted(set(ran)) == [("broken", 1), ("broken", 2)]


async def test_a_rejection_comes_back_as_itself(world: World) -> None:
    made = await world.start(thumbnail("forbidden"))

    with pytest.raises(Rejected):
        made.result()


async def test_it_can_be_replaced(world: World) -> None:
    replaced = World(R, steps={resize: lambda name, size: f"fake {name}"})

    assert (await replaced.start(thumbnail("a"))).result() == "fake a"
    assert ran == []


async def test_without_workers_it_waits_in_its_queue() -> None:
    world = World(R, workers=False)
    made = await world.start(thumbnail("a"), id="t1")

    assert world.queued() == [Queued("gpu", "t1", "resize", 1, ("a",), {"size": 64})]
    assert made.wait == "step resize in queue gpu"
    assert not await world.work("cpu")
    assert await world.work("gpu")

    assert made.result() == "a@64"
    assert not await world.work()


async def test_nobody_came_in_time() -> None:
    world = World(R, workers=False)
    made = await world.start(thumbnail("a"))

    await world.advance("70m")
    await world.advance("1m")
    assert [task.attempt for task in world.queued()] == [1, 2]
    await world.advance("70m")

    assert made.result() == "nobody came"
    assert await world.work()
    assert await world.work()
    assert ran == []


async def test_a_cancelled_workflows_task_is_not_run() -> None:
    world = World(R, workers=False)
    made = await world.start(thumbnail("a"))
    await made.cancel()

    assert await world.work()
    assert ran == []

"""A task that fails and that nobody awaits is told once, with its line, as asyncio does."""

from __future__ import annotations

import gc

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.scopes import TaskGroup
from sojourn.actors.verbs import create_task, gather, race, sleep, wait
from sojourn.actors.workflow import workflow

from sojourn.testing import World

REGISTRY = Registry()
go = Channel("go", int)


async def fails(after: str = "1m") -> None:
    await sleep(after)
    raise OSError("no such host")


LINE = fails.__code__.co_firstlineno + 2
TOLD = f"a task failed and nobody awaited it: OSError at fails line {LINE}"


@workflow(registry=REGISTRY)
async def forgets() -> str:
    create_task(fails())
    await sleep("1h")
    return "done"


@workflow(registry=REGISTRY)
async def keeps_and_forgets() -> str:
    task = create_task(fails())
    await sleep("1h")
    assert task.done()
    return "done"


@workflow(registry=REGISTRY)
async def awaits_late() -> str:
    task = create_task(fails())
    await sleep("1h")
    try:
        await task
    except OSError:
        return "seen"
    return "not seen"


@workflow(registry=REGISTRY)
async def asks_for_it() -> str:
    task = create_task(fails())
    await sleep("1h")
    return str(task.exception())


@workflow(registry=REGISTRY)
async def waits_for_it() -> str:
    task = create_task(fails())
    await wait(task)
    return "ended"


@workflow(registry=REGISTRY)
async def gathers() -> int:
    return len(await gather(fails("1m"), fails("2m"), return_exceptions=True))


@workflow(registry=REGISTRY)
async def races() -> str:
    name, _ = await race(quick=sleep("1s"), slow=fails())
    return name


@workflow(registry=REGISTRY)
async def groups() -> str:
    try:
        async with TaskGroup() as group:
            group.create_task(fails())
    except* OSError:
        pass
    return "seen"


@workflow(registry=REGISTRY)
async def cancels() -> str:
    task = create_task(fails())
    await sleep("1s")
    task.cancel()
    await sleep("1s")
    return "done"


@pytest.mark.parametrize("move", [True, False])
@pytest.mark.parametrize("code", [forgets, keeps_and_forgets])
async def test_a_failure_that_nobody_saw_is_told_once_with_its_line(code, move: bool) -> None:
    world = World(registry=REGISTRY, move=move)
    actor = await world.start(code())
    await world.advance("2h")
    assert actor.result() == "done"
    assert actor.warnings == [TOLD]
    noted = [one for one in actor.record.index.operations if one.kind == "task"]
    assert [(one.name, one.outcome) for one in noted] == [(f"OSError at fails line {LINE}", "error")]


async def test_it_is_told_when_it_fails_and_nothing_holds_it_not_at_the_end() -> None:
    world = World(registry=REGISTRY)
    actor = await world.start(forgets())
    await world.advance("2m")
    assert actor.status == "suspended"
    assert actor.warnings == [TOLD]


@pytest.mark.parametrize("move", [True, False])
@pytest.mark.parametrize(
    "code",
    [awaits_late, asks_for_it, waits_for_it, gathers, races, groups, cancels],
    ids=lambda code: code.name,
)
async def test_a_failure_that_somebody_saw_or_that_is_none_is_not_told(code, move: bool) -> None:
    world = World(registry=REGISTRY, move=move)
    actor = await world.start(code())
    await world.advance("2h")
    gc.collect()
    assert actor.status == "completed"
    assert actor.warnings == []

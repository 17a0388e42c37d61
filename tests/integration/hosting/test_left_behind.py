"""What an actor leaves behind when it is parked or has ended is freed at once: nothing of it waits for a full garbage collection.

A node's collector comes rarely (`cluster.garbage`), and what it frees by then lies between what lives on.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.errors import Rejected
from sojourn.actors.registry import Registry
from sojourn.actors.scopes import TaskGroup, timeout
from sojourn.actors.step import step
from sojourn.actors.verbs import gather, sleep, spawn
from sojourn.actors.workflow import workflow
from sojourn.codecs.record import Record

from .conftest import MakeOwner

pytestmark = pytest.mark.integration

REGISTRY = Registry()
ACTORS = 10
note = Channel("note", str)


@step(registry=REGISTRY)
async def double(n: int) -> int:
    return 2 * n


@step(registry=REGISTRY)
def triple(n: int) -> int:
    return 3 * n


@step(registry=REGISTRY, retry=1)
async def fails(n: int) -> int:
    raise ValueError(n)


@step(registry=REGISTRY, retry=1)
def fails_in_a_thread(n: int) -> int:
    raise ValueError(n)


@workflow(registry=REGISTRY)
async def returns() -> int:
    return 1


@workflow(registry=REGISTRY)
async def rejects() -> int:
    raise Rejected("no")


@workflow(registry=REGISTRY)
async def calls() -> int:
    return await triple(await double(1))


@workflow(registry=REGISTRY)
async def sleeps(seconds: float) -> None:
    await sleep(seconds)


@workflow(registry=REGISTRY)
async def receives() -> str:
    return await note.receive()


@workflow(registry=REGISTRY)
async def has_a_child() -> int:
    child = await spawn(returns())
    return await child


@workflow(registry=REGISTRY)
async def has_branches() -> int:
    async with TaskGroup() as group:
        group.create_task(sleep(0.01))
    return sum(await gather(double(1), triple(1)))


@workflow(registry=REGISTRY)
async def fails_with_its_step() -> int:
    return await fails(1)


@workflow(registry=REGISTRY)
async def has_a_defect() -> int:
    return [][1]


@workflow(registry=REGISTRY)
async def survives() -> int:
    """Everything that is raised at an await, and caught."""
    for failing in (fails, fails_in_a_thread):
        try:
            await gather(failing(1), double(1))
        except ValueError:
            await sleep(0.01)
    try:
        async with timeout(0.01):
            await note.receive()
    except TimeoutError:
        pass
    try:
        await note.receive(timeout=0.01)
    except TimeoutError:
        await double(1)
    return 1


def _ended(record: Record) -> bool:
    return record.index.status.ended


def _waits(record: Record) -> bool:
    return bool(record.envelope.waits)


def _held(record: Record) -> bool:
    return record.index.hold != ""


@pytest.fixture
def collector_at_rest() -> Iterator[None]:
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.usefixtures("collector_at_rest")
@pytest.mark.parametrize(
    ("name", "arguments", "until"),
    [
        ("returns", [], _ended),
        ("rejects", [], _ended),
        ("calls", [], _ended),
        ("sleeps", [0.02], _ended),
        ("sleeps", [3600.0], _waits),
        ("receives", [], _ended),
        ("receives", [], _waits),
        ("has_a_child", [], _ended),
        ("has_branches", [], _ended),
        ("fails_with_its_step", [], _ended),
        ("has_a_defect", [], _held),
        ("survives", [], _ended),
    ],
)
async def test_an_actor_leaves_no_cycles(
    owners: MakeOwner, name: str, arguments: list[float], until: Callable[[Record], bool]
) -> None:
    owner = await owners()

    async def run(prefix: str) -> None:
        actors = [f"{prefix}{n}" for n in range(ACTORS)]
        for actor in actors:
            await owner.start(actor, name, *arguments)
        if name == "receives" and until is _ended:
            for actor in actors:
                await owner.until_waiting(actor, "receive")
                await owner.signal(actor, "note", "yes")
        for actor in actors:
            await owner.until(actor, until)
        await owner.until_quiet()
        owner.services.hot_cache.drop_partition(0)

    await run("first")  # what is made on first use stays
    gc.collect()
    await run("a")
    gc.set_debug(gc.DEBUG_SAVEALL)
    found = gc.collect()
    kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
    assert found < ACTORS, kinds.most_common(20)

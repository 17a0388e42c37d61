"""An async generator that a workflow drops half way is closed in a branch of its own; its cleanup may await (I10)."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.dropped_generators import CloseDropped
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import create_task, sleep
from sojourn.actors.workflow import workflow

from sojourn.testing import World

REGISTRY = Registry()
go = Channel("go", int)
TOLD: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    TOLD.clear()


@step(registry=REGISTRY)
async def tell(what: str) -> str:
    TOLD.append(what)
    return what


async def pages(name: str = "pages", slowly: bool = True) -> AsyncIterator[int]:
    try:
        for number in range(5):
            await sleep("1m")
            yield number
    finally:
        await tell(f"{name} closing")
        if slowly:
            await sleep("20s")
        await tell(f"{name} closed")


CLOSED = ["pages closing", "pages closed"]


@workflow(registry=REGISTRY)
async def breaks() -> list[str]:
    async for page in pages():
        await sleep("1m")
        if page == 1:
            break
    await sleep("1h")
    return list(TOLD)


@workflow(registry=REGISTRY)
async def breaks_and_returns(slowly: bool) -> str:
    async for page in pages(slowly=slowly):
        if page == 1:
            break
    return "returned"


@workflow(registry=REGISTRY, grace="10s")
async def impatient() -> str:
    return await breaks_and_returns(True)


@workflow(registry=REGISTRY)
async def returns_inside() -> int:
    async for page in pages():
        await sleep("1m")
        return page
    return -1


@workflow(registry=REGISTRY)
async def waits_inside() -> None:
    async for _ in pages():
        await go.receive()


@workflow(registry=REGISTRY)
async def drops_a_variable() -> list[str]:
    held = pages()
    await anext(held)
    await sleep("1h")
    del held
    await sleep("1h")
    return list(TOLD)


@workflow(registry=REGISTRY)
async def of_another_generator() -> list[str]:
    async def outer() -> AsyncIterator[int]:
        async for page in pages("inner"):
            yield page

    async for _ in outer():
        break
    await sleep("1h")
    return list(TOLD)


@workflow(registry=REGISTRY)
async def in_a_task() -> list[str]:
    async def work() -> None:
        async for _ in pages():
            return

    await create_task(work())
    await sleep("1h")
    return list(TOLD)


@workflow(registry=REGISTRY)
async def closes_by_hand() -> list[str]:
    async with aclosing(pages()) as source:  # type: ignore[type-var]  # an async generator, annotated as what it yields
        async for _ in source:
            break
    return list(TOLD)


@workflow(registry=REGISTRY)
async def in_a_cycle() -> list[str]:
    source = pages()
    circle: list[Any] = [source]
    circle.append(circle)
    await anext(source)
    del source, circle
    await sleep("1h")
    return list(TOLD)


async def failing_cleanup() -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        await sleep("1m")
        raise OSError("the cleanup failed")


@workflow(registry=REGISTRY)
async def cleanup_fails() -> str:
    async for _ in failing_cleanup():
        break
    await sleep("1h")
    return "done"


async def ended(flow: Any, *arguments: Any, move: bool = True) -> Any:
    world = World(REGISTRY, move=move)
    run = await world.start(flow(*arguments), id="a")
    await world.advance("1d")
    return run.result()


@pytest.mark.parametrize("move", [True, False], ids=["moved", "hot"])
@pytest.mark.parametrize("flow", [breaks, drops_a_variable, in_a_task], ids=lambda flow: flow.name)
async def test_the_cleanup_of_a_dropped_generator_runs_once_and_may_await(flow: Any, move: bool) -> None:
    assert await ended(flow, move=move) == CLOSED
    gc.collect()
    assert TOLD == CLOSED


@pytest.mark.parametrize("move", [True, False], ids=["moved", "hot"])
async def test_the_end_of_a_workflow_waits_for_it(move: bool) -> None:
    assert await ended(breaks_and_returns, True, move=move) == "returned"
    assert await ended(returns_inside, move=move) == 0
    assert TOLD == CLOSED * 2


async def test_the_end_waits_no_longer_than_the_grace_period() -> None:
    world = World(REGISTRY)
    run = await world.start(impatient(), id="a")
    await world.advance("1d")
    assert run.result() == "returned"
    assert TOLD == ["pages closing"]


async def test_it_runs_when_a_workflow_is_cancelled_and_not_when_it_is_terminated() -> None:
    world = World(REGISTRY)
    run = await world.start(waits_inside(), id="a")
    await world.advance("2m")
    await run.cancel()
    await world.advance("1d")
    assert run.status == "cancelled"
    assert TOLD == CLOSED
    run = await world.start(waits_inside(), id="b")
    await world.advance("2m")
    await run.terminate()
    await world.advance("1d")
    gc.collect()
    assert TOLD == CLOSED


async def test_a_generator_inside_another_is_closed_too() -> None:
    assert await ended(of_another_generator) == ["inner closing", "inner closed"]


async def test_closing_by_hand_is_done_when_the_block_is_left() -> None:
    assert await ended(closes_by_hand) == CLOSED
    assert TOLD == CLOSED


async def test_nothing_runs_because_memory_was_reclaimed(recwarn: pytest.WarningsRecorder) -> None:
    """What the collector finds after the turn was dropped in a frame that has moved."""
    assert await ended(in_a_cycle) == []
    gc.collect()
    assert TOLD == []
    assert not recwarn.list


async def test_what_is_dropped_outside_of_its_actor_goes_in_silence(recwarn: pytest.WarningsRecorder) -> None:
    closer = CloseDropped("a/run1")
    source = failing_cleanup()
    with contextlib.suppress(StopIteration):
        source.asend(None).send(None)
    closer(source)
    del source
    gc.collect()
    assert TOLD == []
    assert not recwarn.list


async def test_a_cleanup_that_fails_is_told() -> None:
    world = World(REGISTRY)
    run = await world.start(cleanup_fails(), id="a")
    await world.advance("1d")
    assert run.result() == "done"
    line = failing_cleanup.__code__.co_firstlineno + 5
    assert run.warnings == [f"a task failed and nobody awaited it: OSError at failing_cleanup line {line}"]


async def test_the_stack_and_the_pin_of_a_cleanup_name_only_the_users_code() -> None:
    world = World(REGISTRY)
    run = await world.start(breaks_and_returns(True), id="a")
    await world.advance("2m")
    code = [part.partition("#")[0] for part in run.record.index.pin if "#" in part]
    assert code == [f"{__name__}:pages"]
    (wait,) = (wait for wait in run.record.envelope.waits if wait.stack)
    assert [place.function for place in wait.stack] == ["pages"]


def test_a_generator_that_a_fresh_process_restored_is_closed_there(tmp_path: Path) -> None:
    module = tmp_path / "dropping.py"
    module.write_text(textwrap.dedent(DROPPING))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    said = []
    for act in ("capture", "restore"):
        command = [
            sys.executable,
            "-W",
            "error",
            "-c",
            f"import dropping; dropping.{act}({str(tmp_path / 'frame')!r})",
        ]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        said.append(done.stdout.split())
    assert said == [["opened"], ["left", "dropped", "closing", "closed"]]


DROPPING = """
    import pathlib
    from sojourn.codecs import frames

    class Tick:
        def __await__(self):
            return (yield "tick")

    async def source():
        print("opened")
        try:
            yield 1
            yield 2
        finally:
            print("closing")
            await Tick()
            print("closed")

    async def work():
        async for number in source():
            await Tick()
            break
        print("left")
        await Tick()

    def capture(path):
        target = work()
        target.send(None)
        pathlib.Path(path).write_bytes(frames.dump(target).data)
        frames.discard(target)

    def restore(path):
        dropped = []
        target = frames.load(pathlib.Path(path).read_bytes(), dropped=dropped.append)
        target.send(None)
        frames.discard(target)
        print("dropped")
        closing = dropped.pop().aclose()
        closing.send(None)
        closing = frames.load(frames.dump(closing).data)
        try:
            closing.send(None)
        except StopIteration:
            pass
"""

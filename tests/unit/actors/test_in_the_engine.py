"""The public face inside running workflows, hot and with a round trip of the frame at every suspension."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from engine_kit import Actor
from sojourn.actors.channel import Channel
from sojourn.actors.current import current
from sojourn.actors.errors import NeverAwaited, Rejected, StepFailed
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import gather, sleep
from sojourn.actors.workflow import workflow

R = Registry()
go = Channel("go", int)


class Wrong(Exception):
    code: int


@step(registry=R)
async def double(x: int) -> int:
    return 2 * x


@step(registry=R, raises=[Wrong], retry=1)
def fails(how: str) -> int:
    if how == "declared":
        error = Wrong("declared")
        error.code = 7
        raise error
    raise RuntimeError(f"undeclared {how}")


@workflow(registry=R)
async def inline(x: int) -> int:
    await sleep(1)
    return await double(x)


@workflow(registry=R)
async def knows_itself() -> list[Any]:
    first = current.actor
    await sleep(60)
    second = current.actor
    try:
        current.step  # noqa: B018  # asking is the test
    except LookupError as error:
        return [first.id, first.run, first.workflow, first.deployment, second.time - first.time, str(error)]
    return []


@workflow(registry=R)
async def holds_calls(x: int) -> list[int]:
    call, again, options, nested = double(x), double(x + 1), double.options(timeout="1m"), inline(x)
    await go.receive()
    first = await call
    await go.receive()
    return [first, await again, await options(5), await nested]


@workflow(registry=R)
async def gathers(x: int) -> list[int]:
    return list(await gather(double(x), inline(x), double.options(retry=1)(x + 1)))


@workflow(registry=R)
async def forgets(x: int) -> int:
    double(x)
    return x


@workflow(registry=R)
async def catches() -> list[Any]:
    seen: list[Any] = []
    try:
        await fails("declared")
    except Wrong as error:
        await sleep(1)
        seen.append(error.code)
    try:
        await fails("otherwise")
    except RuntimeError as error:
        await sleep(1)
        seen.append(str(error))
    try:
        raise Rejected("mine", fact=[1])
    except Rejected as error:
        await sleep(1)
        seen.append(error.fact)
    return seen


@pytest.fixture(params=[False, True], ids=["hot", "parked"])
def actor(request: pytest.FixtureRequest) -> Iterator[Actor]:
    yield Actor(*R, parked=request.param)
    gc.collect()  # a warning of a call that went with a frame belongs to this test


def result(actor: Actor) -> Any:
    assert actor.record is not None
    outcome = actor.record.envelope.outcome
    assert outcome is not None, actor.record.index
    assert outcome.kind == "value", outcome
    return orjson.loads(bytes(outcome.value))


def test_a_workflow_knows_its_actor_and_no_step(actor: Actor) -> None:
    actor.start(knows_itself)
    actor.fire()
    assert result(actor) == [
        "a1",
        "run1",
        "knows_itself",
        "v1",
        60.0,
        "current.step is there in steps only, while a node runs them",
    ]


def test_calls_that_a_workflow_holds_across_awaits_go_on(actor: Actor) -> None:
    actor.start(holds_calls, 2)
    actor.signal("go", 1)
    actor.signal("go", 2)
    actor.fire()
    assert result(actor) == [4, 6, 10, 4]
    assert actor.executed == ["double"] * 4


def test_calls_of_steps_and_workflows_run_side_by_side(actor: Actor) -> None:
    actor.start(gathers, 3)
    actor.fire()
    assert result(actor) == [6, 6, 8]


def test_exceptions_of_steps_keep_their_facts_across_awaits(actor: Actor) -> None:
    actor.start(catches)
    for _ in range(3):
        actor.fire()
    assert result(actor) == [7, "undeclared otherwise", [1]]


def test_a_step_that_a_workflow_forgot_to_await_warns_at_its_line(actor: Actor) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actor.start(forgets, 1)
        gc.collect()
    assert [warning.category for warning in caught] == [NeverAwaited]
    assert "double(...) in forgets was never awaited" in str(caught[0].message)
    assert result(actor) == 1
    assert actor.executed == []


def test_an_undeclared_class_arrives_as_step_failed() -> None:
    """`StepFailed` says what it was; no class is looked up by a name out of a record."""
    registry = Registry()

    class Unknown(Exception):
        pass

    @step(registry=registry, retry=1, name="raises_unknown")
    def raises_unknown() -> None:
        raise Unknown("odd")

    @workflow(registry=registry, name="asks")
    async def asks() -> list[Any]:
        try:
            await raises_unknown()
        except StepFailed as error:
            return [error.step, error.attempts, error.type.rpartition(".")[2], error.message]
        return []

    actor = Actor(*registry, parked=False)
    actor.start(asks)
    assert result(actor) == ["raises_unknown", 1, "Unknown", "odd"]

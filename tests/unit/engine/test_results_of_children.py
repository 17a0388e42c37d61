"""What a parent's record keeps of children whose result it has taken."""

from __future__ import annotations

from copy import copy

import pytest
from engine_kit import Actor
from sojourn.actors.outcomes import of_exception, of_value
from sojourn.actors.registry import Registry
from sojourn.actors.verbs import gather, sleep, spawn
from sojourn.actors.workflow import workflow
from sojourn.codecs.record import Child

R = Registry()


@workflow(registry=R)
async def worker() -> str:
    return ""


@workflow(registry=R)
async def twice() -> str:
    child = await spawn(worker(), id="c")
    first = await child
    await sleep(10)
    return f"again {await child is first}"


@workflow(registry=R)
async def shared() -> str:
    child = await spawn(worker(), id="c")
    first, second = await gather(child, child)
    await sleep(10)
    return f"{first is second} {await child is first}"


@workflow(registry=R)
async def copied() -> str:
    child = await spawn(worker(), id="c")
    other = copy(child)
    await child
    try:
        return await other
    except RuntimeError as error:
        return str(error)


@workflow(registry=R)
async def fails_twice() -> str:
    child = await spawn(worker(), id="c")
    seen = []
    for _ in range(2):
        try:
            await child
        except Exception as error:
            seen.append(type(error).__name__)
        await sleep(10)
    return " ".join(seen)


@pytest.fixture(params=[False, True], ids=["hot", "parked"])
def parked(request: pytest.FixtureRequest) -> bool:
    return request.param


def kept(actor: Actor) -> Child:
    (child,) = actor.children()
    return child


@pytest.mark.parametrize("length", [3, 5_000])
def test_a_result_leaves_the_record_and_stays_with_the_child_in_the_frame(parked: bool, length: int) -> None:
    actor = Actor(worker, twice, parked=parked)
    actor.start(twice)
    actor.child_done("c", of_value(b'"%s"' % (b"x" * length)))
    assert kept(actor).joined
    assert kept(actor).outcome is None
    actor.fire()
    assert actor.result == "again True"


def test_branches_that_wait_for_one_child_share_its_result(parked: bool) -> None:
    actor = Actor(worker, shared, parked=parked)
    actor.start(shared)
    actor.child_done("c", of_value(b'"%s"' % (b"x" * 400)))
    actor.fire()
    assert actor.result == "True True"


def test_a_copy_of_a_child_has_no_result_that_another_took() -> None:
    actor = Actor(worker, copied)
    actor.start(copied)
    actor.child_done("c", of_value(b'"x"'))
    assert actor.result == "another object of child c has its result: await the one that spawn() returned"


def test_a_result_that_nobody_has_taken_stays() -> None:
    actor = Actor(worker, twice)
    actor.start(twice)
    assert not kept(actor).joined
    assert kept(actor).outcome is None


def test_an_error_is_raised_again_and_its_traceback_is_not_kept(parked: bool) -> None:
    actor = Actor(worker, fails_twice, parked=parked)
    actor.start(fails_twice)
    try:
        raise ValueError("no")
    except ValueError as error:
        outcome = of_exception(error)
    assert outcome.error is not None
    assert outcome.error.traceback
    actor.child_done("c", outcome, "failed")
    child = kept(actor)
    assert child.outcome is not None
    assert child.outcome.error is not None
    assert not child.outcome.error.traceback
    actor.fire()
    actor.fire()
    assert actor.result == "ChildFailed ChildFailed"

"""What a parent's record keeps of children whose result it has taken."""

from __future__ import annotations

import pytest
from engine_kit import Actor
from sojourn.actors.outcomes import of_exception, of_value
from sojourn.actors.registry import Registry
from sojourn.actors.verbs import sleep, spawn
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
    try:
        return f"again {await child == first}"
    except RuntimeError as gone:
        return str(gone)
    except Exception as error:
        return f"again {type(error).__name__}"


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


def test_a_small_result_can_be_awaited_a_second_time(parked: bool) -> None:
    actor = Actor(worker, twice, parked=parked)
    actor.start(twice)
    actor.child_done("c", of_value(b'"short"'))
    assert kept(actor).joined
    actor.fire()
    assert actor.result == "again True"


def test_a_large_result_leaves_the_record_with_the_commit_that_gives_it_to_the_code(parked: bool) -> None:
    actor = Actor(worker, twice, parked=parked)
    actor.start(twice)
    actor.child_done("c", of_value(b'"%s"' % (b"x" * 5_000)))
    assert kept(actor).joined
    assert kept(actor).outcome is None
    actor.fire()
    assert actor.result == (
        "the result of child c was taken before, and a large one is not kept; keep what `await` returned"
    )


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

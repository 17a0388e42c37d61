"""A verb that is called and not awaited does nothing; that is told at its line, and nothing that was awaited is."""

from __future__ import annotations

import gc
import warnings

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.errors import NeverAwaited, OnlyInWorkflow
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import (
    checkpoint,
    create_task,
    gather,
    race,
    receive,
    send,
    sleep,
    spawn,
    stage,
    wait,
)
from sojourn.actors.workflow import workflow

from sojourn.testing import World

REGISTRY = Registry()
note = Channel("note", int)


@step(registry=REGISTRY)
async def charge(n: int) -> int:
    return n


@workflow(registry=REGISTRY)
async def forgetful(what: str) -> str:
    match what:
        case "sleep":
            sleep("1d")
        case "spawn":
            spawn(child())
        case "note.receive":
            note.receive(timeout="1s")
        case "receive":
            receive(note)
        case "send":
            send("other", note, 1)
        case "gather":
            gather()
        case "checkpoint":
            checkpoint()
    await sleep("1s")
    return what


@workflow(registry=REGISTRY)
async def child() -> None:
    await sleep("1s")


@workflow(registry=REGISTRY)
async def careful() -> int:
    later = sleep("1s")  # held across awaits, and so through moves, before it is awaited
    await charge(1)
    await gather(sleep(1), charge(2), note.receive(timeout=1, default=0))
    await race(a=sleep(1), b=note.receive())
    task = create_task(sleep(1))
    await wait(task)
    await (await spawn(child()))
    await checkpoint()
    await later
    return 1


FORGOTTEN = ["sleep", "spawn", "note.receive", "receive", "send", "gather", "checkpoint"]


@pytest.mark.parametrize("what", FORGOTTEN)
async def test_a_verb_that_is_never_awaited_is_told_at_its_line(what: str) -> None:
    world = World(registry=REGISTRY)
    with pytest.warns(NeverAwaited, match=rf"{what}\(\.\.\.\) in forgetful was never awaited") as told:
        await world.start(forgetful(what))
    at = [warning for warning in told if str(warning.message).startswith(what)]
    assert at[0].filename == __file__
    assert at[0].lineno == forgetful.fn.__code__.co_firstlineno + 4 + 2 * FORGOTTEN.index(what)


@pytest.mark.parametrize("move", [True, False])
@pytest.mark.parametrize("crash", [True, False])
async def test_nothing_is_told_of_what_is_awaited_moved_or_lost_in_a_crash(move: bool, crash: bool) -> None:
    world = World(registry=REGISTRY, move=move, crash=crash)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actor = await world.start(careful())
        await world.advance("1h")
        gc.collect()
    assert actor.result() == 1


def test_outside_of_a_workflow_a_verb_says_where_it_works() -> None:
    with pytest.raises(OnlyInWorkflow, match=r"stage\(\) works inside a workflow only"):
        stage("x")

"""Actors that cannot run now: code that is not here, defects, actors that kill their node. Each is held with its last good record."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Iterator

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.client import Client
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.workflow import workflow
from sojourn.codecs.record import Status

from .conftest import Crash, MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)
mood = {"broken": True}


@step(registry=REGISTRY)
async def echo(n: int) -> int:
    return n


@workflow(registry=REGISTRY)
async def fragile() -> int:
    n = await note.receive()
    if mood["broken"]:
        raise ZeroDivisionError("a defect")
    return n


@workflow(registry=REGISTRY)
async def victim(n: int) -> int:
    first = await note.receive()
    return first + await echo(n)


VERSION = """
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.workflow import workflow

registry = Registry()
note = Channel("note", int)

@workflow(registry=registry)
async def versioned() -> int:
    n = await note.receive()
    return n + {constant}
"""


@pytest.fixture
def install() -> Iterator:
    """Makes a version of a module the one that this process has."""
    name = "hosting_versioned_app"

    def make(constant: int) -> Registry:
        module = types.ModuleType(name)
        module.__file__ = f"/nowhere/{name}.py"
        sys.modules[name] = module
        exec(compile(VERSION.format(constant=constant), module.__file__, "exec"), module.__dict__)
        return module.__dict__["registry"]

    yield make
    sys.modules.pop(name, None)


async def test_a_frame_whose_code_is_not_here_waits_unharmed_for_a_node_that_has_it(
    owners: MakeOwner, install
) -> None:
    first = await owners(registry=install(1))
    await first.start("v1", "versioned")
    await first.until_waiting("v1", "receive")
    await first.until_quiet()
    first.die()

    second = await owners(registry=install(2), taken_over=True)
    await second.signal("v1", "note", 10)
    record = await second.until("v1", lambda record: record.index.hold == "pin")
    assert "versioned" in record.index.hold_reason
    await second.until_messages("mail", 0)
    await second.until_messages("held", 1)
    await second.until_quiet()
    second.die()

    third = await owners(registry=install(1))
    assert completed(await third.until_ended("v1")) == 11
    await third.until_quiet()
    await third.until_messages("held", 0)


async def test_a_held_frame_goes_on_when_its_code_comes_to_this_node(owners: MakeOwner, install) -> None:
    first = await owners(registry=install(1))
    await first.start("v2", "versioned")
    await first.until_waiting("v2", "receive")
    first.die()
    registry = install(2)
    second = await owners(registry=registry, taken_over=True)
    await second.signal("v2", "note", 10)
    await second.until("v2", lambda record: record.index.hold == "pin")
    await second.until_messages("held", 1)
    registry.add(install(1).workflow("versioned"))
    second.partition.look_again()
    assert completed(await second.until_ended("v2")) == 11
    await second.until_quiet()


async def test_a_cancel_of_an_actor_whose_code_is_not_here_is_answered_at_once_and_kept(
    owners: MakeOwner, install
) -> None:
    first = await owners(registry=install(1))
    await first.start("v3", "versioned")
    await first.until_waiting("v3", "receive")
    first.die()
    registry = install(2)
    second = await owners(registry=registry, taken_over=True)
    await second.signal("v3", "note", 10)
    await second.until("v3", lambda record: record.index.hold == "pin")
    client = Client(second.watcher, second.subjects)
    handle = client.handle("v3")
    assert await handle.cancel(timeout=10)
    assert (await handle.describe()).index.hold == "pin"
    await second.until_messages("ctl", 0)
    registry.add(install(1).workflow("versioned"))
    second.partition.look_again()
    assert (await second.until_ended("v3")).index.status is Status.CANCELLED
    await client.close()


async def test_a_defect_quarantines_and_release_tries_again_from_the_last_good_record(
    owners: MakeOwner,
) -> None:
    owner = await owners()
    mood["broken"] = True
    await owner.start("f1", "fragile")
    await owner.until_waiting("f1", "receive")
    await owner.signal("f1", "note", 5)
    record = await owner.until("f1", lambda record: record.index.hold == "quarantined")
    assert "a defect" in record.index.hold_reason
    assert record.envelope.hold is not None
    assert "fragile" in record.envelope.hold.traceback
    await owner.until_messages("held", 1)
    await owner.until_quiet()
    mood["broken"] = False
    await owner.control("f1", "release")
    assert completed(await owner.until_ended("f1")) == 5
    await owner.until_quiet()


async def deaths_until_quarantine(owners: MakeOwner, actor: str) -> int:
    """Owners follow each other; each dies at the commit that would follow the actor's code, as if that had killed it.

    The first one came by its partition in peace: its death is not counted, but it is one.
    """
    for deaths in range(8):
        crash = Crash("before_user_commit", 1, about=actor)
        owner = await owners(fault=crash, taken_over=deaths > 0)
        over = asyncio.create_task(crash.happened.wait())
        held = asyncio.create_task(owner.until(actor, lambda record: record.index.hold == "quarantined"))
        await asyncio.wait((over, held), return_when=asyncio.FIRST_COMPLETED)
        done = held.done()
        for task in (over, held):
            task.cancel()
        await asyncio.wait((over, held))
        if done:
            return deaths
    raise AssertionError("it was never quarantined")


async def test_an_actor_that_kills_each_node_that_resumes_it_kills_at_most_five(owners: MakeOwner) -> None:
    first = await owners()
    await first.start("poison", "victim", 1)
    await first.start("innocent", "victim", 2)
    await first.until_waiting("poison", "receive")
    await first.until_waiting("innocent", "receive")
    await first.until_quiet()
    first.die()
    await first.signal("poison", "note", 7)
    await first.signal("innocent", "note", 1)
    assert await deaths_until_quarantine(owners, "poison") == 5
    last = await owners()
    record = await last.record("poison")
    assert record is not None
    assert record.frame  # its last good record
    assert completed(await last.until_ended("innocent")) == 3
    await last.until_messages("mail", 0)
    await last.until_quiet()


async def test_an_actor_that_kills_each_node_that_starts_it_kills_at_most_five(owners: MakeOwner) -> None:
    first = await owners(attach=False)
    await first.start("stillborn", "victim", 1)
    assert await deaths_until_quarantine(owners, "stillborn") == 5


async def test_an_actor_that_lives_to_commit_is_not_suspected_any_more(owners: MakeOwner) -> None:
    first = await owners()
    await first.start("sound", "victim", 1)
    await first.until_waiting("sound", "receive")
    first.die()
    second = await owners(taken_over=True)
    await second.signal("sound", "note", 1)
    assert completed(await second.until_ended("sound")) == 2
    record = await second.record("sound")
    assert record is not None
    assert record.envelope.attempts.count == 0

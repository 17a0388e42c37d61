"""An actor that had something of its own to go on with, and cannot run where it is: whatever brings an owner to it must stay stored (I11).

a sends mail              committed; flushed; now a's own flush is what it waits for, and no event will come
its owner dies            the event that a's record names as its lease is not acknowledged
an owner without the code takes over: a is held for its pin, its lease goes to HELD
an owner with the code    finds nothing that concerns a, unless the lease is still there
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator

import pytest
from sojourn.actors.registry import Registry

from .conftest import Crash, MakeOwner, completed

pytestmark = pytest.mark.integration

NAME = "hosting_held_work_app"
CODE = """
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.verbs import send
from sojourn.actors.workflow import workflow

registry = Registry()
note = Channel("note", int)

@workflow(registry=registry)
async def sends(target: str) -> int:
    await send(target, note, 1)
    return {constant}

@workflow(registry=registry)
async def takes() -> int:
    return await note.receive()
"""


@pytest.fixture
def install() -> Iterator[Callable[[int], Registry]]:
    """Makes a version of a module the one that this process has."""

    def make(constant: int) -> Registry:
        module = types.ModuleType(NAME)
        module.__file__ = f"/nowhere/{NAME}.py"
        sys.modules[NAME] = module
        exec(compile(CODE.format(constant=constant), module.__file__, "exec"), module.__dict__)
        registry = module.__dict__["registry"]
        assert isinstance(registry, Registry)
        return registry

    yield make
    sys.modules.pop(NAME, None)


async def test_a_flushed_send_of_an_actor_that_is_held_for_its_pin_is_gone_on_with_elsewhere(
    owners: MakeOwner, install: Callable[[int], Registry]
) -> None:
    crash = Crash("after_flush", about="a")
    first = await owners(registry=install(1), fault=crash)
    await first.start("b", "takes")
    await first.until_waiting("b", "receive")
    await first.start("a", "sends", "b")
    await crash.happened.wait()

    second = await owners(registry=install(2), taken_over=True)
    await second.until("a", lambda record: record.index.hold == "pin")
    await second.until_messages("held", 1)
    await second.until_quiet()
    await second.until_messages("held", 1)
    second.die()

    third = await owners(registry=install(1))
    assert completed(await third.until_ended("a")) == 1
    assert completed(await third.until_ended("b")) == 1
    await third.until_quiet()
    await third.until_messages("held", 0)

"""What an owner does while it attaches anew: the list of HELD that it begins with has everything that is there."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.workflow import workflow
from sojourn.cluster.hosting import partition
from sojourn.cluster.mail.strays import Strays

from .conftest import MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)


@workflow(registry=REGISTRY)
async def collect(n: int) -> list[int]:
    return [await note.receive() for _ in range(n)]


async def test_nothing_is_moved_between_the_fence_of_a_new_attach_and_the_end_of_that_attach(
    owners: MakeOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mover of the former epoch would store, under the new fence, what the new index does not know. The source comes again, is
    consumed and forgotten; then the copy is found, and consumed once more.
    """
    monkeypatch.setattr(partition, "LOOK_AT_TIMERS_SECONDS", 3600.0)
    owner = await owners()
    await owner.start("r", "collect", 3)
    await owner.until_waiting("r", "receive")
    await owner.control("r", "pause")
    await owner.until("r", lambda record: record.index.hold == "paused")
    await owner.until_quiet()
    mover = owner.partition._serving.mover
    owner.services.gate.shut("the mover waits")
    await owner.signal("r", "note", 1)
    async with asyncio.timeout(20):
        while not mover.tasks():  # noqa: ASYNC110 - nothing tells of a delivery
            await asyncio.sleep(0.01)
    (moving,) = mover.tasks()
    owner.epoch += 1
    listed, consumers = await owner._attach()
    owner.services.gate.open()
    await asyncio.wait((moving,))
    await owner.partition.reattached(owner.epoch, listed, consumers)

    await owner.until_messages("mail", 0)
    await owner.until_quiet()
    assert await owner.messages("held") == owner.partition.statistics().held == 1
    await owner.control("r", "resume")
    await owner.until("r", lambda record: record.index.resumes == 2)
    await owner.until_quiet()
    await owner.partition._serving.floors.refresh()
    await owner.signal("r", "note", 2)
    await owner.until("r", lambda record: record.index.resumes == 3)
    await owner.partition._look_for_strays(Strays(owner.services.held, 0))
    await owner.signal("r", "note", 3)
    assert completed(await owner.until_ended("r")) == [1, 2, 3]

"""Held events that their owner has lost sight of are found without a new attach."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.workflow import workflow
from sojourn.cluster.hosting import partition
from sojourn.cluster.hosting.hot_cache import HotCache

from .conftest import MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)


@workflow(registry=REGISTRY)
async def collect(n: int) -> list[int]:
    return [await note.receive() for _ in range(n)]


async def test_an_owner_finds_the_held_events_that_its_index_has_lost(
    owners: MakeOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "LOOK_AT_TIMERS_SECONDS", 0.5)
    owner = await owners(registry=REGISTRY)
    for actor, number in (("s1", 3), ("s2", 1)):
        await owner.start(actor, "collect", number)
        await owner.until_waiting(actor, "receive")
        await owner.control(actor, "pause")
        await owner.until(actor, lambda record: record.index.hold == "paused")
        for n in range(number):
            await owner.signal(actor, "note", n)
    await owner.until_messages("held", 4)
    await owner.until_messages("mail", 0)
    for actor in ("s1", "s2"):
        owner.partition._serving.held.forget(
            actor
        )  # as if a deletion of theirs had been confirmed, and come undone
        await owner.control(actor, "resume")
    assert completed(await owner.until_ended("s1")) == [0, 1, 2]
    assert completed(await owner.until_ended("s2")) == [0]
    await owner.until_quiet()
    await owner.until_messages("held", 0)


async def test_a_defect_in_the_partitions_housekeeping_does_not_end_it(
    owners: MakeOwner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody would look at timers, at actors on lanes, at what was lost sight of, until the next attach."""
    monkeypatch.setattr(partition, "LOOK_AT_TIMERS_SECONDS", 0.5)
    real, failures = HotCache.evict_idle, iter((True,))

    def evict_idle(cache: HotCache, now: float) -> int:
        if next(failures, False):
            raise RuntimeError("coroutines that cannot be discarded")
        return real(cache, now)

    monkeypatch.setattr(HotCache, "evict_idle", evict_idle)
    owner = await owners(registry=REGISTRY)
    await owner.start("s3", "collect", 1)
    await owner.until_waiting("s3", "receive")
    await owner.control("s3", "pause")
    await owner.until("s3", lambda record: record.index.hold == "paused")
    await owner.signal("s3", "note", 7)
    await owner.until_messages("held", 1)
    async with asyncio.timeout(20):
        while "partition 0: a defect in its housekeeping" not in caplog.messages:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    owner.partition._serving.held.forget("s3")
    await owner.control("s3", "resume")
    assert completed(await owner.until_ended("s3")) == [7]

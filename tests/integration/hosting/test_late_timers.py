"""A timer whose time came while the broker's store was full is armed again by its partition's owner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from sojourn.actors.registry import Registry
from sojourn.broker import timers
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Publish, StreamConfig
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects, Token, actor_id
from sojourn.broker.topology import MIB, Limits, Topology, apply
from sojourn.cluster.mail.late_timers import LateTimers

from .conftest import MakeOwner

pytestmark = pytest.mark.integration

REGISTRY = Registry()

SMALL = Limits(mail_bytes=8 * MIB, held_bytes=8 * MIB, dead_bytes=2 * MIB)
ACTOR, RUN = actor_id("sleeper"), Token("run")


@pytest.fixture
async def small() -> AsyncIterator[tuple[NatsBroker, Subjects]]:
    """A connection to a server that stores 32 MiB, with a topology."""
    async with EmbeddedServer(max_store_bytes=32 * MIB) as server:
        broker = await NatsBroker.connect(NatsOptions(servers=server.url, name="test"))
        topology = Topology(namespace="late", app="late", partitions=1, limits=SMALL)
        await apply(broker, topology)
        yield broker, topology.subjects
        await broker.close()


async def _fill(broker: NatsBroker) -> None:
    await broker.create_stream(StreamConfig("FILLER", ("filler",)))
    for _ in range(64):
        try:
            await broker.publish(Publish("filler", bytes(MIB)))
        except OutcomeUnknown as full:
            if "insufficient resources" not in str(full):
                raise
            return
    raise AssertionError("the store was not full")


async def _wake_ups(broker: NatsBroker, subjects: Subjects) -> int:
    return sum((await broker.subjects(subjects.wake_stream, subjects.wake_filter(0))).values())


async def test_a_timer_that_came_due_on_a_full_store_fires_after_its_owner_looked(
    small: tuple[NatsBroker, Subjects],
) -> None:
    broker, subjects = small
    due = time.time() + 1.5
    await broker.publish(timers.arm(subjects, ACTOR, RUN, 1, at=due, payload=b"{}"))
    await broker.publish(timers.arm(subjects, ACTOR, RUN, 2, at=due + 3600, payload=b"{}"))
    await _fill(broker)
    await asyncio.sleep(due + 1.0 - time.time())  # the broker tells nobody that it could not fire
    await broker.purge("FILLER", "filler")
    await asyncio.sleep(1.0)
    assert await _wake_ups(broker, subjects) == 0, "the broker fires it by itself now: LateTimers can go"

    late = LateTimers(broker, subjects, 0, late_seconds=0.5)
    assert await late.look(time.time()) == 1
    async with asyncio.timeout(5):
        while (wake := await broker.read_next(subjects.wake_stream, subjects.wake_filter(0), 1)) is None:  # noqa: ASYNC110 - the broker tells nobody
            await asyncio.sleep(0.05)
    assert timers.fired(wake.headers) == timers.Fired("run", 1)
    assert wake.payload == b"{}"
    assert await late.look(time.time()) == 0
    left = await broker.subjects(subjects.wake_stream, subjects.timer_filter(0))
    assert left == {subjects.timer(ACTOR, RUN, 2): 1}


async def test_a_page_that_is_old_revives_no_timer_that_has_fired(small: tuple[NatsBroker, Subjects]) -> None:
    broker, subjects = small
    await broker.publish(timers.arm(subjects, ACTOR, RUN, 1, at=time.time() - 60))
    old = await broker.read_last(subjects.wake_stream, subjects.timer(ACTOR, RUN, 1))
    assert old is not None
    async with asyncio.timeout(5):
        while await broker.read_last(subjects.wake_stream, subjects.timer(ACTOR, RUN, 1)) is not None:  # noqa: ASYNC110 - the broker tells nobody
            await asyncio.sleep(0.05)
    late = LateTimers(broker, subjects, 0)
    assert not await late._arm_again(old, time.time())
    assert await broker.read_last(subjects.wake_stream, subjects.timer(ACTOR, RUN, 1)) is None


class TwoWereLate(LateTimers):
    async def look(self, now: float) -> int:
        return 2


async def test_an_owner_counts_the_timers_that_it_armed_again(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.partition._look_at_timers(TwoWereLate(owner.broker, owner.subjects, 0))
    assert owner.services.meter.value("timers_armed_again") == 2  # type: ignore[attr-defined]  # a Metrics here

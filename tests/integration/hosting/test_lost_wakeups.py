"""What a lane's nodes and its partition's owner owe each other while one of them attaches anew, or the actor is held. Nothing makes up
for a nudge here, so what is not told is waited for in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from sojourn.actors.errors import Cancelled
from sojourn.actors.step import step
from sojourn.actors.verbs import gather, send
from sojourn.actors.workflow import workflow
from sojourn.broker.absence import ALL
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.nats import NatsBroker
from sojourn.broker.seam import Ack, Publish, Stored
from sojourn.broker.subjects import actor_id
from sojourn.cluster.hosting import away
from sojourn.cluster.hosting.serving import LOADS
from sojourn.cluster.tenure.gate import Gate
from sojourn.codecs.record import Status

from .conftest import Crash, MakeOwner, Owner, completed
from .test_lanes import REGISTRY, Sides, note, other

pytestmark = pytest.mark.integration

started, may_end = asyncio.Event(), asyncio.Event()


@step(registry=REGISTRY)
async def gated(n: int) -> int:
    started.set()
    await may_end.wait()
    return n


@workflow(registry=REGISTRY, pin="deployment")
async def step_then_note() -> int:
    return await gated(1) + await note.receive()


@workflow(registry=REGISTRY, pin="deployment", grace=2.0)
async def cleans_up() -> int:
    try:
        return await note.receive()
    except Cancelled:
        await other.receive()
        raise


@pytest.fixture
async def sides(owners: MakeOwner, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sides]:
    monkeypatch.setattr(away, "LOOK_SECONDS", (3600.0, 3600.0))
    made = Sides(owners, {"v1", "v2"})
    yield made
    await made.close()


BATCH = "a batch"


class Unsteady:
    """A connection that holds up, or leaves without an answer, what a test says."""

    def __init__(self, broker: NatsBroker) -> None:
        self._broker = broker
        self.stalled = ""
        """The stream whose single messages are not read for now, or `BATCH`: the next batch is not stored for now."""
        self.met = asyncio.Event()
        self.go_on = asyncio.Event()
        self.answers_batches = True
        self.may_store = asyncio.Event()
        """While batches get no answer: set once they may be stored."""
        self.batch_stored = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def _stall(self, what: str) -> None:
        if what == self.stalled:
            self.met.set()
            await self.go_on.wait()

    async def read_next(self, stream: str, subject_filter: str, seq: int) -> Stored | None:
        if subject_filter == ALL:
            await self._stall(stream)
        return await self._broker.read_next(stream, subject_filter, seq)

    async def publish_batch(self, messages: Sequence[Publish], *, timeout: float = 5.0) -> Ack:
        if self.answers_batches:
            await self._stall(BATCH)
            return await self._broker.publish_batch(messages, timeout=timeout)
        await self.may_store.wait()
        if not self.batch_stored.is_set():
            await self._broker.publish_batch(messages, timeout=timeout)
            self.batch_stored.set()
        raise OutcomeUnknown("publish", messages[-1].subject, "the test lost the answer")


async def has_delivered(owner: Owner, count: int) -> None:
    async with asyncio.timeout(20):
        while owner.partition.statistics().unacknowledged < count:  # noqa: ASYNC110 - nothing tells of a delivery
            await asyncio.sleep(0.01)


async def test_the_end_of_grace_that_comes_while_an_actor_on_a_lane_is_paused_is_kept_for_later(
    sides: Sides,
) -> None:
    """The owner takes it itself, because it needs no code; but not while the actor is held."""
    owner, _ = await sides.owner(), await sides.lane()
    await owner.start("g", "cleans_up")
    await owner.until_waiting("g", "receive")
    await owner.control("g", "cancel")
    await owner.control("g", "pause")
    await owner.until("g", lambda record: record.index.hold == "paused")
    async with asyncio.timeout(20):
        while not owner.services.meter.value("events", kind="timer"):  # type: ignore[attr-defined]  # noqa: ASYNC110 - Metrics; nobody tells
            await asyncio.sleep(0.02)
    await owner.until_messages("wake", 0)
    await owner.control("g", "resume")
    record = await owner.until_ended("g")
    assert record.index.status is Status.TERMINATED
    for short in ("mail", "ctl", "held"):
        await owner.until_messages(short, 0)


async def test_events_whose_sources_are_read_while_their_owner_attaches_anew_are_moved_once(
    sides: Sides, connect: Callable[[], Awaitable[NatsBroker]]
) -> None:
    """They come again, under the new consumer: what was in memory before is theirs no more."""
    unsteady = Unsteady(await connect())
    owner = await sides.owner(broker=unsteady)
    await owner.start("a", "takes", 2)
    await owner.until_messages("held", 1)
    await owner.until_messages("ctl", 0)
    unsteady.stalled = owner.subjects.mail_stream
    await owner.signal("a", "note", 1)
    await unsteady.met.wait()
    await owner.reattach(owner.epoch + 1)
    await has_delivered(owner, 1)
    unsteady.go_on.set()
    await owner.until_messages("mail", 0)
    await owner.until_quiet()
    assert await owner.messages("held") == owner.partition.statistics().held == 2
    await sides.lane()
    await owner.signal("a", "note", 2)
    assert completed(await owner.until_ended("a")) == [1, 2]


async def test_what_was_moved_without_the_owner_hearing_of_it_before_it_attached_anew_is_told_to_the_lane(
    sides: Sides, connect: Callable[[], Awaitable[NatsBroker]]
) -> None:
    unsteady = Unsteady(await connect())
    owner, node = await sides.owner(broker=unsteady), await sides.lane()
    await owner.start("a", "takes", 2)
    await owner.until_waiting("a", "receive")
    await owner.until_quiet()
    serving = owner.partition._serving
    unsteady.stalled = BATCH
    await owner.signal("a", "note", 1)
    await unsteady.met.wait()
    await owner.signal("a", "note", 2)
    async with asyncio.timeout(20):
        while not serving.mover._parcels:  # noqa: ASYNC110 - nothing tells of a delivery
            await asyncio.sleep(0.01)
    unsteady.answers_batches = False
    unsteady.go_on.set()
    await owner.until(
        "a", lambda record: record.index.resumes == 2
    )  # the first was moved, and the lane was nudged
    unsteady.may_store.set()
    await unsteady.batch_stored.wait()
    for _ in range(LOADS):  # many others are looked at first
        await serving.loads.acquire()
    await owner.reattach(owner.epoch + 1)
    await node.stop_hearing()
    await node.hear()
    unsteady.answers_batches = True
    await owner.until_messages("mail", 0)
    for _ in range(LOADS):
        serving.loads.release()
    assert completed(await owner.until_ended("a")) == [1, 2]


async def test_what_a_lane_was_told_of_while_it_was_attached_anew_is_not_forgotten(sides: Sides) -> None:
    """Its node said that it has noted it, after it had read the list."""
    owner, node = await sides.owner(), await sides.lane()
    await owner.start("a", "takes", 1)
    await owner.until_waiting("a", "receive")
    await owner.until_messages("held", 0)
    node.services.hot_cache.drop("a")
    loads = node.partition._serving.loads
    for _ in range(LOADS):  # many others are looked at first
        await loads.acquire()
    listed = await node.services.held.look(0)
    await owner.signal("a", "note", 1)
    async with asyncio.timeout(20):
        while not node.partition.statistics().held:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    await node.partition.reattached(node.epoch + 1, listed, {})
    for _ in range(LOADS):
        loads.release()
    assert completed(await owner.until_ended("a")) == [1]


async def test_what_a_lane_is_told_of_while_it_is_dropped_is_not_noted(sides: Sides) -> None:
    """Its successor may have read the list already."""
    node = await sides.lane(hears=False)
    noting = asyncio.create_task(node.partition.nudged(actor_id("a")))
    await asyncio.sleep(0)
    node.partition.drop()
    assert await noting is False


async def test_an_actor_whose_step_ran_at_a_former_owner_needs_no_memory_here_once_it_is_on_a_lane(
    sides: Sides,
) -> None:
    former = await sides.owner(own="v1")
    await former.start("a", "step_then_note")
    await started.wait()
    owner = await sides.owner()
    former.partition.drop()
    may_end.set()  # its outcome comes through `done`
    await sides.lane()
    await owner.until_waiting("a", "receive")
    await owner.until_messages("ctl", 0)
    async with asyncio.timeout(20):
        while owner.partition.statistics().hosts:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    await owner.signal("a", "note", 2)
    assert completed(await owner.until_ended("a")) == 3


@step(registry=REGISTRY)
async def never_ends() -> None:
    await asyncio.Event().wait()


@workflow(registry=REGISTRY, pin="deployment")
async def tells_after_note(to: str) -> None:
    await note.receive()
    await gather(never_ends(), send(to, note, 5))
    await other.receive()


async def test_a_lane_node_that_finds_the_lease_gone_looks_whether_it_was_moved_before_it_takes_the_outbox_for_flushed(
    sides: Sides, connect: Callable[[], Awaitable[NatsBroker]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the actor because of other mail in HELD, just when the owner has put it on the lane."""
    monkeypatch.setattr("sojourn.cluster.mail.mailbox.MOVE_AFTER_SECONDS", 0.0)
    crash = Crash("before_flush", about="a")
    former = await sides.owner(own="v1", fault=crash)
    await former.start("a", "tells_after_note", "b")
    await former.until_waiting("a", "receive")
    await former.signal("a", "other", 1)
    await former.until_messages("held", 1)
    await former.until_quiet()
    await former.signal("a", "note", 1)
    await crash.happened.wait()  # its mail to `b` is in the record alone

    gate, on_lane = Gate(), asyncio.Event()
    gate.extend(float("inf"))
    gate.open()

    def stop(point: str, about: str = "") -> None:
        if point == "lane_committed":
            gate.shut("it is about to move the lease")
            on_lane.set()

    owner = await sides.owner(gate=gate, fault=stop)
    await on_lane.wait()
    unsteady = Unsteady(await connect())
    unsteady.stalled = owner.subjects.mail_stream
    await sides.lane(broker=unsteady, hears=False)
    await unsteady.met.wait()  # it asks for the lease
    gate.open()
    await owner.until_messages("mail", 0)
    unsteady.go_on.set()
    async with asyncio.timeout(20):
        while not await owner.services.held.of_actor(actor_id("b")):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)

"""A partition's owner of deployment v2 and lane nodes of v1, in one process: their code is the same, the label is what is pinned."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.events import Event
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import sleep
from sojourn.actors.workflow import workflow
from sojourn.broker.held import HeldStore
from sojourn.broker.seam import ConsumerConfig, Delivery, Pull
from sojourn.broker.subjects import Lane, Token
from sojourn.cluster.holding.lane_partition import LanePartition, NoMarks
from sojourn.cluster.hosting import away
from sojourn.cluster.hosting.hot_cache import HotCache
from sojourn.cluster.hosting.services import Fault, PartitionServices, no_fault
from sojourn.cluster.tenure.gate import Gate
from sojourn.codecs.record import Record

from .conftest import Crash, MakeOwner, Owner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)
other = Channel("other", int)
MILLION = 1_000_000


@step(registry=REGISTRY)
async def echo(n: int) -> int:
    return n


@workflow(registry=REGISTRY, pin="deployment")
async def takes(number: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < number:
        taken.append(await note.receive())
    return taken


@workflow(registry=REGISTRY, pin="deployment")
async def steps_between(number: int) -> list[int]:
    return [await echo(await note.receive()) for _ in range(number)]


@workflow(registry=REGISTRY, pin="deployment")
async def sleeps_on() -> int:
    await sleep(0.2)
    return await note.receive() + await other.receive()


@dataclass
class Labels:
    """As `Pins`, resolved by labels alone."""

    own: str
    living: set[str]
    starts: str = "v1"

    def refuses(self, record: Record) -> str:
        wanted = record.index.pinned_to or record.index.deployment
        return "" if wanted == self.own else f"it needs {wanted}"

    def missing(self, record: Record) -> tuple[str, ...]:
        return (refused,) if (refused := self.refuses(record)) else ()

    def elsewhere(self, record: Record) -> str:
        wanted = record.index.pinned_to or record.index.deployment
        hold = record.envelope.hold
        refused = hold is not None and hold.by == f"lane {wanted}"
        return wanted if wanted in self.living and wanted != self.own and not refused else ""

    def has_nodes(self, label: str) -> bool:
        return label in self.living

    def home_can(self, p: int, record: Record) -> bool:
        return False

    def for_start(self, event: Event) -> str:
        return self.starts


@dataclass(eq=False)
class LaneNode:
    """A node of deployment v1 that serves the lane of partition 0, and hears its nudges."""

    services: PartitionServices
    epoch: int
    living: set[str]
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    pull: Pull | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.partition = LanePartition(0, self.epoch, self.services, on_lost=lambda _: self.lost.set())

    async def attach(self, *, taken_over: bool = False, hears: bool = True) -> None:
        await self.partition.start(await self.services.held.look(0), {}, taken_over=taken_over)
        if hears:
            await self.hear()

    async def hear(self) -> None:
        subjects, broker = self.services.subjects, self.services.broker
        config = ConsumerConfig("lane-v1", (subjects.lane_filter(Token("v1")),), ack_wait=1.0)
        await broker.create_consumer(subjects.wake_stream, config)
        self.pull = await broker.pull(subjects.wake_stream, config.name, self._nudged, lambda _: None)

    def _nudged(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._note(delivery))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _note(self, delivery: Delivery) -> None:
        parsed = self.services.subjects.parse(delivery.message.subject)
        assert isinstance(parsed, Lane)
        await self.partition.nudged(parsed.actor)
        await self.services.broker.ack(delivery)

    async def stop_hearing(self) -> None:
        pull, self.pull = self.pull, None
        if pull is not None:
            await pull.stop()

    def die(self) -> None:
        """As a killed process."""
        self.living.discard(self.services.runner)
        self.services.steps.abandon(self.services)
        self.partition.drop()


@dataclass
class Sides:
    """Makes owners of the partition and nodes of its lane."""

    owners: MakeOwner
    labels: set[str]
    made: list[Owner | LaneNode] = field(default_factory=list)
    epochs: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def owner(
        self, *, own: str = "v2", gate: Gate | None = None, fault: Fault = no_fault, broker: Any = None
    ) -> Owner:
        base = await self.owners(attach=False, fault=fault, broker=broker)
        services = dataclasses.replace(
            base.services,
            deployment=own,
            resolver=Labels(own, self.labels),
            gate=gate or base.services.gate,
        )
        owner = Owner(base.broker, base.subjects, services, base.epoch, base.living, base.watcher)
        if isinstance(fault, Crash):
            fault.owner = owner
        self.made.append(owner)
        await owner.attach()
        return owner

    async def lane(
        self, *, fault: Fault = no_fault, gate: Gate | None = None, taken_over: bool = False, hears: bool = True,
        own: str = "v1", broker: Any = None, resolver: Labels | None = None,
    ) -> LaneNode:  # fmt: skip
        base = await self.owners(attach=False, fault=fault, broker=broker)
        services = dataclasses.replace(
            base.services,
            deployment="v1",
            resolver=resolver or Labels(own, self.labels),
            held=HeldStore(base.broker, base.subjects),
            hot_cache=HotCache(max_entries=100, max_bytes=MILLION),
            marks=NoMarks(),
            gate=gate or base.services.gate,
        )
        node = LaneNode(services, next(self.epochs), base.living)
        if isinstance(fault, Crash):
            fault.owner = node  # type: ignore[assignment]  # what a crash needs of it is `die`
        self.made.append(node)
        await node.attach(taken_over=taken_over, hears=hears)
        return node

    async def close(self) -> None:
        """End whatever was made."""
        for one in self.made:
            if isinstance(one, LaneNode):
                await one.stop_hearing()
                for task in one.tasks:
                    task.cancel()
            one.partition.drop()
            await one.services.step_runner.close()
        await asyncio.sleep(0)


@pytest.fixture
async def sides(owners: MakeOwner) -> AsyncIterator[Sides]:
    made = Sides(owners, {"v1", "v2"})
    yield made
    await made.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors on lanes are looked at again after a moment."""
    monkeypatch.setattr(away, "LOOK_SECONDS", (0.2, 1.0))


async def _empty(owner: Owner) -> None:
    """Nothing is left of any actor in the streams that feed or hold."""
    for short in ("mail", "ctl", "held"):
        await owner.until_messages(short, 0)


async def test_a_start_for_another_deployment_and_all_that_follows_goes_over_the_lane(sides: Sides) -> None:
    owner, _ = await sides.owner(), await sides.lane()
    await owner.start("a", "steps_between", 3)
    for number in range(3):
        await owner.signal("a", "note", number)
    record = await owner.until("a", lambda record: record.index.sealed)
    assert completed(record) == [0, 1, 2]
    assert (record.index.deployment, record.index.lane) == ("v1", "")
    assert (record.envelope.epoch, record.envelope.lane_epoch) == (owner.epoch, 0)  # the owner sealed it
    await _empty(owner)


async def test_a_stream_of_mail_is_taken_in_order_no_nudge_is_missed_and_the_consumed_set_stays_small(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        away, "LOOK_SECONDS", (3600.0, 3600.0)
    )  # nothing makes up for a nudge that is not sent
    owner, node = await sides.owner(), await sides.lane()
    await owner.start("a", "takes", 600)
    largest = 0

    async def send() -> None:
        for number in range(600):
            await owner.signal("a", "note", number)

    sending = asyncio.create_task(send())

    def fits(record: Record) -> bool:
        nonlocal largest
        largest = max(largest, len(record.envelope.consumed))
        return record.index.sealed

    assert completed(await owner.until("a", fits, seconds=60)) == list(range(600))
    await sending
    assert largest <= 300
    assert node.services.meter.value("commits", workflow="takes") >= 600  # type: ignore[attr-defined]  # Metrics
    await _empty(owner)


async def test_mail_that_nobody_waits_for_stays_held_on_the_lane_until_somebody_does(sides: Sides) -> None:
    owner, _ = await sides.owner(), await sides.lane()
    await owner.start("a", "sleeps_on")
    await owner.signal("a", "other", 30)
    await owner.until_messages("held", 1)
    await owner.until_waiting("a", "receive")
    await owner.signal("a", "note", 4)
    assert completed(await owner.until_ended("a")) == 34
    await owner.until_messages("held", 0)


async def test_a_lane_node_that_was_frozen_finds_the_later_epoch_and_commits_nothing(sides: Sides) -> None:
    gate = Gate()
    gate.extend(float("inf"))
    gate.open()
    freezes, frozen_there = False, asyncio.Event()

    def freeze(point: str, about: str = "") -> None:
        if freezes and point == "before_user_commit":
            gate.shut("frozen")
            frozen_there.set()

    owner, frozen = await sides.owner(), await sides.lane(gate=gate, fault=freeze)
    await owner.start("a", "takes", 3)
    await owner.signal("a", "note", 0)
    await owner.until("a", lambda record: record.index.resumes == 2)
    freezes = True
    await owner.signal("a", "note", 1)
    await frozen_there.wait()  # it has taken the mail, and is about to commit that
    await owner.until_messages("mail", 0)
    await frozen.stop_hearing()
    later = await sides.lane(taken_over=True)
    record = await owner.until("a", lambda record: record.index.resumes == 3)
    assert record.envelope.lane_epoch == later.epoch
    gate.open()
    async with asyncio.timeout(10):
        await frozen.lost.wait()
    await owner.signal("a", "note", 2)
    assert completed(await owner.until_ended("a")) == [0, 1, 2]


async def test_a_former_owner_meets_its_successors_epoch_in_what_a_lane_node_committed(sides: Sides) -> None:
    """Fails when a lane's commits carry the lane's epoch, which counts from 1, as the record's own."""
    gate = Gate()
    gate.extend(float("inf"))
    gate.open()
    former = await sides.owner(own="v1", gate=gate)
    await former.start("a", "takes", 3)
    await former.signal("a", "note", 0)
    await former.until("a", lambda record: record.index.resumes == 2)
    gate.shut("frozen")
    await former.signal("a", "note", 1)
    owner, node = await sides.owner(), await sides.lane()
    record = await owner.until("a", lambda record: record.index.resumes == 3)
    assert (record.envelope.epoch, record.envelope.lane_epoch) == (owner.epoch, node.epoch)
    assert node.epoch == former.epoch < owner.epoch
    gate.open()
    async with asyncio.timeout(10):
        while not any("epoch" in reason for reason in former.lost):  # noqa: ASYNC110 - its pulls broke off before
            await asyncio.sleep(0.02)
    former.partition.drop()
    await owner.signal("a", "note", 2)
    assert completed(await owner.until_ended("a")) == [0, 1, 2]


async def test_a_nudge_that_was_lost_is_made_up_for(sides: Sides, soon: None) -> None:
    owner, node = await sides.owner(), await sides.lane(hears=False)
    await owner.start("a", "takes", 1)
    await owner.signal("a", "note", 7)
    await owner.until_messages("mail", 0)
    lane = owner.subjects.lane_filter(Token("v1"))
    async with asyncio.timeout(10):
        while not await owner.watcher.subjects(owner.subjects.wake_stream, lane):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    await owner.watcher.purge(owner.subjects.wake_stream, lane)
    await node.hear()
    assert completed(await owner.until_ended("a")) == [7]


async def test_a_lane_node_that_died_before_it_could_nudge_the_owner_is_made_up_for(
    sides: Sides, soon: None
) -> None:
    owner = await sides.owner()
    crash = Crash("after_terminal_commit")
    await sides.lane(fault=crash)
    await owner.start("a", "takes", 1)
    await owner.signal("a", "note", 7)
    await crash.happened.wait()
    assert completed(await owner.until("a", lambda record: record.index.sealed)) == [7]
    await _empty(owner)


async def test_an_actor_comes_off_the_lane_when_its_deployment_has_no_nodes_and_back_when_it_has(
    sides: Sides,
) -> None:
    owner, node = await sides.owner(), await sides.lane()
    await owner.start("a", "takes", 3)
    await owner.signal("a", "note", 0)
    await owner.until("a", lambda record: record.index.resumes == 2)
    node.die()
    sides.labels.discard("v1")
    await owner.signal("a", "note", 1)
    record = await owner.until("a", lambda record: record.index.hold == "pin")
    assert (record.index.lane, record.index.hold_reason) == ("", "it needs v1")
    assert owner.partition.statistics().pinned == 1
    sides.labels.add("v1")
    await node.stop_hearing()
    await sides.lane(taken_over=True)
    owner.partition.look_again()
    await owner.signal("a", "note", 2)
    assert completed(await owner.until_ended("a")) == [0, 1, 2]
    assert owner.partition.statistics().pinned == 0


async def test_a_deployment_that_cannot_resume_the_frame_after_all_is_not_asked_again(sides: Sides) -> None:
    owner, able = await sides.owner(), await sides.lane()
    await owner.start("a", "takes", 1)
    await owner.until_waiting("a", "receive")
    able.die()
    await able.stop_hearing()
    await sides.lane(own="v0", taken_over=True)
    await owner.signal("a", "note", 1)
    record = await owner.until("a", lambda record: record.index.hold == "pin")
    assert record.envelope.hold is not None
    assert record.envelope.hold.by == "lane v1"
    owner.partition.look_again()
    await owner.until_quiet()
    record = await owner.until("a", lambda record: True)
    assert (record.index.hold, record.index.lane) == ("pin", "")
    assert await owner.messages("held") >= 1


async def test_terminate_reaches_an_actor_whose_lane_node_does_nothing(sides: Sides) -> None:
    gate = Gate()
    gate.extend(float("inf"))
    gate.open()
    owner, _ = await sides.owner(), await sides.lane(gate=gate)
    await owner.start("a", "takes", 2)
    await owner.signal("a", "note", 0)
    await owner.until("a", lambda record: record.index.resumes == 2)
    gate.shut("stuck")
    await owner.signal("a", "note", 1)
    await owner.control("a", "terminate", request="t")
    record = await owner.until("a", lambda record: record.index.sealed)
    assert (str(record.index.status), record.index.lane) == ("terminated", "")
    gate.open()
    await _empty(owner)

"""The six steps of an attach on a real server: whoever stops between two of them, or comes late, does no
harm.

PROTOCOL 9: crash, or freeze past the lease, of the owner while attaching, at each of its six steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from sojourn.broker.clock import BrokerClock
from sojourn.broker.held import HeldStore
from sojourn.broker.nats import NatsBroker
from sojourn.broker.seam import ConsumerConfig, Delivery, Publish
from sojourn.broker.subjects import ActorId, ChannelName, Subjects, fnv_partition
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.faults import POINTS
from sojourn.cluster.holding.attach import Attacher, NotOwner
from sojourn.cluster.tenure.directory import Directory
from sojourn.cluster.tenure.ownership import Member

pytestmark = pytest.mark.integration

STEPS = [point for point in POINTS if point.startswith("attach_")]
P = 5
ACTOR = ActorId(next(f"actor-{n}" for n in range(1000) if fnv_partition(f"actor-{n}", 32) == P))

Connect = Callable[[], Awaitable[NatsBroker]]


class Died(BaseException):
    """The process is gone: nothing after this point is done."""


@dataclass
class Party:
    """One node that attaches by hand: a connection, a lease, an attacher."""

    name: str
    broker: NatsBroker
    subjects: Subjects
    directory: Directory
    held: HeldStore
    attacher: Attacher

    async def end_lease(self) -> None:
        entry = await self.directory.member(self.name)
        await self.directory.end_member(self.name, expect=entry.revision)


Make = Callable[..., Awaitable[Party]]


@pytest.fixture
async def make(connect: Connect, namespace: str) -> Make:
    topology = Topology(namespace=namespace, app="tests")
    await apply(await connect(), topology)

    async def party(name: str, fault: Callable[[str, str], None] = lambda point, about="": None) -> Party:
        broker, subjects = await connect(), topology.subjects
        directory, held = Directory(broker, subjects), HeldStore(broker, subjects, node=name)
        clock = BrokerClock(broker, subjects.wake_stream)
        await clock.sync()
        await directory.put_member(Member(name, "L1", "ready"), expect=0, ttl=30)
        attacher = Attacher(
            broker, subjects, directory, held, node=name, lease="L1", broker_now=clock.now, fault=fault
        )
        return Party(name, broker, subjects, directory, held, attacher)

    return party


async def consumers_of(party: Party) -> dict[str, list[str]]:
    names = party.subjects
    return {
        stream: [
            name
            for name in await party.broker.consumers(stream)
            if (found := names.parse_consumer(name)) is not None and found[0] == P
        ]
        for stream in (names.mail_stream, names.ctl_stream, names.wake_stream)
    }


async def mail(party: Party, text: str) -> None:
    await party.broker.publish(Publish(party.subjects.mail(ACTOR, ChannelName("c")), text.encode()))


async def take(party: Party, consumer: str, count: int, *, ack: bool = True) -> list[str]:
    """Pull `count` mails with a consumer."""
    found: list[Delivery] = []
    done = asyncio.Event()

    def on_message(delivery: Delivery) -> None:
        found.append(delivery)
        if len(found) == count:
            done.set()

    pull = await party.broker.pull(party.subjects.mail_stream, consumer, on_message, lambda reason: None)
    async with asyncio.timeout(10):
        await done.wait()
    await pull.stop()
    for delivery in found:
        if ack:
            assert await party.broker.ack(delivery)
    return [delivery.message.payload.decode() for delivery in found]


async def test_an_attach_of_a_free_partition_takes_epoch_one_and_makes_three_consumers(make: Make) -> None:
    a = await make("a")
    attached = await a.attacher.attach(P)
    assert (attached.epoch, attached.moved, attached.taken_over) == (1, True, False)
    assert attached.consumers == {"mail": "p5-e1", "ctl": "p5-e1", "wake": "p5-e1"}
    assert all(names == ["p5-e1"] for names in (await consumers_of(a)).values())


async def test_the_same_owner_attaches_anew_under_the_next_epoch(make: Make) -> None:
    a = await make("a")
    await a.attacher.attach(P)
    since = (await a.directory.owner(P)).value
    again = await a.attacher.attach(P)
    now = (await a.directory.owner(P)).value
    assert (again.epoch, again.moved, again.taken_over) == (2, False, False)
    assert all(names == ["p5-e2"] for names in (await consumers_of(a)).values())
    assert now is not None
    assert since is not None
    assert now.since == since.since, "attaching anew is not a move"


async def test_the_first_attach_of_all_is_no_move_and_every_later_one_is(make: Make) -> None:
    a, b = await make("a"), await make("b")
    await a.attacher.attach(P)
    first = (await a.directory.owner(P)).value
    await a.end_lease()
    await b.attacher.attach(P)
    second = (await a.directory.owner(P)).value
    assert first is not None
    assert second is not None
    assert first.since == 0.0
    assert second.since > 0.0


async def test_nobody_attaches_what_a_living_node_holds(make: Make) -> None:
    a, b = await make("a"), await make("b")
    await a.attacher.attach(P)
    with pytest.raises(NotOwner) as refused:
        await b.attacher.attach(P)
    assert (refused.value.holder, refused.value.epoch) == ("a/L1", 1)


async def test_a_freed_partition_is_attached_without_a_takeover(make: Make) -> None:
    a, b = await make("a"), await make("b")
    await a.attacher.attach(P)
    await a.attacher.releasing(P, 1)
    with pytest.raises(NotOwner):
        await b.attacher.attach(P)
    await a.attacher.free(P, 1)
    attached = await b.attacher.attach(P)
    assert (attached.epoch, attached.moved, attached.taken_over) == (2, True, False)


async def test_a_partition_whose_holders_lease_ended_is_a_takeover(make: Make) -> None:
    a, b = await make("a"), await make("b")
    await a.attacher.attach(P)
    await a.end_lease()
    attached = await b.attacher.attach(P)
    assert (attached.epoch, attached.moved, attached.taken_over) == (2, True, True)


@pytest.mark.parametrize("step", STEPS)
async def test_the_next_owner_takes_over_from_one_that_died_at(step: str, make: Make) -> None:
    def die(point: str, about: str = "") -> None:
        if point == step:
            raise Died(point)

    before, a, b = await make("before"), await make("a", die), await make("b")
    await mail(b, "first")
    await before.attacher.attach(P)
    await before.end_lease()
    with pytest.raises(Died):
        await a.attacher.attach(P)
    await a.end_lease()
    await mail(b, "second")
    attached = await b.attacher.attach(P)
    assert attached.epoch == 3
    assert all(names == ["p5-e3"] for names in (await consumers_of(b)).values())
    assert await take(b, "p5-e3", 2) == ["first", "second"]


@pytest.mark.parametrize("step", STEPS[:-1])
async def test_an_attach_that_was_frozen_past_its_lease_leaves_and_harms_nothing_at(
    step: str, make: Make
) -> None:
    frozen, goes_on = asyncio.Event(), asyncio.Event()
    a, b = await make("a"), await make("b")
    # A fault point is a plain call; the freeze is put before the broker call that follows it.
    calls = {
        "attach_owner": (a.broker, "delete_consumer"),
        "attach_delete": (a.broker, "create_consumer"),
        "attach_create": (a.held, "fence"),
        "attach_fence": (a.held, "list"),
        "attach_list": (a.directory, "owner"),
    }
    reached = False

    def reach(point: str, about: str = "") -> None:
        nonlocal reached
        reached = reached or point == step

    a.attacher._fault = reach
    target, name = calls[step]
    real = getattr(target, name)

    async def slow(*args: object, **kwargs: object) -> object:
        if reached:
            frozen.set()
            await goes_on.wait()
        return await real(*args, **kwargs)

    setattr(target, name, slow)
    await (await make("former")).attacher.attach(P)
    former = Directory(b.broker, b.subjects)
    await former.end_member("former", expect=(await former.member("former")).revision)

    attaching = asyncio.create_task(a.attacher.attach(P))
    async with asyncio.timeout(10):
        await frozen.wait()
    await b.directory.end_member("a", expect=(await b.directory.member("a")).revision)
    assert (await b.attacher.attach(P)).epoch == 3
    goes_on.set()
    with pytest.raises(NotOwner):
        await attaching
    assert all(names == ["p5-e3"] for names in (await consumers_of(b)).values())
    await b.attacher.verify(P, 3)
    await mail(b, "for b")
    assert await take(b, "p5-e3", 1) == ["for b"]


async def test_messages_the_former_owner_did_not_acknowledge_come_again_in_order(make: Make) -> None:
    a, b = await make("a"), await make("b")
    await a.attacher.attach(P)
    for n in range(5):
        await mail(a, str(n))
    assert await take(a, "p5-e1", 5, ack=False) == ["0", "1", "2", "3", "4"]
    await a.end_lease()
    attached = await b.attacher.attach(P)
    assert await take(b, attached.consumers["mail"], 5) == ["0", "1", "2", "3", "4"]


async def test_the_former_owners_pull_is_told_and_its_late_acknowledgement_is_void(make: Make) -> None:
    a, b = await make("a"), await make("b")
    await a.attacher.attach(P)
    await mail(a, "once")
    delivered: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    await a.broker.pull(a.subjects.mail_stream, "p5-e1", delivered.set_result, lost.set_result)
    delivery = await delivered
    await a.end_lease()
    attached = await b.attacher.attach(P)
    async with asyncio.timeout(10):
        await lost
    assert not await a.broker.ack(delivery)
    assert await take(b, attached.consumers["mail"], 1) == ["once"]


async def test_consumers_of_any_lower_epoch_are_deleted_and_one_of_a_higher_means_leave(make: Make) -> None:
    a = await make("a")
    names = a.subjects

    async def plant(epoch: int) -> None:
        config = ConsumerConfig(names.consumer(P, epoch), (names.in_filter(P),))
        await a.broker.create_consumer(names.ctl_stream, config)

    await a.attacher.attach(P)
    await a.broker.delete_consumer(names.ctl_stream, "p5-e1")
    await plant(0)  # left by an attach that broke off long ago
    await a.attacher.attach(P)
    assert (await consumers_of(a))[names.ctl_stream] == ["p5-e2"]
    await a.broker.delete_consumer(names.ctl_stream, "p5-e2")
    await plant(9)
    with pytest.raises(NotOwner):
        await a.attacher.attach(P)
    assert (await consumers_of(a))[names.ctl_stream] == ["p5-e9"]


async def test_of_many_that_attach_at_once_one_wins(make: Make) -> None:
    parties = [await make(name) for name in ("a", "b", "c", "d")]
    results = await asyncio.gather(*(party.attacher.attach(P) for party in parties), return_exceptions=True)
    assert sum(isinstance(result, NotOwner) for result in results) == 3
    owner = (await parties[0].directory.owner(P)).value
    assert owner is not None
    winner = next(party for party in parties if party.attacher.runner == owner.runner)
    assert all(names == [f"p5-e{owner.epoch}"] for names in (await consumers_of(winner)).values())

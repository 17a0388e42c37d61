"""Leases on the in-memory broker, with a clock that the test moves: holder, broker and prober each err on
their side.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import pytest
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.memory import MemoryBroker, MemoryServer
from sojourn.broker.memory_faults import Fault
from sojourn.broker.seam import Received, Subscription
from sojourn.broker.subjects import Subjects, Token
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.tenure.directory import Directory
from sojourn.cluster.tenure.lease import Lease, LeaseLost, LeaseTerms, Ring, Vitals
from sojourn.cluster.tenure.ownership import Member

TERMS = LeaseTerms()


@dataclass
class World:
    """One server, one connection, one clock for the broker and the nodes alike."""

    server: MemoryServer
    broker: MemoryBroker
    subjects: Subjects
    directory: Directory
    now: float = 1000.0

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.server.advance()

    def lease(self, node: str, lease: str = "L1") -> Lease:
        member = Member(node=node, lease=lease, state="ready")
        return Lease(self.directory, member, now=lambda: self.now, ttl=TERMS.ttl)

    async def stored(self, node: str) -> str | None:
        found = (await self.directory.member(node)).value
        return found.lease if found is not None else None


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made: World | None = None
    server = MemoryServer(lambda: made.now if made is not None else 1000.0, timers=False)
    topology = Topology(namespace="t", app="tests")
    broker = await server.connect()
    await apply(broker, topology)
    made = World(server, broker, topology.subjects, Directory(broker, topology.subjects))
    yield made
    await broker.close()


async def test_a_lease_is_surely_valid_from_before_its_sending(world: World) -> None:
    assert await world.lease("a").acquire(0) == world.now + 30


async def test_a_lease_that_is_not_renewed_ends_by_the_brokers_clock(world: World) -> None:
    lease = world.lease("a")
    await lease.acquire(0)
    world.pass_time(29)
    assert await world.stored("a") == "L1"
    world.pass_time(2)
    assert await world.stored("a") is None
    with pytest.raises(LeaseLost, match="holds no lease"):
        await lease.renew()


async def test_renewals_keep_a_lease(world: World) -> None:
    lease = world.lease("a")
    await lease.acquire(0)
    for _ in range(20):
        world.pass_time(3)
        assert await lease.renew() == world.now + 30
    assert await world.stored("a") == "L1"


async def test_a_renewal_whose_answer_was_lost_counts_when_a_read_shows_it(world: World) -> None:
    lease = world.lease("a")
    await lease.acquire(0)
    world.server.faults.inject(Fault.LOSE_REPLY)
    assert await lease.renew() == world.now + 30
    world.pass_time(3)
    assert await lease.renew() == world.now + 30


async def test_a_renewal_that_was_not_stored_does_not_count(world: World) -> None:
    lease = world.lease("a")
    await lease.acquire(0)
    world.server.faults.inject(Fault.DROP)
    with pytest.raises(OutcomeUnknown):
        await lease.renew()
    assert await lease.renew() == world.now + 30


async def test_a_renewal_that_arrives_late_does_not_end_the_lease(world: World) -> None:
    lease = world.lease("a")
    await lease.acquire(0)
    world.server.faults.inject(Fault.DELAY)
    with pytest.raises(OutcomeUnknown):
        await lease.renew()
    world.server.release_delayed()
    with pytest.raises(OutcomeUnknown, match="older renewal"):
        await lease.renew()
    assert await lease.renew() == world.now + 30


async def test_a_lease_taken_over_by_another_life_is_lost_to_the_first(world: World) -> None:
    first = world.lease("a")
    await first.acquire(0)
    revision = (await world.directory.member("a")).revision
    await world.lease("a", "L2").acquire(revision)
    with pytest.raises(LeaseLost, match="holds lease L2") as lost:
        await first.renew()
    assert (lost.value.node, lost.value.lease) == ("a", "L1")


async def test_of_two_that_take_one_key_the_second_is_refused(world: World) -> None:
    await world.lease("a", "L1").acquire(0)
    with pytest.raises(LeaseLost):
        await world.lease("a", "L2").acquire(0)


async def test_a_lease_ended_by_its_holder_can_be_taken_at_once(world: World) -> None:
    lease = world.lease("a")
    await lease.acquire(0)
    await lease.end()
    assert await world.stored("a") is None
    await world.lease("a", "L2").acquire(0)
    assert await world.stored("a") == "L2"


def test_a_node_whose_engine_hears_nothing_from_the_broker_is_not_renewed() -> None:
    vitals = Vitals(tick=100.0, answered=89.0)
    assert "no answer for 11 s" in vitals.why_not_renew(100.0, TERMS)
    vitals.answered = 91.0
    assert vitals.why_not_renew(100.0, TERMS) == ""


def test_a_node_whose_engine_loop_is_stuck_is_renewed_for_thirty_seconds() -> None:
    vitals = Vitals(tick=70.0, answered=99.0)
    assert vitals.why_not_renew(100.0, TERMS) == ""
    vitals.tick = 69.0
    assert "has not run for 31 s" in vitals.why_not_renew(100.0, TERMS)


# early ending of a dead peer's lease


async def listen(world: World, node: str, *connections: str) -> list[Subscription]:
    async def answer(request: Received) -> None:
        await world.broker.reply(request, b"{}")

    return [
        await world.broker.subscribe(world.subjects.probe(Token(node), Token(connection)), answer)
        for connection in connections
    ]


@pytest.fixture
async def peers(world: World) -> Mapping[str, Member]:
    """`a` probes; `b` has a lease. Whether they listen is the test's affair."""
    for node in ("a", "b"):
        await world.lease(node).acquire(0)
    await listen(world, "a", "guard", "engine")
    view = await world.directory.poll(32)
    assert sorted(view.members) == ["a", "b"]
    return view.members


def ring(world: World) -> Ring:
    return Ring(world.broker, world.directory, world.subjects, "a", TERMS, now=lambda: world.now)


async def test_a_peer_silent_twice_a_second_apart_loses_its_lease(
    world: World, peers: Mapping[str, Member]
) -> None:
    looking = ring(world)
    assert await looking.look(peers, 0.0) == []
    world.pass_time(0.9)
    assert await looking.look(peers, 0.0) == []
    assert await world.stored("b") == "L1"
    world.pass_time(0.1)
    assert [member.node for member in await looking.look(peers, 0.0)] == ["b"]
    assert await world.stored("b") is None


@pytest.mark.parametrize("connection", ["guard", "engine"])
async def test_a_peer_with_one_connection_left_keeps_its_lease(
    world: World, peers: Mapping[str, Member], connection: str
) -> None:
    await listen(world, "b", connection)
    looking = ring(world)
    for _ in range(5):
        assert await looking.look(peers, 0.0) == []
        world.pass_time(1.0)


async def test_a_peer_that_answers_in_between_is_not_silent_twice(
    world: World, peers: Mapping[str, Member]
) -> None:
    looking = ring(world)
    assert await looking.look(peers, 0.0) == []
    (subscription,) = await listen(world, "b", "guard")
    world.pass_time(1.0)
    assert await looking.look(peers, 0.0) == []
    await subscription.stop()
    assert await looking.look(peers, 0.0) == []
    assert await world.stored("b") == "L1"


async def test_a_prober_connected_for_less_than_five_seconds_judges_nobody(
    world: World, peers: Mapping[str, Member]
) -> None:
    looking, connected = ring(world), world.now
    for _ in range(5):
        assert await looking.look(peers, connected) == []
        world.pass_time(0.9)
    assert await world.stored("b") == "L1"


async def test_a_prober_that_is_not_heard_itself_judges_nobody(world: World) -> None:
    for node in ("a", "b"):
        await world.lease(node).acquire(0)
    peers = (await world.directory.poll(32)).members
    looking = ring(world)
    for _ in range(5):
        assert await looking.look(peers, 0.0) == []
        world.pass_time(1.0)


async def test_a_peer_that_renews_while_it_is_judged_keeps_its_lease(world: World) -> None:
    lease = world.lease("b")
    await lease.acquire(0)
    await world.lease("a").acquire(0)

    async def renew_first(request: Received) -> None:
        await lease.renew()
        await world.broker.reply(request, b"{}")

    # The prober asks for its own answer last, just before it ends the lease.
    await world.broker.subscribe(world.subjects.probe(Token("a"), Token("guard")), renew_first)
    peers = (await world.directory.poll(32)).members
    looking = ring(world)
    await looking.look(peers, 0.0)
    world.pass_time(1.0)
    assert await looking.look(peers, 0.0) == []
    assert await world.stored("b") == "L1"


async def test_only_ring_neighbours_are_probed(world: World) -> None:
    for node in ("a", "b", "c", "d"):
        await world.lease(node).acquire(0)
    await listen(world, "a", "guard")
    await listen(world, "b", "guard")
    await listen(world, "d", "guard")
    peers = (await world.directory.poll(32)).members
    looking = ring(world)
    for _ in range(3):
        assert await looking.look(peers, 0.0) == []
        world.pass_time(1.0)
    assert await world.stored("c") == "L1", "c is b's and d's neighbour"

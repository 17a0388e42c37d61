"""A node that does not know whether it still is what it was (PROTOCOL 3): cut, frozen, ended, or its
broker was away.
"""

from __future__ import annotations

import asyncio
import pickle
import shutil
from typing import Any

import pytest
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.seam import Publish
from sojourn.broker.subjects import ActorId
from sojourn.cluster.holding.attach import NotOwner
from sojourn.cluster.holding.lanes import Lanes
from sojourn.cluster.membership import Membership
from sojourn.cluster.tenure.lease import LeaseTerms, NodeIdInUse
from sojourn.cluster.tenure.ownership import Member

pytestmark = pytest.mark.integration

SHORT = LeaseTerms(ttl=3, renew=0.5, answer=1.5, tick=3.0, probe=0.1, silent=0.2, connected=0.5, move=0.3)
"""All times shortened alike; a TTL is in whole seconds."""


async def test_a_cut_engine_connection_is_followed_by_a_look_and_a_new_attach(
    cluster: Any, cutter: Any, until: Any
) -> None:
    """Hot actors stay: no partition is dropped, each is attached anew by the same owner under epoch + 1."""
    node = await cluster.start("a")
    await cluster.all_served("a")
    gate = cluster.hosted["a", 0].services.gate
    before = len(cluster.diary.entries)
    cutter.cut("sojourn-a-engine")
    await until(lambda: not gate.is_open())
    cutter.mend("sojourn-a-engine")
    await cluster.diary.wait_until(lambda: len(cluster.diary.of("reattached")) == 32)
    assert gate.is_open()
    assert cluster.diary.of("drop") == []
    assert sorted(cluster.diary.of("reattached")) == sorted(("a", p, 2) for p in range(32))
    assert len(cluster.diary.entries) == before + 32
    assert node.membership.state == "joined"


async def test_nothing_may_act_while_the_engine_is_cut_and_the_lease_ends_unrenewed(
    cluster: Any, cutter: Any
) -> None:
    """Only the engine's connection cut: the peer probes an answering guard, so the lease is left to its
    time.
    """
    await cluster.start("a", terms=SHORT)
    await cluster.all_served("a")
    await cluster.start("b", terms=SHORT)
    await cluster.all_served("a", "b")
    services = cluster.hosted["a", 0].services
    cutter.cut("sojourn-a-engine")
    await cluster.diary.wait_until(lambda: set(cluster.diary.serving().values()) >= {"b"})
    await cluster.all_taken_over_by("b")
    assert not services.may_act()
    cutter.mend("sojourn-a-engine")
    await cluster.all_served("a", "b")
    assert cluster.hosted[
        "a", next(p for p, n in cluster.diary.serving().items() if n == "a")
    ].services.lease_id


async def test_a_cut_guard_connection_costs_the_lease_when_it_stays_cut(cluster: Any, cutter: Any) -> None:
    """Only the guard's connection cut: the engine reads that its lease ended, drops all, and joins when it
    can.
    """
    await cluster.start("a", terms=SHORT)
    await cluster.all_served("a")
    await cluster.start("b", terms=SHORT)
    await cluster.all_served("a", "b")
    first = cluster.hosted["a", 0].services
    cutter.cut("sojourn-a-guard")
    await cluster.all_taken_over_by("b")
    assert not first.may_act()
    cutter.mend("sojourn-a-guard")
    await cluster.all_served("a", "b")
    later = next(h.services for (n, _), h in cluster.hosted.items() if n == "a" and not h.over)
    assert later.lease_id != first.lease_id


async def test_a_guard_connection_that_comes_back_in_time_costs_nothing(
    cluster: Any, cutter: Any, until: Any
) -> None:
    await cluster.start("a")
    await cluster.all_served("a")
    services = cluster.hosted["a", 0].services
    shut: list[bool] = []
    real = services.gate.shut
    services.gate.shut = lambda why: (shut.append(True), real(why))
    cutter.cut("sojourn-a-guard")
    await until(lambda: bool(shut) and services.may_act())
    cutter.mend("sojourn-a-guard")
    assert services.may_act(), "the engine's own leader reads have opened the gate again"
    assert cluster.diary.of("drop") == cluster.diary.of("reattached") == []


async def test_a_pull_that_breaks_off_while_the_gate_is_shut_is_looked_at_afterwards(
    cluster: Any, cutter: Any, until: Any
) -> None:
    """The doubt comes while nothing can be decided, and no reconnect of the engine follows."""
    await cluster.start("a")
    await cluster.all_served("a")
    hosted = cluster.hosted["a", 3]
    real = hosted.services.gate.shut

    def shut(why: str) -> None:
        real(why)
        hosted.lost("the pull broke off")

    hosted.services.gate.shut = shut
    cutter.cut("sojourn-a-guard")
    await cluster.diary.wait_until(lambda: ("a", 3, 2) in cluster.diary.of("reattached"))
    assert cluster.diary.of("drop") == []


async def test_a_node_whose_lease_was_ended_drops_everything_and_joins_anew(
    cluster: Any, directory: Any
) -> None:
    """What a freeze past the lease looks like when it is over."""
    await cluster.start("a", terms=SHORT)
    await cluster.all_served("a")
    first = cluster.hosted["a", 0].services.lease_id
    entry = await directory.member("a")
    while True:
        try:
            await directory.end_member("a", expect=entry.revision)
            break
        except Exception:
            entry = await directory.member("a")
    await cluster.diary.wait_until(lambda: len(cluster.diary.of("drop")) >= 32)
    await cluster.diary.wait_until(lambda: len(cluster.diary.of("start")) >= 64)
    assert cluster.hosted["a", 0].services.lease_id != first
    assert {p for node, p, _ in cluster.diary.of("takeover")} == set(range(32))


async def test_a_lease_that_ends_while_its_node_joins_is_followed_by_another(
    cluster: Any, directory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it was taken and before the node said that it is ready: what was made under it is dropped, and the node joins again."""
    started: list[Lanes] = []
    start, lease_lost = Lanes.start, Membership.lease_lost
    told = asyncio.Event()

    def telling(self: Membership, reason: str) -> None:
        lease_lost(self, reason)
        told.set()

    async def slow(self: Lanes) -> None:
        await start(self)
        started.append(self)
        if len(started) == 1:
            await directory.end_member("a", expect=(await directory.member("a")).revision)
            await told.wait()

    monkeypatch.setattr(Lanes, "start", slow)
    monkeypatch.setattr(Membership, "lease_lost", telling)
    await cluster.start("a", terms=SHORT)
    await cluster.all_served("a")
    assert len(started) == 2
    assert (await directory.member("a")).value.lease == cluster.hosted["a", 0].services.lease_id
    assert started[0]._over, "it would go on to hear nudges, and to say that it has no lane"


async def test_a_partition_that_another_took_is_dropped_when_its_pull_breaks_off(
    cluster: Any, directory: Any
) -> None:
    await cluster.start("a")
    await cluster.all_served("a")
    found = await directory.owner(3)
    thief = type(found.value)("thief", "L9", found.value.epoch + 1, "held", found.value.since)
    await directory.put_owner(3, thief, expect=found.revision)
    cluster.hosted["a", 3].lost("a test says so")
    await cluster.diary.wait_until(lambda: ("a", 3, 1) in cluster.diary.of("drop"))
    # The thief has no lease, so the partition is attached again, above its epoch.
    await cluster.diary.wait_until(lambda: ("a", 3, 3) in cluster.diary.of("start"))


async def test_a_partition_in_doubt_that_is_still_ours_is_attached_anew(cluster: Any) -> None:
    await cluster.start("a")
    await cluster.all_served("a")
    cluster.hosted["a", 3].lost("a gap in the consumer sequence")
    await cluster.diary.wait_until(lambda: cluster.diary.of("reattached") == [("a", 3, 2)])
    assert cluster.diary.of("drop") == []


async def test_a_lost_partition_casts_no_doubt_on_its_successor(cluster: Any, directory: Any) -> None:
    await cluster.start("a")
    await cluster.all_served("a")
    stale = cluster.hosted["a", 3]
    found = await directory.owner(3)
    thief = type(found.value)("thief", "L9", found.value.epoch + 1, "held", found.value.since)
    await directory.put_owner(3, thief, expect=found.revision)
    stale.lost("a test says so")
    await cluster.diary.wait_until(lambda: ("a", 3, 3) in cluster.diary.of("start"))
    stale.lost("late")
    cluster.hosted["a", 4].lost("a test says so")
    await cluster.diary.wait_until(lambda: ("a", 4, 2) in cluster.diary.of("reattached"))
    assert [entry for entry in cluster.diary.of("reattached") if entry[1] == 3] == []


async def test_nodes_come_back_by_themselves_after_a_killed_broker_restarts(own_cluster: Any) -> None:
    await own_cluster.start("a")
    await own_cluster.start("b")
    await own_cluster.all_served("a", "b")
    await own_cluster.server.restart(kill=True)
    await own_cluster.diary.wait_until(
        lambda: {p for _, p, _ in own_cluster.diary.of("reattached")} == set(range(32))
    )
    assert own_cluster.diary.of("drop") == []


async def test_everybody_joins_anew_when_the_broker_was_away_longer_than_a_lease(
    own_cluster: Any, until: Any
) -> None:
    await own_cluster.start("a", terms=SHORT)
    await own_cluster.start("b", terms=SHORT)
    await own_cluster.all_served("a", "b")
    gates = {id(host.services.gate): host.services.gate for host in own_cluster.hosted.values()}.values()
    await own_cluster.server.kill()
    # Of both: one whose lease still holds when the broker is back goes on.
    await until(lambda: all(gate._now() >= gate._valid_until for gate in gates))
    await own_cluster.server.start()
    await own_cluster.diary.wait_until(lambda: len(own_cluster.diary.of("drop")) >= 32)
    await own_cluster.all_served("a", "b")


async def test_i8_nobody_serves_an_old_backup_until_an_operator_accepts_it(
    restorable: Any, tmp_path: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole store goes back, marks and leases with it: only the node that lived through it knows."""
    monkeypatch.setattr("sojourn.cluster.holding.holdings.WENT_BACK_SECONDS", 0.1)
    cluster, store = restorable
    node = await cluster.start("a")
    await cluster.all_served("a")
    await cluster.server.kill()
    shutil.copytree(store, tmp_path / "backup")
    await cluster.server.start()
    await cluster.diary.wait_until(lambda: len(cluster.diary.of("reattached")) >= 32)
    services = cluster.hosted["a", 0].services
    for number in range(10):
        subject = cluster.subjects.frame(ActorId(f"actor-{number}"))
        await services.broker.publish(Publish(subject, b"record"))
    await cluster.doubt_all("a")
    await cluster.server.kill()
    shutil.rmtree(store)
    shutil.copytree(tmp_path / "backup", store)
    served = len(cluster.diary.of("start"))
    await cluster.server.start()
    await cluster.diary.wait_until(lambda: {p for _, p, _ in cluster.diary.of("drop")} == set(range(32)))
    await until(lambda: len(node.membership.facts()["went_back"]) == 32)
    assert len(cluster.diary.of("start")) == served
    keys = ClusterKeys(services.broker, cluster.subjects)
    for p in range(32):
        await keys.delete("mark", p)
    await cluster.all_served("a")


async def test_a_second_process_with_a_living_id_does_not_start(cluster: Any) -> None:
    await cluster.start("a")
    with pytest.raises(NodeIdInUse, match="give each process its own"):
        await cluster.start_twin("a")
    await cluster.all_served("a")


async def test_a_process_that_starts_again_under_its_id_replaces_the_lease_of_the_dead(
    cluster: Any, directory: Any
) -> None:
    await directory.put_member(Member("a", "dead", "ready"), expect=0, ttl=30)
    await cluster.start("a")
    await cluster.all_served("a")


async def test_partitions_are_told_of_a_lease_that_ended_and_only_then_does_it_count_as_over(
    cluster: Any,
) -> None:
    a = await cluster.start("a")
    await cluster.all_served("a")
    await cluster.start("b")
    await cluster.all_served("a", "b")
    runner = cluster.hosted["a", 0].services.runner
    b = next(h.services for (n, _), h in cluster.hosted.items() if n == "b")
    assert b.lives(runner)
    a.leave()
    await cluster.wait_ended("a")
    await cluster.diary.wait_until(lambda: bool(cluster.diary.of(f"ended {runner}")))
    assert not b.lives(runner)


async def test_a_runner_never_heard_of_counts_as_living_until_a_leader_read(cluster: Any) -> None:
    await cluster.start("a")
    await cluster.all_served("a")
    services = cluster.hosted["a", 0].services
    assert services.lives("stranger/L1")
    await cluster.diary.wait_until(lambda: len(cluster.diary.of("ended stranger/L1")) >= 32)
    assert not services.lives("stranger/L1")
    assert services.lives(services.runner)


def test_errors_of_membership_survive_pickling() -> None:
    for error in (NotOwner(3, "a/L1", 7), NodeIdInUse("a", "host", 12)):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))

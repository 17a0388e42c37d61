"""Where new actors start: the policy and its changes, ramp weights, what happens without living nodes."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.memory import MemoryServer
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.deployments import deployment as deployments
from sojourn.cluster.deployments.deployment import Deployment
from sojourn.cluster.deployments.versions import (
    KEPT,
    Policy,
    UnknownDeployment,
    Versions,
    change_policy,
    first_is_current,
    read_policy,
)
from sojourn.cluster.tenure.ownership import Member, Owned, Owner, View


def deployment(label: str, *workflows: str) -> Deployment:
    return Deployment(label, "app", "3.11", {name: (f"app:{name}#{label}",) for name in workflows}, {})


def view(**nodes: str) -> View:
    """Living nodes by name with their deployment; the first owns partition 0."""
    members = {name: Member(name, f"l-{name}", "ready", deployment=label) for name, label in nodes.items()}
    owners = {}
    if members:
        first = next(iter(members.values()))
        owners[0] = Owned(Owner(first.node, first.lease, 1, "held"), 1)
    return View(2, members, owners)


@pytest.fixture
async def keys() -> ClusterKeys:
    server = MemoryServer(timers=False)
    broker = await server.connect()
    topology = Topology(namespace="t", app="tests")
    await apply(broker, topology)
    made = ClusterKeys(broker, topology.subjects)
    for label, extra in (("v1", "old"), ("v2", "new")):
        await deployments.register(made, deployment(label, "order", extra))
    return made


async def test_the_first_deployment_to_register_becomes_current_and_the_second_does_not(
    keys: ClusterKeys,
) -> None:
    assert (await first_is_current(keys, "v1", by="n1", at=1.0)).current == "v1"
    assert (await first_is_current(keys, "v2", by="n2", at=2.0)).current == "v1"
    assert (await read_policy(keys))[0] == Policy("v1", by="n1", at=1.0)


async def test_a_label_that_was_never_registered_is_refused_with_those_that_were(keys: ClusterKeys) -> None:
    with pytest.raises(
        UnknownDeployment, match=r"no deployment 'v9' is registered .there are: v1, v2."
    ) as failed:
        await change_policy(keys, lambda _: Policy("v1", {"v1": 1, "v9": 1}))
    copy = pickle.loads(pickle.dumps(failed.value))
    assert (copy.label, copy.known) == ("v9", ("v1", "v2"))
    assert await read_policy(keys) == (Policy(), 0)


async def test_a_change_meets_what_another_wrote_in_the_meantime(keys: ClusterKeys) -> None:
    await change_policy(keys, lambda _: Policy("v1"))
    seen: list[str] = []

    def slow(policy: Policy) -> Policy:
        seen.append(policy.current)
        return Policy("v1" if policy.current == "v2" else "v2", at=float(len(seen)))

    async def overtake(
        *key: str | int, value: bytes, expect: int | None = None, ttl: int | None = None
    ) -> int:
        keys.put = put  # type: ignore[method-assign]  # once
        await change_policy(keys, lambda _: Policy("v2"))
        return await put(*key, value=value, expect=expect, ttl=ttl)

    put = keys.put
    keys.put = overtake  # type: ignore[method-assign]  # the next write is overtaken
    await change_policy(keys, slow)
    assert seen == ["v1", "v2"]
    assert (await read_policy(keys))[0].current == "v1"


async def test_a_foreign_value_of_the_policy_stops_no_node(keys: ClusterKeys) -> None:
    await keys.put("versions", value=b"not ours")
    assert (await read_policy(keys))[0] == Policy()
    assert (await change_policy(keys, lambda _: Policy("v2"))).current == "v2"


async def test_starts_go_to_the_current_deployment_while_it_has_nodes(keys: ClusterKeys) -> None:
    await change_policy(keys, lambda _: Policy("v2"))
    seen = Versions(keys, deployment("v1", "order", "old"))
    assert seen.for_start("order", "a") == "v1"  # nothing polled yet
    assert await seen.observe(view(a="v1", b="v2"))
    assert seen.for_start("order", "a") == "v2"
    assert seen.for_start("old", "a") == "v1"  # the current one has no such workflow
    assert not await seen.observe(view(a="v1", b="v2"))
    assert await seen.observe(view(a="v1"))
    assert seen.for_start("order", "a") == "v1"
    assert not seen.has_nodes("v2")


async def test_a_workflow_that_nobody_has_is_refused_by_the_owner_itself(keys: ClusterKeys) -> None:
    seen = Versions(keys, deployment("v1", "order"))
    await seen.observe(view(a="v1", b="v2"))
    assert seen.for_start("nobody's", "a") == "v1"
    assert seen.for_start("new", "a") == "v2"


async def test_a_ramp_shares_starts_out_by_weight_and_the_same_start_always_goes_the_same_way(
    keys: ClusterKeys,
) -> None:
    await change_policy(keys, lambda _: Policy("v1", {"v1": 90, "v2": 10}))
    seen, other = (Versions(keys, deployment(label, "order")) for label in ("v1", "v2"))
    for one in (seen, other):
        await one.observe(view(a="v1", b="v2"))
    chosen = {str(n): seen.for_start("order", str(n)) for n in range(2_000)}
    assert chosen == {about: other.for_start("order", about) for about in chosen}
    assert 120 <= Counter(chosen.values())["v2"] <= 280
    await seen.observe(view(a="v1"))
    assert {seen.for_start("order", str(n)) for n in range(100)} == {"v1"}  # no living node of v2


async def test_a_node_that_leaves_takes_no_work_and_the_owner_of_a_partition_is_known(
    keys: ClusterKeys,
) -> None:
    seen = Versions(keys, deployment("v2", "order"))
    polled = view(a="v1", b="v2")
    await seen.observe(polled)
    home = seen.home(0)
    assert home is not None
    assert home.label == "v1"
    assert seen.home(1) is None
    leaving = Member("a", "l-a", "draining", deployment="v1")
    await seen.observe(View(2, {**polled.members, "a": leaving}, polled.owners))
    assert not seen.has_nodes("v1")


async def test_of_deployments_without_nodes_the_last_ones_stay_known(keys: ClusterKeys) -> None:
    seen = Versions(keys, deployment("v1", "order"))
    for number in range(KEPT + 10):
        await deployments.register(keys, deployment(f"d{number}", "order"))
        await seen.observe(view(a="v1", b=f"d{number}"))
    assert seen.known("v1") is not None
    assert [number for number in range(KEPT + 10) if seen.known(f"d{number}") is None] == list(range(9))
    await seen.observe(view(a="v1", b="d0"))
    assert seen.known("d0") is not None

"""What a foreign hand puts among the leases is none: every node plans with all of them, so one would stop them all (I6)."""

from __future__ import annotations

import time

import msgspec
import pytest
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.memory import MemoryServer
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.tenure.directory import Directory
from sojourn.cluster.tenure.ownership import Member, Mine, plan

TOPOLOGY = Topology(namespace="leases", app="app", partitions=4)
OURS = Member("ours", "l1", "ready", "v1", 2.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("theirs", Member("theirs", "l2", "ready", "v1", -2.0)),
        ("theirs", Member("theirs", "l2", "ready", "v1", 0.0)),
        ("theirs", Member("theirs", "l2", "ready", "v1", 1e308)),
        ("theirs", Member("ours", "l2", "draining", "v1")),
        ("theirs", {"node": "theirs"}),
        ("theirs", [[]]),
    ],
    ids=["less than nothing", "nothing", "more than all", "in another's name", "half", "none"],
)
async def test_the_others_plan_without_it(key: str, value: object) -> None:
    broker = await MemoryServer(time.time).connect()
    await apply(broker, TOPOLOGY)
    keys, directory = ClusterKeys(broker, TOPOLOGY.subjects), Directory(broker, TOPOLOGY.subjects)
    await directory.put_member(OURS, expect=0, ttl=30)
    await keys.put("node", key, value=msgspec.json.encode(value))
    view = await directory.poll(4)
    assert view.members == {"ours": OURS}
    assert plan(view, Mine("ours/l1"), 0.0).attach == (0, 1, 2, 3)

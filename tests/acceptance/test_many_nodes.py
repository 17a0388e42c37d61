"""Many nodes on one machine: they share the partitions evenly, move little when one comes or goes, and rest when there is nothing to do.

SOJOURN_TEST_NODES=10 is the long form, by hand.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest
from cluster_kit import Cluster, cluster, until
from lanes_kit import sojourn
from sojourn.cluster.tenure.directory import Directory
from sojourn.cluster.tenure.ownership import Owner

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

NODES = int(os.environ.get("SOJOURN_TEST_NODES", "5"))
PARTITIONS = 32
CALM_SECONDS = 12.0
"""Longer than the pause between two moves of one partition: whatever would swing to and fro, does within it."""


async def _owners(made: Cluster) -> dict[int, Owner]:
    view = await Directory(made.broker, made.subjects).poll(PARTITIONS)
    return {p: owned.owner for p, owned in view.owners.items()}


async def _even(made: Cluster) -> dict[int, Owner]:
    """Wait until the living nodes hold everything and differ by one partition at most; who holds what then."""
    living = {name for name, node in made.nodes.items() if node.running}
    found: dict[int, Owner] = {}

    async def fulfilled() -> bool:
        found.clear()
        found.update(await _owners(made))
        shares = Counter(owner.node for owner in found.values() if owner.state == "held")
        most = -(-PARTITIONS // len(living))
        return shares.keys() == living and shares.total() == PARTITIONS and max(shares.values()) <= most

    await until(fulfilled, lambda: f"an even share among {sorted(living)}: {found}", 90)
    return dict(found)


def _epochs(owners: dict[int, Owner]) -> int:
    return sum(owner.epoch for owner in owners.values())


def _moved(before: dict[int, Owner], after: dict[int, Owner]) -> int:
    return sum(before[p].node != after[p].node for p in before)


async def test_nodes_join_share_evenly_leave_come_back_and_rest(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(NODES)]
    async with cluster(tmp_path, partitions=PARTITIONS) as made:
        await made.add(*names)
        at_first = await _even(made)
        actors = await made.start_many("takes", [[2]] * 40, "w")

        before = await _even(made)
        await made.add("late")
        after = await _even(made)
        assert _moved(before, after) <= PARTITIONS // (NODES + 1) + 1, (
            "a node that joins takes its share alone"
        )

        before, gone = after, [names[0], names[1], names[2]]
        await sojourn(made, "drain", gone[0], "--timeout", "40s")
        made.nodes[gone[1]].terminate()
        made.nodes[gone[2]].kill()
        for name in gone:
            await made.nodes[name].wait()
            await made.nodes[name].stop()
        after = await _even(made)
        theirs = sum(owner.node in gone for owner in before.values())
        assert _moved(before, after) <= theirs + NODES, "what nobody left stays where it was"

        await made.add(*gone)
        settled = await _even(made)
        cpu = {name: _cpu_seconds(made.nodes[name].pid) for name in made.nodes}
        await asyncio.sleep(CALM_SECONDS)
        calm = await _even(made)
        assert _epochs(calm) == _epochs(settled), "nothing swings to and fro"
        idle = {name: (_cpu_seconds(made.nodes[name].pid) - cpu[name]) / CALM_SECONDS for name in cpu}

        listed = await sojourn(made, "nodes")
        assert listed["ownerless"] == []
        shown = {one["node"]: one for one in listed["nodes"]}
        assert shown.keys() == {*names, "late"}
        assert {one["state"] for one in shown.values()} == {"ready"}
        assert sum(one["partitions"] for one in shown.values()) == PARTITIONS
        assert all(one["deployment"] and one["load"] >= 0 and one["hot"] >= 0 for one in shown.values())
        await made.signal_many(actors, "go")
        await made.signal_many(actors, "go")
        assert len(await made.results(actors)) == 40
        print(
            f"\n{NODES + 1} nodes: {_epochs(calm) - _epochs(at_first)} attaches in all after the first; "
            f"idle {sum(idle.values()) / len(idle):.2%} of a core each, at most {max(idle.values()):.2%}"
        )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:13]) / os.sysconf("SC_CLK_TCK")

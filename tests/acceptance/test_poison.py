"""An actor that ends its process each time it resumes ends at most five; then it is quarantined and the others go on (I7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cluster_kit import Cluster, cluster

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]


async def _replace_the_dead(made: Cluster, deaths: list[str]) -> None:
    """Keep one node alive, as a supervisor would."""
    number = 0
    while True:
        name = f"n{number}"
        await made.add(name)
        await made.nodes[name].wait()
        deaths.append(name)
        number += 1


@pytest.mark.parametrize(
    ("workflow", "args"),
    [("kills_its_node", ["mail"]), ("runs_a_deadly_step", [])],
    ids=["plain code", "a step"],
)
async def test_it_kills_at_most_five_nodes_and_the_others_on_its_partition_go_on(
    workflow: str, args: list[object], tmp_path: Path
) -> None:
    deaths: list[str] = []
    async with cluster(tmp_path, partitions=1) as made:
        supervisor = asyncio.create_task(_replace_the_dead(made, deaths))
        (poison,) = await made.start_many(workflow, [args], "poison")
        others = await made.start_many("waits", [[n] for n in range(5)], "w")
        await made.until_all(others, lambda index: index.stage == "waiting")
        await made.until_index(poison, lambda index: index.wait.startswith("receive"))
        await made.signal_many([poison, *others], "go")
        quarantined = await made.until_index(poison, lambda index: index.hold == "quarantined", 120)
        assert await made.results(others) == [n + 1 for n in range(5)]
        assert 1 <= len(deaths) <= 5
        assert quarantined.hold_reason
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)

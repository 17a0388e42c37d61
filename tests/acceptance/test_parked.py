"""Sleeping and ended workflows cost their node nothing once parked.

Those that sleep are measured against the node as it was when it had just taken its partitions and run nothing: the ten megabytes leave
room for code that is imported or compiled on first use, caches of fixed size, and what a peak of work in flight leaves behind in the
allocator: 5 MiB of them are used. That peak is higher where thousands run through at once, and higher on a busy machine (+4 to +12 MiB), so
those that end are measured against the node after as many of them had ended before. Neither grows with the number of workflows (50,000 that
ended: 47 MiB after the first 10,000, 47 MiB after the last); live coroutines kept for ten seconds each did, and so did cycles that a parked
actor left to the garbage collector.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import Cluster, cluster, rss_bytes, until
from sojourn.codecs.record import Index

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

SLEEPERS = int(os.environ.get("SOJOURN_TEST_SLEEPERS", "20000"))
"""Half a minute on two cores, a minute when they are busy. 4,000 show a fault as well: without parking at rest they leave 19 MiB."""
ENDED = 4_000
MIB = 1024 * 1024
ALLOWED = 10 * MIB


def _sleeps(index: Index) -> bool:
    return index.wait.startswith("sleep")


def _is_sealed(index: Index) -> bool:
    return index.sealed


async def check_memory(made: Cluster, fresh: int) -> None:
    """The node comes back to within the allowed of what it had."""
    pid = made.nodes["n1"].pid

    async def small() -> bool:
        return rss_bytes(pid) - fresh < ALLOWED

    await until(small, lambda: f"{(rss_bytes(pid) - fresh) / MIB:+.1f} MiB", 30)
    print(f"\n{(rss_bytes(pid) - fresh) / MIB:+.1f} MiB over {fresh / MIB:.1f} MiB")


async def test_sleeping_workflows_take_no_memory_of_their_node(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        await made.add("n1")
        fresh = rss_bytes(made.nodes["n1"].pid)
        actors = await made.start_many("sleeps", [[3600.0]] * SLEEPERS, "a")
        await made.until_all(actors, _sleeps, seconds=120)
        await check_memory(made, fresh)


@pytest.mark.parametrize(
    ("workflow", "arguments"),
    [pytest.param("rejects", [], id="at once"), pytest.param("works", [0.0], id="after a step")],
)
async def test_ended_workflows_take_no_memory_of_their_node(
    tmp_path: Path, workflow: str, arguments: list[Any]
) -> None:
    async with cluster(tmp_path) as made:
        await made.add("n1")
        fresh = 0
        for name in ("a", "b"):
            actors = await made.start_many(workflow, [arguments] * ENDED, name)
            await made.until_all(actors, _is_sealed, seconds=120)
            fresh = fresh or rss_bytes(made.nodes["n1"].pid)
        await check_memory(made, fresh)

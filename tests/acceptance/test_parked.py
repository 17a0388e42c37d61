"""Sleeping and ended workflows cost their node nothing once parked.

Measured against the node as it was when it had just taken its partitions and run nothing: the ten megabytes leave
room for code that is imported or compiled on first use, caches of fixed size, and what a peak of work in flight leaves
behind in the allocator: 5 MiB of them are used (20,000 asleep), 4 to 6 (4,000 ended). None of these grows with the number of workflows
(50,000 that ended: 47 MiB after the first 10,000, 47 MiB after the last); live coroutines kept for ten seconds each did, and so did
cycles that a parked actor left to the garbage collector.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import cluster, rss_bytes, until
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


@pytest.mark.parametrize(
    ("workflow", "arguments", "number", "parked"),
    [
        pytest.param("sleeps", [3600.0], SLEEPERS, _sleeps, id="asleep for an hour"),
        pytest.param("rejects", [], ENDED, _is_sealed, id="ended"),
        pytest.param("works", [0.0], ENDED, _is_sealed, id="ended after a step"),
    ],
)
async def test_parked_workflows_take_no_memory_of_their_node(
    tmp_path: Path, workflow: str, arguments: list[Any], number: int, parked: Callable[[Index], bool]
) -> None:
    async with cluster(tmp_path) as made:
        await made.add("n1")
        pid = made.nodes["n1"].pid
        fresh = rss_bytes(pid)
        actors = await made.start_many(workflow, [arguments] * number, "a")
        await made.until_all(actors, parked, seconds=120)

        async def small() -> bool:
            return rss_bytes(pid) - fresh < ALLOWED

        await until(small, lambda: f"{(rss_bytes(pid) - fresh) / MIB:+.1f} MiB", 30)
        print(f"\n{number} {workflow}: {(rss_bytes(pid) - fresh) / MIB:+.1f} MiB over {fresh / MIB:.1f} MiB")

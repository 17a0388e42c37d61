"""Nodes sharing the partitions of one namespace on a real server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.integration


async def test_one_node_serves_every_partition(cluster: Any) -> None:
    await cluster.start("a")
    await cluster.all_served("a")


async def test_a_node_is_ready_when_it_serves_what_it_found_free_and_not_before(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="sojourn.cluster"):
        node = await cluster.start("a")
    assert len(cluster.diary.serving()) == 32
    assert node.membership.facts()["settled"]
    said = [record.getMessage() for record in caplog.records]
    assert said[-1] == "ready: serves 32 partitions"
    attached = [line for line in said if line.startswith("attached")]
    assert len(attached) == 1, "one line, whatever the number of partitions"
    assert attached[0].startswith("attached 32 in ")
    assert attached[0].endswith("; serving 32 partitions")


async def test_three_nodes_share_thirty_two_partitions(cluster: Any) -> None:
    await cluster.start("a")
    await cluster.start("b")
    await cluster.start("c")
    await cluster.all_served("a", "b", "c", shares=(10, 11, 11))
    assert cluster.diary.of("drop") == [], "every move was planned"


async def test_a_node_that_drains_hands_over_every_partition_as_a_planned_move(cluster: Any) -> None:
    a = await cluster.start("a")
    await cluster.all_served("a")
    await cluster.start("b")
    a.drain()
    await cluster.wait_ended("a")
    await cluster.all_served("b")
    assert cluster.diary.of("drop") == []
    assert not [entry for entry in cluster.diary.of("takeover") if entry[0] == "b"]


async def test_a_drain_goes_on_when_the_broker_does_not_answer_for_a_while(cluster: Any) -> None:
    a = await cluster.start("a")
    await cluster.all_served("a")
    await cluster.start("b")
    os.kill(cluster.server.pid, signal.SIGSTOP)
    try:
        a.drain()
        await asyncio.sleep(
            3.0
        )  # the fault is its length: longer than a drain waits for the lease to tell the others
    finally:
        os.kill(cluster.server.pid, signal.SIGCONT)
    await cluster.wait_ended("a")
    await cluster.all_served("b")
    assert cluster.diary.of("drop") == []


async def test_a_node_that_leaves_at_once_is_followed_by_a_takeover(cluster: Any) -> None:
    a = await cluster.start("a")
    await cluster.all_served("a")
    await cluster.start("b")
    a.leave()
    await cluster.wait_ended("a")
    await cluster.all_served("b")
    assert {p for node, p, _ in cluster.diary.of("takeover") if node == "b"}
    assert asyncio.all_tasks()

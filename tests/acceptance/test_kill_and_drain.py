"""A node is killed or drained: everything goes on elsewhere, once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cluster_kit import Cluster, cluster

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]


async def test_500_suspended_and_50_running_survive_the_kill_of_their_node(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        await made.add("n1", "n2", "n3")
        suspended = await made.start_many("waits", [[n] for n in range(500)], "w")
        await made.until_all(suspended, lambda index: index.stage == "waiting")
        running = await made.start_many("works", [[1.0]] * 50, "r")
        victim = made.nodes["n1"]
        in_flight = made.in_flight(victim.pid)
        killed = time.monotonic()
        victim.kill()
        await _taken_over_before_the_lease_ends(made, victim.name, killed)
        await made.signal_many(suspended, "go")
        assert await made.results(suspended) == [n + 1 for n in range(500)]
        assert await made.results(running) == ["work"] * 50
        repeated = made.repeated()
        assert set(repeated) <= in_flight | made.in_flight(victim.pid)
        assert all(count == 2 for count in repeated.values())
        assert len({effect.key for effect in made.effects()}) == 500 * 2 + 50


async def _taken_over_before_the_lease_ends(made: Cluster, victim: str, since: float) -> None:
    """By no-responders, not by the end of the 30 s lease. The demo measures how fast (3 s on an idle machine)."""
    lost = [p for p, owner in enumerate(await made.owners()) if owner == victim]
    while True:
        owners = await made.owners()
        if not lost or any(owners[p] not in ("", victim) for p in lost):
            return
        assert time.monotonic() - since < 15, f"no partition of {victim} has another owner: {made.logs()}"


async def test_a_planned_drain_repeats_no_step_and_loses_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        await made.add("n1", "n2", "n3")
        suspended = await made.start_many("waits", [[n] for n in range(100)], "w")
        running = await made.start_many("works", [[1.5]] * 50, "r")
        leaver = made.nodes["n1"]
        leaver.terminate()
        assert await leaver.wait() == 0, leaver.last_words()
        await made.until_all(suspended, lambda index: index.stage == "waiting")
        await made.signal_many(suspended, "go")
        assert await made.results(suspended) == [n + 1 for n in range(100)]
        assert await made.results(running) == ["work"] * 50
        assert made.repeated() == {}


async def test_a_second_signal_leaves_at_once_and_loses_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        await made.add("n1", "n2")
        running = await made.start_many("works", [[2.0]] * 20, "r")
        leaver = made.nodes["n1"]
        leaver.terminate()
        leaver.terminate()
        await leaver.wait()
        assert await made.results(running) == ["work"] * 20
        assert all(count == 2 for count in made.repeated().values())


async def test_a_second_signal_ends_no_step_that_runs_on_for_the_partitions_new_owner(tmp_path: Path) -> None:
    """The leaver has handed its partitions over and only its steps still run. What it breaks off has no outcome: it runs again."""
    async with cluster(tmp_path) as made:
        await made.add("n1", "n2")
        running = await made.start_many("works", [[5.0]] * 20, "r")
        leaver = made.nodes["n1"]
        broken_off = made.in_flight(leaver.pid)
        leaver.terminate()
        await made.owned_by("n2")
        leaver.terminate()
        await leaver.wait()
        assert await made.results(running) == ["work"] * 20
        assert set(made.repeated()) <= broken_off | made.in_flight(leaver.pid)


async def test_workflows_go_on_while_nodes_are_replaced_one_by_one(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        await made.add("n1", "n2")
        actors = await made.start_many("counts", [[40]] * 20, "c")
        for old, new in (("n1", "n3"), ("n2", "n4")):
            await made.add(new)
            made.nodes[old].terminate()
            assert await made.nodes[old].wait() == 0, made.nodes[old].last_words()
        assert await made.results(actors) == [40] * 20
        assert made.repeated() == {}

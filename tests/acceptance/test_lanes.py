"""Two deployments side by side: actors go on with the code they sleep in, whichever node owns their partition."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from cluster_kit import Cluster, cluster, until
from lanes_kit import add, begun_by, leave, set_current, set_policy, sojourn
from sojourn.actors.errors import Refused, WorkflowFailed
from sojourn.cluster.deployments.versions import Policy
from sojourn.cluster.hosting.views import check

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]


async def _asleep(made: Cluster, actors: list[str]) -> None:
    await made.until_all(actors, lambda index: index.wait.startswith("receive"))


async def test_a_deploy_under_load_with_a_killed_lane_node_a_rollback_and_a_drain_loses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    draws = random.Random(20)
    async with cluster(tmp_path, partitions=8) as made:
        await add(made, 1, "a1", "a2")
        actors = await made.start_many("collects", [[12]] * 100, "x")
        await _asleep(made, actors)
        await add(made, 2, "b1", "b2")
        await set_current(made, "v2")
        young: list[str] = []
        for number in range(12):
            draws.shuffle(actors)
            await made.signal_many(actors, "go", str(number).encode())
            if number == 3:
                young = await made.start_many("collects", [[0]] * 20, "y")
            if number == 5:
                made.nodes["a2"].kill()
            if number == 8:  # back to the previous version, with actors on both
                await set_current(made, "v1")
                young += await made.start_many("collects", [[0]] * 20, "z")
        assert await made.results(actors, seconds=120) == [[1, 1, *range(12)]] * 100
        assert await made.results(young) == [[2, 2]] * 20 + [[1, 1]] * 20
        assert set(made.repeated()) <= begun_by(made, "a2")
        assert (await check(made.broker, made.subjects, made.keyring)).findings == ()
        await set_current(made, "v2")
        drained = await sojourn(made, "versions", "drain", "v1", "--wait", "--timeout", "30s")
        assert (drained["drained"], drained["needing"]) == (True, 0)


async def test_a_version_scaled_to_zero_leaves_its_actors_held_shown_and_counted_until_it_is_back(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, partitions=2) as made:
        await add(made, 1, "a1")
        actors = await made.start_many("collects", [[2]] * 6, "x")
        others = await made.start_many("same", [[2]] * 6, "s")
        await _asleep(made, [*actors, *others])
        await add(made, 2, "b1")
        await made.signal_many(actors, "go", b"0")
        await made.until_all(actors, lambda index: index.steps == 2)
        await leave(made, "a1")
        await made.signal_many([*actors, *others], "go", b"1")
        await made.until_all(actors, lambda index: index.hold == "pin" and not index.lane)
        await made.signal_many(others, "go", b"1")
        assert await made.results(others) == [2] * 6
        listed = await sojourn(made, "versions", "list")
        found = {one["deployment"]: one for one in listed["deployments"]}
        assert (found["v1"]["needing"], found["v1"]["without_node"], found["v1"]["nodes"]) == (6, 6, 0)
        assert (found["v2"]["needing"], found["v2"]["suspended"]) == (0, 0)
        shown = await sojourn(made, "versions", "show", "v1")
        assert shown["lines"][0]["function"] == "collects"
        assert shown["lines"][0]["source"] == "answer = await go.receive()"
        assert shown["lines"][0]["count"] == 6
        fresh = await made.start_many("collects", [[0]] * 4, "n")  # on the version that is left
        assert await made.results(fresh) == [[2, 2]] * 4
        await made.client.handle(actors[0]).terminate()
        await made.until_index(actors[0], lambda index: str(index.status) == "terminated")
        assert (await check(made.broker, made.subjects, made.keyring)).findings == ()
        await add(made, 1, "a2")
        assert await made.results(actors[1:]) == [[1, 1, 0, 1]] * 5


async def test_a_rolling_update_runs_no_actor_twice(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=8) as made:
        await add(made, 1, "a1", "a2")
        old = await made.start_many("collects", [[8]] * 20, "x")
        same = await made.start_many("same", [[8]] * 20, "s")
        await _asleep(made, [*old, *same])
        for number in range(8):
            await made.signal_many([*old, *same], "go", str(number).encode())
            if number == 1:
                await add(made, 2, "b1")
            elif number == 3:
                left = await sojourn(made, "drain", "a1", "--timeout", "40s")
                assert left["left"], left
            elif number == 5:
                await add(made, 2, "b2")
        assert await made.results(old) == [[1, 1, *range(8)]] * 20
        assert await made.results(same) == [28] * 20
        assert made.repeated() == {}
        begun = Counter(
            (effect.key.split("/")[0], effect.name) for effect in made.effects() if effect.what == "begin"
        )
        assert max(begun.values()) == 1
        assert (await check(made.broker, made.subjects, made.keyring)).findings == ()


async def test_starts_go_where_the_policy_says_whoever_owns_the_partition(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await add(made, 1, "a1")
        await add(made, 2, "b1")
        assert await made.results(await made.start_many("naps", [[0.0]] * 8, "first")) == [1] * 8
        late = await made.client.start("naps", args=[0.0], id="late", delay="3s")
        await set_current(made, "v2")
        assert await made.results(await made.start_many("has_child", [[]] * 8, "p")) == [[2, 2]] * 8
        assert await late.result(timeout=30) == 1  # decided when it was accepted
        assert await made.results(await made.start_many("only_v1", [[n] for n in range(8)], "o")) == [
            n + 1 for n in range(8)
        ]
        for number in range(
            8
        ):  # refused by an owner that has the code, failed where only its lane's nodes have it
            with pytest.raises((Refused, WorkflowFailed), match="expected int, received str"):
                await (await made.client.start("only_v2", args=["no number"], id=f"w{number}")).result(
                    timeout=20
                )
        await set_policy(made, Policy(current="v2", ramp={"v1": 1, "v2": 1}))
        shares: Counter[int] = Counter()

        async def both() -> bool:
            started = await made.start_many("naps", [[0.0]] * 20, f"r{shares.total()}-")
            shares.update(await made.results(started))
            return min(shares[1], shares[2]) >= 5

        await until(both, lambda: f"starts by ramp: {shares}", 30)


async def test_what_new_workflows_call_is_of_the_version_they_begin_on_whoever_owns_their_partition(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await add(made, 1, "a1")
        await add(made, 2, "b1")

        async def all_find(name: str, version: int) -> None:
            actors = await made.start_many("delegates", [[2]] * 16, name)
            await made.signal_many([*actors, *actors], "go", b"0")
            assert await made.results(actors) == [[version, version]] * 16

        await all_find("before", 1)
        await set_current(made, "v2")
        await all_find("deployed", 2)
        assert (await sojourn(made, "versions", "drain", "v1"))["needing"] == 0
        await set_current(made, "v1")
        await all_find("back", 1)
        idle = await made.start_many("delegates", [[1]] * 16, "idle")
        await _asleep(made, idle)
        await set_current(made, "v2")  # v1's may go on with either; nothing needs v1, so it may leave
        await leave(made, "a1")
        await made.signal_many(idle, "go", b"0")
        assert await made.results(idle) == [[2]] * 16


async def test_a_workflow_pinned_to_its_deployment_stays_there_though_the_code_is_the_same(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await add(made, 1, "a1")
        actors = await made.start_many("bound", [[3]] * 8, "x")
        await _asleep(made, actors)
        await add(made, 2, "b1")
        for number in range(2):
            await made.signal_many(actors, "go", str(number).encode())
        await made.until_all(actors, lambda index: index.resumes >= 3)
        assert {index.deployment for index in (await made.indexes()).values()} == {"v1"}
        await set_current(made, "v2")
        needed = await sojourn(made, "versions", "drain", "v1", code=1)
        assert needed["needing"] == 8
        await made.signal_many(actors, "go", b"2")
        assert await made.results(actors) == [3] * 8


async def test_operators_reach_actors_on_a_lane(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await add(made, 1, "a1")
        actors = await made.start_many("cleans", [[]] * 8, "x")
        await _asleep(made, actors)
        await add(made, 2, "b1")
        paused, killed, cancelled = actors[:2], actors[2:5], actors[5:]
        for actor in paused:
            await made.client.handle(actor).pause(reason="test")
        await made.signal_many(paused, "go", b"4")
        for actor in killed:
            await made.client.handle(actor).terminate(reason="test")
        for actor in cancelled:
            await made.client.handle(actor).cancel(reason="test")
        await made.until_all(killed, lambda index: str(index.status) == "terminated")
        await made.until_all(cancelled, lambda index: str(index.status) == "cancelled")
        await made.until_all(paused, lambda index: index.hold == "paused")
        for actor in paused:
            await made.client.handle(actor).resume()
        assert await made.results(paused) == [5] * 2
        cleanups = Counter(effect.key.split("/")[0] for effect in made.effects() if effect.what == "end")
        assert cleanups == Counter(cancelled)

"""The nodes on both sides of a lane die one after the other, each at another point of its work; nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_kit import Cluster, cluster, until
from lanes_kit import add, begun_by, leave
from sojourn.cluster.hosting.views import check

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(200)]

LANE_SIDE = [
    "lane_owner",
    "lane_list",
    "before_ack",
    "before_user_commit",
    "after_commit",
    "in_step",
    "step_result",
]
LANE_ENDS = ["after_terminal_commit", "owner_nudged"]
OWNERS_SIDE = ["lane_committed", "before_move", "move_stored", "lane_nudged"]


async def _dies(made: Cluster, name: str, point: str) -> None:
    """Wait until the node has killed itself: a point that is never reached proves nothing."""
    node = made.nodes[name]

    async def gone() -> bool:
        return not node.running

    await until(gone, lambda: f"{name} never came to {point}\n{made.logs()}", 40)
    assert await node.wait() == -9, node.last_words()


async def _on_one_lane(made: Cluster, mails: int) -> list[str]:
    """Actors of version 1 asleep in one partition, whose owner runs version 2."""
    await add(made, 1, "old")
    actors = await made.start_many("collects", [[mails]] * 4, "x")
    await made.until_all(actors, lambda index: index.wait.startswith("receive"))
    await add(made, 2, "owner")
    await leave(made, "old")
    await made.owned_by("owner")
    return actors


async def _sound(made: Cluster, actors: list[str], mails: int, dead: list[str]) -> None:
    assert await made.results(actors, seconds=60) == [[1, 1, *range(mails)]] * len(actors)
    assert set(made.repeated()) <= begun_by(made, *dead)
    assert (await check(made.broker, made.subjects, made.keyring)).findings == ()

    async def nothing_held() -> bool:
        held = await made.broker.subjects(made.subjects.held_stream, made.subjects.held_filter(0))
        return all(subject.endswith(".fence") for subject in held)

    await until(nothing_held, "HELD is empty", 30)


async def test_lane_nodes_die_at_each_point_of_their_work(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=1) as made:
        actors = await _on_one_lane(made, len(LANE_SIDE))
        for number, point in enumerate(LANE_SIDE):
            await add(made, 1, point, env={"SOJOURN_FAULT": f"{point}:1"})
            await made.signal_many(actors, "go", str(number).encode())
            await _dies(made, point, point)
        await add(made, 1, "last")
        await _sound(made, actors, len(LANE_SIDE), LANE_SIDE)


async def test_lane_nodes_die_between_the_last_commit_and_the_nudge_of_the_owner(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=1) as made:
        actors = await _on_one_lane(made, 1)
        for point in LANE_ENDS:
            await add(made, 1, point, env={"SOJOURN_FAULT": f"{point}:1"})
            if point == LANE_ENDS[0]:
                await made.signal_many(actors, "go", b"0")
            await _dies(made, point, point)
        await add(made, 1, "last")
        await _sound(made, actors, 1, LANE_ENDS)


async def test_owners_die_at_each_point_of_putting_actors_on_a_lane(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=1) as made:
        actors = await _on_one_lane(made, len(OWNERS_SIDE))
        await add(made, 1, "lane")
        for number, point in enumerate(OWNERS_SIDE):
            await add(made, 2, point, env={"SOJOURN_FAULT": f"{point}:1"})
            if point == OWNERS_SIDE[0]:
                await leave(made, "owner")
            await made.signal_many(actors, "go", str(number).encode())
            if (await made.owners())[0] == point:
                await _dies(made, point, point)
        await add(made, 2, "last")
        await _sound(made, actors, len(OWNERS_SIDE), OWNERS_SIDE)

"""PROTOCOL 9: the owner dies at each point of its work, by SIGKILL to itself; another node goes on and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from cluster_kit import Cluster, cluster, until
from sojourn.actors.errors import NoAnswer

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

COMMITS = [
    "before_commit",
    "after_commit",
    "before_flush",
    "between_flushes",
    "after_flush",
    "before_ack",
    "after_ack",
    "after_terminal_commit",
    "before_seal",
    "after_seal",
    "in_step",
    "step_result",
]
MOVES = ["before_move", "move_stored"]
ATTACH = ["attach_owner", "attach_delete", "attach_create", "attach_fence", "attach_list", "attach_verify"]
PARTITIONS = 4


async def _dead(made: Cluster, name: str) -> None:
    """Wait until the node has killed itself: a point that is never reached proves nothing."""
    node = made.nodes[name]

    async def gone() -> bool:
        return not node.running

    await until(gone, lambda: f"{name} never came to its crash point\n{made.logs()}", 40)
    assert await node.wait() == -9, node.last_words()


async def _started(made: Cluster, name: str) -> None:
    async def there() -> bool:
        return name in made.nodes

    await until(there, f"{name} was not started", 10)


async def _start(made: Cluster, workflow: str, args: list[object], actor: str) -> None:
    """Start, asking again with the same request when no node answers: the node may die at any moment."""
    for _ in range(20):
        try:
            await made.client.start(workflow, args=args, id=actor, request=f"r-{actor}", timeout=5)
        except NoAnswer:
            continue
        return
    raise AssertionError(f"{actor} could not be started\n{made.logs()}")


async def _everything(made: Cluster) -> None:
    """Steps, mail, children, a cancel, timers: whatever passes the points."""
    await asyncio.gather(
        *(_start(made, "waits", [n], f"w{n}") for n in range(6)),
        *(_start(made, "parent", [2], f"p{n}") for n in range(2)),
        *(_start(made, "counts", [5], f"n{n}") for n in range(3)),
        *(_start(made, "sleeps", [0.5], f"s{n}") for n in range(3)),
        _start(made, "cleans_up", [], "x"),
    )
    await made.until_all(["p0", "p1"], lambda index: index.stage == "joined")
    await made.until_index("x", lambda index: bool(index.wait))
    await made.signal_many([f"w{n}" for n in range(6)] + ["p0-c0", "p0-c1"], "go")
    await _cancel(made, "p1")
    await _cancel(made, "x")


async def _cancel(made: Cluster, actor: str) -> None:
    for _ in range(10):
        try:
            await made.client.handle(actor).cancel(reason="test")
        except NoAnswer:
            continue
        return


async def _ended_well(made: Cluster) -> None:
    assert await made.results([f"w{n}" for n in range(6)]) == [n + 1 for n in range(6)]
    assert await made.results(["p0"]) == [["p0-0", "p0-1"]]
    assert await made.results([f"n{n}" for n in range(3)]) == [5] * 3
    assert await made.results([f"s{n}" for n in range(3)]) == ["woken"] * 3
    cancelled = ["p1", "p1-c0", "p1-c1", "x"]
    await made.until_all(cancelled, lambda index: str(index.status) == "cancelled")
    everyone = await made.indexes()
    assert {str(index.status) for index in everyone.values()} == {"completed", "cancelled"}
    begun = Counter(effect.key for effect in made.effects() if effect.what == "begin")
    assert max(begun.values()) <= 2, made.repeated()
    names = Counter(
        (effect.key.split("/")[0], effect.name) for effect in made.effects() if effect.what == "end"
    )
    assert names["p1-c0", "p1-1 cleanup"] == 0
    assert {actor for actor, name in names if name.endswith("cleanup")} == {"p1-c0", "p1-c1", "x"}
    await _nothing_left(made)


async def _nothing_left(made: Cluster) -> None:
    """All ended actors are sealed, and no stream holds anything of theirs."""
    subjects = made.subjects

    async def empty() -> bool:
        left = [
            (await made.broker.stream_info(stream)).messages
            for stream in (subjects.mail_stream, subjects.ctl_stream, subjects.wake_stream)
        ]
        held = await made.broker.subjects(subjects.held_stream, ">")
        return not any(left) and all(subject.endswith(".fence") for subject in held)

    await until(empty, lambda: f"messages are left in a stream\n{made.logs()}", 60)
    assert all(index.sealed for index in (await made.indexes()).values())


@pytest.mark.parametrize(
    ("point", "count"),
    # Few actors have a seal of their own: those that owe something when they end.
    [(point, count) for point in COMMITS for count in (1, 2 if "seal" in point else 7)],
)
async def test_the_owner_dies_at(point: str, count: int, tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=PARTITIONS) as made:
        await made.add("n1", env={"SOJOURN_FAULT": f"{point}:{count}"})
        work = asyncio.create_task(_everything(made))
        await _dead(made, "n1")
        await made.add("n2")
        await work
        await _ended_well(made)
        victim = made.nodes["n1"].pid
        begun_there = {e.key for e in made.effects() if e.what == "begin" and e.pid == victim}
        repeated = made.repeated()
        assert set(repeated) <= begun_there
        again = Counter(key.split("/")[0] for key in repeated)
        assert max(again.values(), default=0) <= 1, (
            f"an actor repeats its running step, no recorded one: {repeated}"
        )


@pytest.mark.parametrize("point", MOVES)
async def test_the_owner_dies_while_moving_mail(point: str, tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=PARTITIONS) as made:
        await made.add("n1", env={"SOJOURN_FAULT": f"{point}:1"})
        await _start(made, "takes", [150], "t")
        await made.client.handle("t").pause()
        for number in range(150):
            await made.signal_many(["t"], "go", str(number).encode())
        await _dead(made, "n1")
        await made.add("n2")
        await made.client.handle("t").resume()
        assert await made.results(["t"]) == [list(range(150))]
        await _nothing_left(made)


@pytest.mark.parametrize("point", ATTACH)
async def test_the_owner_dies_while_attaching(point: str, tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=PARTITIONS) as made:
        await made.add("n0")
        await _start(made, "takes", [80], "t")
        await made.client.handle("t").pause()
        for number in range(80):
            await made.signal_many(["t"], "go", str(number).encode())
        await made.client.handle("t").resume()
        made.nodes["n0"].kill()
        await made.nodes["n0"].wait()
        dying = asyncio.create_task(made.add("n1", env={"SOJOURN_FAULT": f"{point}:2"}))
        await _started(made, "n1")
        await _dead(made, "n1")
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        await made.add("n2")
        assert await made.results(["t"]) == [list(range(80))]
        await _nothing_left(made)

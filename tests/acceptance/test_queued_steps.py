"""PROTOCOL 9: a step worker dies before and after publishing, an owner dies or the broker restarts while queued steps run."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from cluster_kit import Cluster, cluster, until
from lanes_kit import add, set_current
from sojourn.broker.seam import ConsumerConfig
from sojourn.broker.subjects import Subjects, token

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

QUEUE = token("acceptance")


async def impatient(made: Cluster) -> None:
    """The queue's consumer with less patience than nodes would give it: a dead worker's task comes again after 2 s."""
    await made.broker.create_consumer(
        made.subjects.steps_stream,
        ConsumerConfig(Subjects.step_consumer(QUEUE), (made.subjects.step(QUEUE),), ack_wait=2.0),
    )


async def gone(made: Cluster, name: str) -> None:
    process = (made.nodes | made.workers)[name]

    async def ended() -> bool:
        return not process.running

    await until(ended, lambda: f"{name} did not end\n{made.logs()}", 40)


async def queue_is_empty(made: Cluster) -> None:
    async def empty() -> bool:
        return (await made.broker.stream_info(made.subjects.steps_stream)).messages == 0

    await until(empty, lambda: f"tasks are left\n{made.logs()}", 30)


def begun(made: Cluster, name: str) -> Counter[str]:
    """How often each operation of this effect began."""
    return Counter(effect.key for effect in made.effects() if effect.what == "begin" and effect.name == name)


def recorded_once(made: Cluster, actors: list[str]) -> None:
    """What follows the queued step ran once for each: its result was recorded once."""
    assert Counter(
        effect.key.split("/")[0]
        for effect in made.effects()
        if (effect.what, effect.name) == ("end", "after")
    ) == Counter(actors)


@pytest.mark.parametrize("point", ["worker_before_run", "worker_before_publish", "worker_after_publish"])
async def test_a_worker_that_dies_at_any_point_loses_nothing(point: str, tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await impatient(made)
        await made.add("n1")
        await made.add_worker("doomed", env={"SOJOURN_FAULT": f"{point}:3"})
        actors = await made.start_many("queues", [[n] for n in range(6)], "q")

        await gone(made, "doomed")
        assert await made.workers["doomed"].wait() == -9
        await made.add_worker("w2")

        assert await made.results(actors) == list(range(6))
        times = begun(made, "queued")
        assert len(times) == 6
        assert sum(times.values()) <= 7, times
        if point == "worker_before_run":
            assert set(times.values()) == {1}
        recorded_once(made, actors)
        await queue_is_empty(made)


async def test_workers_that_are_killed_while_steps_run_cost_no_result(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await impatient(made)
        await made.add("n1")
        await made.add_worker("w1", "w2", concurrency=4)
        actors = await made.start_many("queues", [[n, 0.3] for n in range(40)], "q")

        for name in ("w1", "w2"):

            async def at_work(pid: int = made.workers[name].pid) -> bool:
                return bool(made.in_flight(pid))

            await until(at_work, lambda: made.logs(), 30)
            made.workers[name].kill()
            await made.add_worker(f"{name}-again", concurrency=4)

        assert await made.results(actors) == list(range(40))
        assert len(begun(made, "queued")) == 40
        recorded_once(made, actors)
        await queue_is_empty(made)


async def test_the_owner_dies_while_a_queued_step_runs(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await made.add("n1", "n2")
        await made.add_worker("w1", concurrency=8)
        actors = await made.start_many("queues", [[n, 1.0] for n in range(8)], "q")

        async def running() -> bool:
            return len(begun(made, "queued")) == 8

        await until(running, lambda: made.logs(), 30)
        made.nodes["n1"].kill()

        assert await made.results(actors) == list(range(8))
        assert set(begun(made, "queued").values()) == {1}, "no worker died, so no queued step runs twice"
        recorded_once(made, actors)
        await queue_is_empty(made)


@pytest.mark.parametrize("kill", [True, False], ids=["SIGKILL", "SIGTERM"])
async def test_a_restart_of_the_server_while_queued_steps_run_loses_nothing(
    kill: bool, tmp_path: Path
) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await impatient(made)
        await made.add("n1")
        await made.add_worker("w1", "w2", concurrency=4)
        actors = await made.start_many("queues", [[n, 0.5] for n in range(24)], "q")

        async def running() -> bool:
            return len(begun(made, "queued")) >= 8

        await until(running, lambda: made.logs(), 30)
        await made.server.restart(kill=kill)

        assert await made.results(actors) == list(range(24))
        assert len(begun(made, "queued")) == 24
        recorded_once(made, actors)
        await queue_is_empty(made)


async def test_a_worker_that_is_asked_to_leave_finishes_its_steps(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await made.add("n1")
        await made.add_worker("w1", concurrency=4)
        actors = await made.start_many("queues", [[n, 1.0] for n in range(4)], "q")

        async def running() -> bool:
            return len(begun(made, "queued")) == 4

        await until(running, lambda: made.logs(), 30)
        made.workers["w1"].terminate()

        assert await made.workers["w1"].wait() == 0, made.logs()
        assert await made.results(actors) == list(range(4))
        assert set(begun(made, "queued").values()) == {1}


async def test_a_second_signal_leaves_at_once_and_another_worker_runs_the_step_again(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await made.add("n1")
        await made.add_worker("w1")
        actors = await made.start_many("queues", [[1, 3.0]], "q")

        async def running() -> bool:
            return len(begun(made, "queued")) == 1

        await until(running, lambda: made.logs(), 30)
        made.workers["w1"].terminate()
        await asyncio.sleep(0.2)  # two signals at once may be one
        made.workers["w1"].terminate()

        assert await made.workers["w1"].wait() == 143, made.logs()
        await made.add_worker("w2")
        assert await made.results(actors) == [1]
        assert set(begun(made, "queued").values()) == {2}
        recorded_once(made, actors)


async def test_the_result_reaches_an_actor_whose_code_its_owner_lacks(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=8) as made:
        await add(made, 1, "old")
        actors = await made.start_many("renders", [[n] for n in range(16)], "r")

        async def waiting() -> bool:
            return (await made.broker.stream_info(made.subjects.steps_stream)).messages == 16

        await until(waiting, lambda: made.logs(), 30)
        await add(made, 2, "new")
        await set_current(made, "v2")
        await made.add_worker("w1", concurrency=4)

        assert await made.results(actors) == [[n, 1] for n in range(16)]
        assert set(begun(made, "render").values()) == {1}
        pids = {effect.pid for effect in made.effects() if effect.name == "after"}
        assert pids == {made.nodes["old"].pid}, "only there is the code that goes on"
        await queue_is_empty(made)


async def test_a_step_that_kills_its_workers_fails_and_the_others_go_on(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await made.broker.create_consumer(
            made.subjects.steps_stream,
            ConsumerConfig(Subjects.step_consumer(QUEUE), (made.subjects.step(QUEUE),), ack_wait=1.0),
        )
        await made.add("n1")
        deadly = await made.client.start("kills_its_workers", id="deadly")
        actors = await made.start_many("queues", [[n] for n in range(6)], "q")

        for number in range(8):
            await made.add_worker(f"w{number}")
            worker = made.workers[f"w{number}"]
            ended = asyncio.create_task(worker.wait())
            result = asyncio.create_task(made.client.handle("deadly").result(timeout=60))
            await asyncio.wait((ended, result), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if result.done():
                break
            result.cancel()

        assert await deadly.result(60) == "sojourn.actors.errors:WorkersLost"
        assert 5 <= begun(made, "deadly").total() <= 6
        await made.add_worker("last")
        assert await made.results(actors) == list(range(6))
        recorded_once(made, actors)
        await queue_is_empty(made)

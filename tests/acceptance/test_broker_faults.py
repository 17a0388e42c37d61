"""The broker dies, restarts, or is cut off while workflows run: nodes come back by themselves and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from cluster_kit import Cluster, cluster, tcp_proxy
from sojourn.actors.errors import NoAnswer

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]


async def _start(made: Cluster, workflow: str, args: list[object], actor: str) -> None:
    for _ in range(30):
        try:
            await made.client.start(workflow, args=args, id=actor, request=f"r-{actor}", timeout=5)
        except NoAnswer:
            continue
        return
    raise AssertionError(f"{actor} could not be started\n{made.logs()}")


@pytest.mark.parametrize("kill", [True, False], ids=["SIGKILL", "SIGTERM"])
async def test_a_restart_of_the_server_in_the_middle_of_200_workflows_loses_nothing(
    kill: bool, tmp_path: Path
) -> None:
    async with cluster(tmp_path) as made:
        await made.add("n1", "n2")
        waiting = [f"w{n}" for n in range(100)]
        gate = asyncio.Semaphore(30)

        async def start(workflow: str, args: list[object], actor: str) -> None:
            async with gate:
                await _start(made, workflow, args, actor)

        starts = asyncio.gather(
            *(start("waits", [n], actor) for n, actor in enumerate(waiting)),
            *(start("counts", [10], f"c{n}") for n in range(60)),
            *(start("sleeps", [1.0], f"s{n}") for n in range(40)),
        )
        await made.until_all(waiting[:20], lambda index: index.stage == "waiting")
        await made.server.restart(kill=kill)
        await starts
        await made.until_all(waiting, lambda index: index.stage == "waiting")
        await made.signal_many(waiting, "go")
        assert await made.results(waiting) == [n + 1 for n in range(100)]
        assert await made.results([f"c{n}" for n in range(60)]) == [10] * 60
        assert await made.results([f"s{n}" for n in range(40)]) == ["woken"] * 40
        statuses = Counter(str(index.status) for index in (await made.indexes()).values())
        assert statuses == {"completed": 200}
        assert made.repeated() == {}, "no process died, so no step may run twice"


async def test_a_cut_with_messages_on_the_wire_loses_none_and_keeps_their_order(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made, tcp_proxy(made.server.port) as proxy:
        await made.add("n1", url=proxy.url)
        actors = await made.start_many("takes", [[200]] * 5, "t")

        async def send(actor: str) -> None:
            for number in range(200):
                await made.signal_many([actor], "go", str(number).encode())

        sending = asyncio.gather(*(send(actor) for actor in actors))
        for _ in range(3):
            await made.until_index(actors[0], lambda index: index.resumes > 5)
            proxy.cut()
            await asyncio.wait_for(proxy.reconnected(), 20)
        await sending
        assert await made.results(actors) == [list(range(200))] * 5

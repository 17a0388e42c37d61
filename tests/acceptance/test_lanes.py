"""Two deployments side by side: actors go on with the code they sleep in, whichever node owns their partition."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from cluster_kit import KITS, Cluster, cluster, until
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.cluster.versions import Policy, change_policy
from sojourn.cluster.views import check

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

APP = """
from acceptance_app import effect, go
from sojourn import Rejected, current, sleep, spawn, stage, step, workflow

VERSION = {version}


@workflow
async def collects(number: int) -> list[int]:
    "Takes numbered mail, one step for each."
    await effect("begin")
    taken = [VERSION, {version}]
    while len(taken) < number + 2:
        answer = await go.receive()
        await effect(f"took {{answer}}")
        taken.append(answer)
    return taken


@workflow
async def same(number: int) -> int:
    "Not touched by any deploy."
    total = 0
    for _ in range(number):
        total += await go.receive()
    return total


@workflow(pin="deployment")
async def bound(number: int) -> int:
    total = 0
    for _ in range(number):
        total += await go.receive()
    return total


@workflow
async def naps(seconds: float) -> int:
    await sleep(seconds)
    return {version}


@workflow
async def only_v{version}() -> int:
    await effect("only")
    return VERSION
"""


def _version(place: Path, version: int) -> Path:
    folder = place / f"v{version}"
    folder.mkdir()
    (folder / "lanes_app.py").write_text(APP.format(version=version))
    (folder / "acceptance_app.py").write_text((KITS / "acceptance_app.py").read_text())
    return folder


async def _add(made: Cluster, place: Path, version: int, *names: str) -> None:
    folder = place / f"v{version}"
    if not folder.exists():
        _version(place, version)
    for name in names:
        await made.add(name, app="lanes_app", path=folder, deployment=f"v{version}")


async def _set(made: Cluster, policy: Policy) -> None:
    await change_policy(ClusterKeys(made.broker, made.subjects), lambda _: policy)
    await made.broker.send(made.subjects.members())


async def test_an_actor_sleeping_in_old_code_takes_its_mail_in_order_over_the_lane(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        await _add(made, tmp_path, 1, "a1")
        actors = await made.start_many("collects", [[5]] * 12, "x")
        await made.until_all(actors, lambda index: index.wait.startswith("receive"))
        await _add(made, tmp_path, 2, "b1")
        for number in range(5):
            await made.signal_many(actors, "go", str(number).encode())
        assert await made.results(actors) == [[1, 1, 0, 1, 2, 3, 4]] * 12
        assert made.repeated() == {}
        indexes = await made.indexes()
        assert {indexes[actor].node for actor in actors} <= {"a1", "b1"}
        assert {indexes[actor].deployment for actor in actors} == {"v1"}

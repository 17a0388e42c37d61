"""Two deployments side by side: actors go on with the code they sleep in, whichever node owns their partition."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import KITS, NAMESPACE, Cluster, cluster, until
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
    """Change where new actors start, and wait until every partition's owner has heard of it."""
    await change_policy(ClusterKeys(made.broker, made.subjects), lambda _: policy)
    await made.broker.send(made.subjects.members())
    if policy.ramp:
        return
    rounds = iter(range(1_000))

    async def heard() -> bool:
        probes = await made.start_many("naps", [[0.0]] * 16, f"probe-{policy.current}-{next(rounds)}-{id(policy)}-")
        indexes = await made.indexes()
        return {indexes[probe].deployment for probe in probes} == {policy.current}

    await until(heard, f"new actors start on {policy.current}", 20)


async def _sojourn(made: Cluster, *words: str, code: int = 0) -> Any:
    """A command's JSON document."""
    command = [sys.executable, "-m", "sojourn.cli", *words, "--server", made.server.url, "--namespace", NAMESPACE]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == code, (out, err)
    return json.loads(out) if out else None


def _begun_by(made: Cluster, pid: int | None) -> set[str]:
    """Operations of which this process ran an attempt."""
    return {effect.key for effect in made.effects() if effect.what == "begin" and effect.pid == pid}


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


async def test_a_deploy_under_load_with_a_killed_lane_node_a_rollback_and_a_drain_loses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    draws = random.Random(20)
    async with cluster(tmp_path, partitions=8) as made:
        await _add(made, tmp_path, 1, "a1", "a2")
        actors = await made.start_many("collects", [[30]] * 100, "x")
        await made.until_all(actors, lambda index: index.wait.startswith("receive"))
        await _add(made, tmp_path, 2, "b1", "b2")
        await _set(made, Policy(current="v2"))
        young: list[str] = []
        for number in range(30):
            draws.shuffle(actors)
            await made.signal_many(actors, "go", str(number).encode())
            if number == 5:
                young = await made.start_many("collects", [[0]] * 20, "y")
            if number == 10:
                made.nodes["a2"].kill()
            if number == 18:  # back to the previous version, with actors on both
                await _set(made, Policy(current="v1"))
                young += await made.start_many("collects", [[0]] * 20, "z")
        numbers = list(range(30))
        assert await made.results(actors, seconds=120) == [[1, 1, *numbers]] * 100
        assert await made.results(young) == [[2, 2]] * 20 + [[1, 1]] * 20
        assert set(made.repeated()) <= _begun_by(made, made.nodes["a2"].pid)
        assert (await check(made.broker, made.subjects, made.keyring)).findings == ()
        await _set(made, Policy(current="v2"))
        drained = await _sojourn(made, "versions", "drain", "v1", "--wait", "--timeout", "30s", "--json")
        assert (drained["drained"], drained["needing"]) == (True, 0)

"""Versions of one app as folders, nodes that run them, and the policy of where new actors start."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster_kit import KITS, NAMESPACE, Cluster, until
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.cluster.deployments.versions import Policy, change_policy

APP = """
from acceptance_app import effect, go, queued_effect
from sojourn import Cancelled, current, sleep, spawn, stage, workflow

VERSION = {version}


@workflow
async def collects(number: int) -> list[int]:
    "Takes numbered mail, one step for each. The second number is a constant of this version's code."
    await effect("begin")
    taken = [VERSION, {version}]
    while len(taken) < number + 2:
        answer = await go.receive()
        await effect(f"took {{answer}}")
        taken.append(answer)
    return taken


@workflow
async def same(number: int) -> int:
    "Touched by no deploy."
    total = 0
    for _ in range(number):
        total += await go.receive()
    return total


@workflow
async def delegates(number: int) -> list[int]:
    "Touched by no deploy; what it calls is."
    found = []
    for _ in range(number):
        await go.receive()
        found.append(await answers())
    return found


async def answers() -> int:
    await sleep(0.0)
    return {version}


@workflow(pin="deployment")
async def bound(number: int) -> int:
    "As `same`, but tied to the label."
    total = 0
    for _ in range(number):
        total += await go.receive()
    return total


@workflow
async def naps(seconds: float) -> int:
    await sleep(seconds)
    return {version}


@workflow
async def only_v{version}(number: int) -> int:
    await effect("only")
    return {version} + number


@workflow
async def renders(number: int) -> list[int]:
    "A queued step, then a constant of this version's code."
    await queued_effect("render")
    await effect("after")
    return [number, {version}]


@workflow
async def has_child() -> list[int]:
    return [{version}, await (await spawn(naps(0.0), id=f"{{current.actor.id}}-c"))]


@workflow
async def cleans() -> int:
    try:
        return {version} + await go.receive()
    except Cancelled:
        await effect(f"cleanup {version}")
        raise
"""


def version_folder(place: Path, version: int) -> Path:
    """Where this version of the app lies; written when it is asked for first."""
    folder = place / f"v{version}"
    if not folder.exists():
        folder.mkdir()
        (folder / "lanes_app.py").write_text(APP.format(version=version))
        (folder / "acceptance_app.py").write_text((KITS / "acceptance_app.py").read_text())
    return folder


async def add(made: Cluster, version: int, *names: str, env: Mapping[str, str] | None = None) -> None:
    """Start nodes of deployment `v<version>`."""
    folder = version_folder(made.place, version)
    for name in names:
        await made.add(name, app="lanes_app", path=folder, deployment=f"v{version}", env=env)


async def leave(made: Cluster, *names: str) -> None:
    """Drain these nodes."""
    for name in names:
        made.nodes[name].terminate()
    for name in names:
        assert await made.nodes[name].wait() == 0, made.nodes[name].last_words()


async def set_policy(made: Cluster, policy: Policy) -> None:
    """Change where new actors start."""
    await change_policy(ClusterKeys(made.broker, made.subjects), lambda _: policy)
    await made.broker.send(made.subjects.members())


async def set_current(made: Cluster, label: str) -> None:
    """Change where new actors start, and wait until every partition's owner has heard of it."""
    await set_policy(made, Policy(current=label))
    rounds = iter(range(1_000))
    before = len(await made.indexes())

    async def heard() -> bool:
        probes = await made.start_many("naps", [[0.0]] * 16, f"probe{before}-{next(rounds)}-")
        indexes = await made.indexes()
        return {indexes[probe].deployment for probe in probes} == {label}

    await until(heard, f"new actors start on {label}", 20)


def begun_by(made: Cluster, *names: str) -> set[str]:
    """Operations of which one of these nodes ran an attempt."""
    pids = {made.nodes[name].pid for name in names}
    return {effect.key for effect in made.effects() if effect.what == "begin" and effect.pid in pids}


async def sojourn(made: Cluster, *words: str, code: int = 0) -> Any:
    """A command's JSON document."""
    where = ["--server", made.server.url, "--namespace", NAMESPACE]
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "sojourn.cli", *words, "--json", *where],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == code, (out, err)
    return json.loads(out) if out else json.loads(err)

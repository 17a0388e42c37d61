"""`sojourn doctor` as a user of each role, on a real server that has them: what a role may not see is said, and is nothing broken."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
from sojourn.actors.registry import Registry
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.roles import Role, User, api_prefix, inbox_prefix, server_config
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.node import Node, NodeOptions
from sojourn.codecs.keyring import Keyring

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

TOPOLOGY = Topology(namespace="roles", app="app", partitions=4)
ROLES = (Role.ADMIN, Role.NODE, Role.STARTER, Role.SIGNALLER, Role.READER, Role.OPERATOR)
LOOKED_AT = ("broker", "topology", "clock", "nodes")


def options(server: EmbeddedServer, role: Role) -> NatsOptions:
    return NatsOptions(
        servers=server.url, user=role.value, password="secret", inbox_prefix=inbox_prefix(role), api_prefix=api_prefix(role)
    )  # fmt: skip


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedServer]:
    """With a user for each role, the topology applied, and one node that serves."""
    users = [User(role.value, "secret", role) for role in ROLES]
    async with EmbeddedServer(extra_config=server_config(users, TOPOLOGY.subjects)) as made:
        admin = await NatsBroker.connect(options(made, Role.ADMIN))
        await apply(admin, TOPOLOGY)
        await admin.close()
        node = Node(
            NodeOptions(
                app="unused",
                registry=Registry(),
                nats=options(made, Role.NODE),
                keyring=Keyring.ephemeral(lambda n: b"k" * n),
                namespace=TOPOLOGY.namespace,
                reply_prefix="_INBOX",
                deployment="v1",
                health_port=None,
            )
        )
        running = asyncio.create_task(node.run())
        await node.wait_ready()
        yield made
        node.drain()
        async with asyncio.timeout(30):
            await running


async def doctor(
    server: EmbeddedServer,
    user: Role,
    place: Path,
    *words: str,
    role: Role | Literal["its own"] | None = "its own",
    namespace: str = TOPOLOGY.namespace,
) -> tuple[int | None, str]:
    said = user if role == "its own" else role
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sojourn.cli", "doctor", *words, "--server", server.url, "--namespace", namespace,
        "--user", user.value, "--password", "secret", *(("--role", said.value) if said else ()),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=place,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode()


async def owned(server: EmbeddedServer, place: Path) -> None:
    """Until the node has all partitions."""
    async with asyncio.timeout(60):
        while (await doctor(server, Role.NODE, place))[0] != 0:
            pass


async def test_doctor_sees_what_the_role_may_see_and_says_what_it_may_not(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    await owned(server, tmp_path)
    found: dict[Role, dict[str, str]] = {}
    details: dict[Role, str] = {}
    for role in ROLES:
        code, text = await doctor(server, role, tmp_path, "--json")
        assert code == 0, (role, text)
        findings = json.loads(text)
        found[role] = {one["subject"]: one["health"] for one in findings if one["subject"] in LOOKED_AT}
        details[role] = " ".join(f"{one['detail']} {one['remedy']}" for one in findings)
    all_of_it = dict.fromkeys(LOOKED_AT, "ok")
    assert found[Role.ADMIN] == found[Role.NODE] == all_of_it
    for role in (Role.STARTER, Role.READER, Role.OPERATOR):
        assert found[role] == {**all_of_it, "topology": "partly"}
        assert "4 partitions" in details[role]
        assert f"may not ask about {TOPOLOGY.subjects.mail_stream}" in details[role]
        assert "4 of 4 partitions owned" in details[role]
    assert found[Role.SIGNALLER] == {
        "broker": "ok",
        "topology": "unseen",
        "clock": "unseen",
        "nodes": "unseen",
    }


async def test_drift_of_a_stream_that_a_reader_sees_is_found_by_a_reader(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    admin = await NatsBroker.connect(options(server, Role.ADMIN))
    changed = Topology(namespace="roles", app="app", partitions=4, history=3)
    (frames,) = [one for one in changed.streams() if one.name == changed.subjects.frames_stream]
    await admin.update_stream(frames)
    await admin.close()
    code, text = await doctor(server, Role.READER, tmp_path)
    assert code == 1
    assert frames.name in text.replace("\n", "")


async def test_a_user_who_names_no_role_or_another_ones_or_another_namespace_is_told_what_to_look_at(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """Its answers would come to an inbox that it may not read: without these words it is a time-out."""

    async def topology(user: Role, **given: Any) -> str:
        code, text = await doctor(server, user, tmp_path, "--json", **given)
        (found,) = [one for one in json.loads(text) if one["subject"] == "topology"]
        assert (code, found["health"]) == (1, "broken")
        return str(found["remedy"])

    assert "--role" in await topology(Role.ADMIN, role=None)
    assert "says none, for user reader" in await topology(Role.READER, role=None)
    assert "says operator, for user reader" in await topology(Role.READER, role=Role.OPERATOR)
    assert "--namespace" in await topology(Role.READER, namespace="elsewhere")

"""The chart's whole life, acted out: real helm against an API server in memory, whose pods are processes of this machine.

Install, upgrade to code that changed, scale, lose a node, roll back, deploy a version that does not start, uninstall;
with workflows of both versions asleep and at work throughout. Nodes, jobs and the bundled NATS run with the commands,
environment, files, probes and signals that the chart gives them. At the end a journal that Sojourn does not write says
what happened.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip(
    "yaml", reason="needs the packages of requirements/chart.lock: `make chart` installs them"
)

from chart_kit import CHART, NAMESPACE, helm
from cluster_kit import KITS, Cluster
from kubelet_kit import PROGRAMS, Ended, Kubelet
from kubernetes_kit import Kubernetes
from sojourn.actors.client import Client
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.roles import Role, api_prefix, inbox_prefix
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects
from sojourn.codecs.keyring import Keyring

pytestmark = [pytest.mark.acceptance, pytest.mark.chart, pytest.mark.timeout(300)]

SHOP = "accept"
IMAGE = "registry.example/shop"
APP = """
from acceptance_app import effect, go
from sojourn import Channel, workflow


@workflow
async def order(number: int) -> list:
    await effect("reserve")
    answer = await go.receive()
    await effect("charge")
    return ["VERSION", number + answer]


@workflow
async def report(number: int) -> int:
    total = 0
    for part in range(number):
        await effect(f"part {part}", 0.05)
        total += part
    return total
"""
VALUES = {
    "app": "shop_app",
    "image": {"repository": IMAGE, "tag": "v1"},
    "topology": {"namespace": SHOP, "app": "shop", "partitions": 8},
    "node": {"replicas": 2, "drainSeconds": 20, "logLevel": "warning"},
    "nats": {"mode": "single", "syncAlways": False, "storage": {"size": "8Gi"}},
    "promote": {"timeoutSeconds": 40},
    "janitor": {"minimumAgeMinutes": 0},
}


@dataclass
class Release:
    """What the test holds: the release, what runs it, and a client."""

    place: Path
    kubernetes: Kubernetes
    kubelet: Kubelet
    clients: list[Client] = field(default_factory=list)
    brokers: list[NatsBroker] = field(default_factory=list)

    async def helm(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run helm against this API server."""
        env = {"KUBECONFIG": str(self.kubernetes.kubeconfig)}
        return await asyncio.to_thread(helm, *words, "--namespace", NAMESPACE, env=env, check=check)

    async def deploy(
        self, verb: str, tag: str, *sets: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Install or upgrade to a tag, with nothing else said."""
        values = self.place / "values.yaml"
        words = [verb, "shop", str(CHART), "--values", str(values), "--set", f"image.tag={tag}"]
        for one in sets:
            words += ["--set", one]
        return await self.helm(*words, check=check)

    async def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        await asyncio.to_thread(self.kubelet.wait, condition, what, seconds)

    async def wait_ready(self, version: str, count: int) -> None:
        await asyncio.to_thread(self.kubelet.wait_ready, version, count)

    async def janitor(self) -> str:
        return await asyncio.to_thread(self.kubelet.run_cron_job, "-janitor")

    def secret(self, name: str) -> dict[str, str]:
        found = self.kubernetes.get("secrets", name)
        assert found is not None
        return {entry: base64.b64decode(text).decode() for entry, text in found["data"].items()}

    def connection(self, role: str) -> dict[str, str]:
        """How a user of a role reaches the bundled NATS, as the environment of the command line."""
        auth, server = self.secret("shop-sojourn-nats-auth"), self.kubelet.of(component="nats")[0]
        return {
            "SOJOURN_SERVER": f"nats://{server.ip}:4222", "SOJOURN_NAMESPACE": SHOP, "SOJOURN_ROLE": role,
            "SOJOURN_USER": auth[f"{role}-user"], "SOJOURN_PASSWORD": auth[f"{role}-password"],
        }  # fmt: skip

    async def sojourn(self, role: str, *words: str) -> tuple[int, Any]:
        """Run the command line as a role; exit code and document."""
        process = await asyncio.create_subprocess_exec(
            str(Path(PROGRAMS.split(":")[0]) / "sojourn"), *words, "--json",
            env={"PATH": PROGRAMS, "HOME": str(self.place), **self.connection(role)}, cwd=self.place,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        return process.returncode, json.loads(out) if out.strip() else None

    async def shop(self) -> Cluster:
        """The kit's ways to start, signal and look, over the starter's and the admin's connections."""
        made = {}
        for role in (Role.STARTER, Role.ADMIN):
            where = self.connection(role)
            options = NatsOptions(
                servers=where["SOJOURN_SERVER"], user=where["SOJOURN_USER"], password=where["SOJOURN_PASSWORD"],
                inbox_prefix=inbox_prefix(role), api_prefix=api_prefix(role), name="test",
            )  # fmt: skip
            made[role] = await NatsBroker.connect(options)
            self.brokers.append(made[role])
        subjects = Subjects(SHOP, 8)
        client = Client(made[Role.STARTER], subjects, by="test", inbox_prefix=inbox_prefix(Role.STARTER))
        self.clients.append(client)
        none = cast(EmbeddedServer, None)  # the server is a pod here
        return Cluster(self.place, none, made[Role.ADMIN], subjects, client, cast(Keyring, None))


@asynccontextmanager
async def release(place: Path) -> AsyncIterator[Release]:
    """Images of three versions: v2 changed one workflow, v3 does not import."""
    images = {}
    for tag, text in (("v1", APP), ("v2", APP.replace("VERSION", "v2")), ("v3", "import no_such_module\n")):
        folder = place / "images" / tag
        folder.mkdir(parents=True)
        (folder / "shop_app.py").write_text(text.replace("VERSION", "v1"))
        images[f"{IMAGE}:{tag}"] = {"PYTHONPATH": f"{folder}:{KITS}"}
    journal = {"name": "ACCEPTANCE_JOURNAL", "value": str(place / "journal")}
    node: Any = {**cast(dict[str, Any], VALUES["node"]), "env": [journal]}
    (place / "values.yaml").write_text(json.dumps({**VALUES, "node": node}))
    with Kubernetes(place) as kubernetes, Kubelet(kubernetes, place / "pods", images) as kubelet:
        made = Release(place, kubernetes, kubelet)
        try:
            yield made
        finally:
            for client in made.clients:
                await client.close()
            for broker in made.brokers:
                await broker.close()


def drains(kubelet: Kubelet) -> list[Ended]:
    """How the nodes ended that were asked to."""
    return [one for one in kubelet.ended if one.container == "node" and one.asked]


async def test_an_upgrade_by_tag_alone_strands_nothing_and_ends_when_nobody_needs_the_old(
    tmp_path: Path,
) -> None:
    async with release(tmp_path) as made:
        await made.deploy("install", "v1", "node.replicas=1")
        await made.wait_ready("v1", 1)
        shop = await made.shop()
        early = await shop.start_many("order", [[n] for n in range(10)], "early")
        await shop.until_all(early, lambda index: index.wait.startswith("receive"))
        await made.deploy("upgrade", "v2", "node.replicas=1")
        await made.wait_ready("v2", 1)
        late = await shop.start_many("order", [[n] for n in range(10)], "late")
        assert "shop-sojourn-node-v1: 10 workflows need it" in await made.janitor()
        await shop.signal_many([*early, *late], "go", b"100")
        assert await shop.results(early) == [["v1", n + 100] for n in range(10)]
        assert await shop.results(late) == [["v2", n + 100] for n in range(10)]
        assert "shop-sojourn-node-v1: nobody needs it, removed" in await made.janitor()
        await made.wait(lambda: bool(drains(made.kubelet)), "the end of v1's node")
        assert [one.code for one in drains(made.kubelet)] == [0]
        assert not shop.repeated()


@pytest.mark.skipif(not os.environ.get("CHART_SCAN"), reason="takes two minutes: `make chart` runs it")
async def test_install_upgrade_scale_lose_roll_back_and_uninstall_strand_nothing(tmp_path: Path) -> None:
    async with release(tmp_path) as made:
        kubelet, kubernetes = made.kubelet, made.kubernetes

        def label_of_nodes() -> list[str]:
            return sorted(
                one["metadata"]["labels"]["sojourn/deployment"] for one in kubernetes.all("deployments")
            )

        # install
        notes = (await made.deploy("install", "v1")).stdout
        assert "sojourn signal" in notes
        await made.wait_ready("v1", 2)
        assert "v1 is current" in kubelet.log("shop-sojourn-promote")
        keys, auth = made.secret("shop-sojourn-keys"), made.secret("shop-sojourn-nats-auth")
        shop = await made.shop()
        early = await shop.start_many("order", [[n] for n in range(20)], "early")
        reports = await shop.start_many("report", [[40] for _ in range(6)], "report")
        await shop.until_all(early, lambda index: index.wait.startswith("receive"))

        # who may only signal can do nothing else
        assert (await made.sojourn("signaller", "signal", early[0], "go", "100"))[0] == 0
        assert (await made.sojourn("signaller", "list"))[0] == 6
        assert (await made.sojourn("reader", "cancel", early[1]))[0] == 6

        # the new tag alone: v2 beside v1, v1 keeps its sleepers
        await made.deploy("upgrade", "v2")
        await made.wait_ready("v2", 2)
        assert label_of_nodes() == ["v1", "v2"]
        assert "v2 is current" in kubelet.log("shop-sojourn-promote")
        assert made.secret("shop-sojourn-keys") == keys
        assert made.secret("shop-sojourn-nats-auth") == auth
        late = await shop.start_many("order", [[n] for n in range(20)], "late")
        await shop.until_all(
            late, lambda index: index.wait.startswith("receive") and index.deployment == "v2"
        )
        log = await made.janitor()
        assert "shop-sojourn-node-v1: 19 workflows need it" in log
        assert label_of_nodes() == ["v1", "v2"]

        # up, down, and a host that is gone
        more = await shop.start_many("report", [[40] for _ in range(6)], "more")
        await made.deploy("upgrade", "v2", "node.replicas=3")
        await made.wait_ready("v2", 3)
        lost = kubelet.of(component="node", deployment="v2")[0]
        assert lost.process is not None
        dead, in_flight = lost.process.pid, lambda: shop.in_flight(dead)
        kubelet.lose(lost)
        may_repeat = in_flight()
        await made.deploy("upgrade", "v2", "node.replicas=1")
        await made.wait_ready("v2", 1)
        await shop.signal_many(early[1:10], "go", b"100")
        await shop.signal_many(late[:10], "go", b"100")
        assert await shop.results(late[:10]) == [["v2", n + 100] for n in range(10)]
        assert await shop.results(early[:10]) == [["v1", n + 100] for n in range(10)]

        # back to v1: it is there already; v2's sleepers stay with v2
        await made.helm("rollback", "shop", "1")
        await made.wait_ready("v1", 2)
        assert "v1 is current" in kubelet.log("shop-sojourn-promote")
        again = await shop.start_many("order", [[n] for n in range(5)], "again")
        await shop.until_all(
            again, lambda index: index.wait.startswith("receive") and index.deployment == "v1"
        )
        assert "shop-sojourn-node-v2: 10 workflows need it" in await made.janitor()
        await shop.signal_many([*early[10:], *late[10:], *again], "go", b"100")
        assert await shop.results(late[10:]) == [["v2", n + 100] for n in range(10, 20)]
        assert await shop.results(early[10:]) == [["v1", n + 100] for n in range(10, 20)]
        assert await shop.results(again) == [["v1", n + 100] for n in range(5)]
        assert await shop.results([*reports, *more]) == [sum(range(40))] * 12

        # nobody needs v2 any more
        assert "shop-sojourn-node-v2: nobody needs it, removed" in await made.janitor()
        await made.wait(lambda: not kubelet.of(component="node", deployment="v2"), "the end of v2's nodes")
        assert label_of_nodes() == ["v1"]

        # a version that does not start changes nothing
        failed = await made.deploy("upgrade", "v3", "promote.timeoutSeconds=10", check=False)
        assert failed.returncode
        assert "`current` was not moved" in kubelet.log("shop-sojourn-promote")
        _, versions = await made.sojourn("reader", "versions", "list")
        assert versions["current"] == "v1"
        assert "no node of v3 serves: nothing is removed" in await made.janitor()
        assert await shop.start_many("report", [[3]], "still") == ["still0"]
        assert await shop.results(["still0"]) == [3]
        await made.helm("rollback", "shop")
        await made.wait_ready("v1", 2)
        assert "shop-sojourn-node-v3: nobody needs it, removed" in await made.janitor()

        # gone, and only what is worth keeping stays
        await made.helm("uninstall", "shop")
        assert not kubernetes.all("deployments")
        assert "0 nodes left" in kubelet.log("shop-sojourn-leave")
        assert made.secret("shop-sojourn-keys") == keys
        assert not kubernetes.all("roles")

        # what the journal says
        repeated = shop.repeated()
        assert set(repeated) <= may_repeat, "a step ran twice although its node did not die"
        begun = {effect.key for effect in shop.effects() if effect.what == "begin"}
        assert len(begun) == 2 * (20 + 20 + 5) + 12 * 40 + 3
        asked = [one for one in drains(kubelet) if one.pod != lost.name and "-v3-" not in one.pod]
        assert len(asked) >= 4, "one of v2 when it was scaled down, one by the janitor, two of v1 at the end"
        assert {one.code for one in asked} == {0}, "every node that was asked to leave drained"
        assert max(one.seconds for one in asked) < 20 + 5


async def _signal_until_stored(shop: Cluster, order: str) -> None:
    """As a careful client: while a leader is elected nobody knows, and mail sent twice is taken once by an order."""
    for _ in range(20):
        try:
            await shop.signal_many([order], "go", b"100")
        except OutcomeUnknown:
            await asyncio.sleep(0.5)
        else:
            return
    raise AssertionError(f"no signal for {order} was stored")


@pytest.mark.skipif(not os.environ.get("CHART_SCAN"), reason="three servers and a node: `make chart` runs it")
async def test_three_servers_keep_three_copies_and_lose_one(tmp_path: Path) -> None:
    async with release(tmp_path) as made:
        await made.deploy("install", "v1", "nats.mode=cluster", "nats.syncAlways=true", "node.replicas=1")
        await made.wait_ready("v1", 1)
        code, _ = await made.sojourn("admin", "topology", "check")
        assert code == 0
        shop = await made.shop()
        info = await shop.broker.stream_config(shop.subjects.frames_stream)
        assert info is not None
        assert info.replicas == 3
        orders = await shop.start_many("order", [[n] for n in range(10)], "order")
        await shop.until_all(orders, lambda index: index.wait.startswith("receive"))
        made.kubelet.lose(made.kubelet.of(component="nats")[-1])
        for order in orders:
            await _signal_until_stored(shop, order)
        assert await shop.results(orders) == [["v1", n + 100] for n in range(10)]
        await made.wait(
            lambda: [pod.ready for pod in made.kubelet.of(component="nats")] == [True] * 3,
            "the third server again",
        )
        assert not shop.repeated()

"""The chart's whole life, acted out: real helm against an API server in memory, whose pods are processes of this machine.

Install, upgrade to code that changed, scale, lose a node and a worker, roll back, deploy a version that does not start, uninstall;
with workflows of all kinds and of both versions asleep and at work throughout. Nodes, workers, jobs and the bundled NATS run with the
commands, environment, files, probes and signals that the chart gives them. At the end the judge of the chaos harness compares what
clients were promised with what a witness saw at the broker and what a journal says that Sojourn does not write.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

pytest.importorskip(
    "yaml", reason="needs the packages of requirements/chart.lock: `make chart` installs them"
)

from release_kit import AUTH, release
from sojourn.actors.client import Client
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.roles import Role
from witness_kit import prepare, witnessed

pytestmark = [pytest.mark.acceptance, pytest.mark.chart, pytest.mark.timeout(400)]


async def test_an_upgrade_by_tag_alone_strands_nothing_and_ends_when_nobody_needs_the_old(
    tmp_path: Path,
) -> None:
    async with release(tmp_path) as made:
        password = prepare(made)
        await made.deploy("install", "v1", "node.replicas=1")
        await made.wait_ready("v1", 1)
        async with witnessed(made, password, workflows=0, seconds=0) as shop:
            early = await shop.order("early", range(10))
            await shop.asleep(early, "v1")
            await made.deploy("upgrade", "v2", "node.replicas=1")
            await made.wait_ready("v2", 1)
            assert made.deployments("node") == made.deployments("worker") == ["v1", "v2"]
            # what a forgotten --reset-then-reuse-values would do is refused
            for wrong in ("topology.namespace=other", "topology.partitions=16", "nats.mode=cluster"):
                refused = await made.deploy("upgrade", "v2", wrong, check=False)
                assert "workflows" in refused.stderr
                assert "would become" in refused.stderr
            late = await shop.order("late", range(10))
            await shop.asleep(late, "v2")
            log = await made.janitor()
            assert "shop-sojourn-node-v1: 10 workflows need it" in log
            assert "shop-sojourn-worker-chaos-v1: 10 workflows need it" in log
            # Each version's last step is one that only its own workers have.
            await shop.pay([*early, *late])
            await shop.paid(early, "one")
            await shop.paid(late, "two")
            assert await shop.judged() == {}
            assert "shop-sojourn-node-v1: nobody needs it, removed" in await made.janitor()
            await made.wait_gone("v1's node")
            assert "shop-sojourn-worker-chaos-v1: nobody needs it, removed" in await made.janitor()
            await made.wait_gone("v1's worker")
            ended = [*made.drains(), *made.drains("worker")]
            assert [one.code for one in ended] == [0, 0]
            assert ended[0].seconds < 15, "nothing was left to do, so its drain does not take all of its 20 s"


@pytest.mark.skipif(not os.environ.get("CHART_SCAN"), reason="takes two minutes: `make chart` runs it")
async def test_install_upgrade_scale_lose_roll_back_and_uninstall_strand_nothing(tmp_path: Path) -> None:
    async with release(tmp_path) as made:
        kubelet, kubernetes = made.kubelet, made.kubernetes
        password = prepare(made)

        # install
        notes = (await made.deploy("install", "v1")).stdout
        assert "sojourn signal" in notes
        await made.wait_ready("v1", 2)
        assert "v1 is current" in kubelet.log("shop-sojourn-promote")
        keys, auth = made.secret("shop-sojourn-keys"), made.secret(AUTH)
        async with witnessed(made, password, workflows=200, seconds=45) as shop:
            early = await shop.order("early", range(12))
            await shop.asleep(early, "v1")

            # who may only signal can do nothing else
            assert (await made.sojourn("signaller", "list"))[0] == 6
            assert (await made.sojourn("reader", "cancel", early[0].actor))[0] == 6
            assert (await made.sojourn("reader", "doctor"))[0] == 0

            # the new tag alone: v2 beside v1, v1 keeps its sleepers
            await made.deploy("upgrade", "v2")
            await made.wait_ready("v2", 2)
            assert made.deployments("node") == made.deployments("worker") == ["v1", "v2"]
            assert "v2 is current" in kubelet.log("shop-sojourn-promote")
            assert made.secret("shop-sojourn-keys") == keys
            assert made.secret(AUTH) == auth
            late = await shop.order("late", range(12))
            await shop.asleep(late, "v2")
            log = await made.janitor()
            assert re.search(r"shop-sojourn-node-v1: \d\d+ workflows need it", log)
            assert re.search(r"shop-sojourn-worker-chaos-v1: \d\d+ workflows need it", log)
            assert "removed" not in log

            # up, and the hosts of a node and of a worker are gone; down
            await made.deploy("upgrade", "v2", "node.replicas=3")
            await made.wait_ready("v2", 3)
            lost = [kubelet.of(component=one, deployment="v2")[0] for one in ("node", "worker")]
            for pod in lost:
                kubelet.lose(pod)
            await made.deploy("upgrade", "v2", "node.replicas=1")
            await made.wait_ready("v2", 1)
            await shop.pay([*early[:6], *late[:6]])
            await shop.paid(late[:6], "two")
            await shop.paid(early[:6], "one")

            # back to v1: it is there already; v2's sleepers stay with v2
            await made.helm("rollback", "shop", "1")
            await made.wait_ready("v1", 2)
            assert "v1 is current" in kubelet.log("shop-sojourn-promote")
            again = await shop.order("again", range(5))
            await shop.asleep(again, "v1")
            assert re.search(r"shop-sojourn-node-v2: \d+ workflows need it", await made.janitor())
            await shop.pay([*early[6:], *late[6:], *again])
            await shop.paid(late[6:], "two")
            await shop.paid([*early[6:], *again], "one")

            # nothing lost, nothing done twice but where a process died
            assert await shop.judged() == {}

            # nobody needs v2 any more
            assert "shop-sojourn-node-v2: nobody needs it, removed" in await made.janitor()
            await made.wait_gone("v2's node")
            assert "shop-sojourn-worker-chaos-v2: nobody needs it, removed" in await made.janitor()
            assert made.deployments("node") == made.deployments("worker") == ["v1"]

            # a version that does not start changes nothing
            failed = await made.deploy("upgrade", "v3", "promote.timeoutSeconds=10", check=False)
            assert failed.returncode
            assert "`current` was not moved" in kubelet.log("shop-sojourn-promote")
            _, versions = await made.sojourn("reader", "versions", "list")
            assert versions["current"] == "v1"
            assert "no node of v3 serves: nothing is removed" in await made.janitor()
            await made.helm("rollback", "shop")
            await made.wait_ready("v1", 2)
            assert "shop-sojourn-node-v3: nobody needs it, removed" in await made.janitor()
            await made.wait_gone("v3's node")
            assert "shop-sojourn-worker-chaos-v3: nobody needs it, removed" in await made.janitor()

            # gone, and only what is worth keeping stays
            await made.helm("uninstall", "shop")
        assert not kubernetes.all("deployments")
        assert "0 nodes and workers left" in kubelet.log("shop-sojourn-leave")
        assert made.secret("shop-sojourn-keys") == keys
        assert not kubernetes.all("roles")
        # A cron job's jobs go with it, by their owner reference, which this API server does not know.
        assert not [one for one in kubernetes.all("jobs") if "-janitor-" not in one["metadata"]["name"]]

        # how they left
        gone = {pod.name for pod in lost}
        asked = [
            one
            for one in (*made.drains(), *made.drains("worker"))
            if one.pod not in gone and "-v3-" not in one.pod
        ]
        assert len(asked) >= 6, (
            "one of v2 when it was scaled down, one and its worker by the janitor, v1 at the end"
        )
        assert {one.code for one in asked} == {0}, "every one that was asked to leave drained"
        assert max(one.seconds for one in asked) < 20 + 5


@pytest.mark.skipif(not os.environ.get("CHART_SCAN"), reason="a minute: `make chart` runs it")
async def test_applied_without_helm_it_serves_is_upgraded_and_nothing_is_taken_away(tmp_path: Path) -> None:
    """`helm template | kubectl apply` runs every hook at once, that of an uninstall too."""
    async with release(tmp_path) as made:
        kubelet, jobs = made.kubelet, ("setup", "promote", "leave")

        async def apply(tag: str) -> None:
            await made.kubectl(
                "delete", "job", *(f"shop-sojourn-{one}" for one in jobs), "--ignore-not-found"
            )
            await made.apply(tag, "node.replicas=1")
            await made.wait_ready(tag, 1)
            await made.wait(
                lambda: f"{tag} is current" in kubelet.log("shop-sojourn-promote"), f"{tag} is current"
            )
            await made.wait(
                lambda: not kubelet.of(component="leave"), "the end of the job before an uninstall"
            )

        await apply("v1")
        keys = made.secret("shop-sojourn-keys")
        client = await made.client(Role.ADMIN)
        early = await client.start("order", id="early", args=[1], timeout=60)
        await apply("v2")
        assert "not managed by Helm or Argo CD, nothing is deleted" in kubelet.log("shop-sojourn-leave")
        assert made.deployments("node") == made.deployments("worker") == ["v1", "v2"]
        assert made.secret("shop-sojourn-keys") == keys
        assert "shop-sojourn-node-v1: 1 workflows need it" in await made.janitor()
        await _signal_until_stored(client, "early")
        assert await early.result(timeout=60) == {"began": "one", "ended": "one", "total": 101}
        assert "shop-sojourn-node-v1: nobody needs it, removed" in await made.janitor()


async def _signal_until_stored(client: Client, order: str) -> None:
    """As a careful client: while a leader is elected nobody knows, and mail sent twice is taken once by an order."""
    for _ in range(20):
        try:
            await client.handle(order).signal("go", {"n": 100})
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
        client, broker = await made.client(Role.ADMIN), await made.broker(Role.ADMIN)
        info = await broker.stream_config(made.subjects().frames_stream)
        assert info is not None
        assert info.replicas == 3
        handles = [await client.start("order", id=f"order{n}", args=[n], timeout=60) for n in range(10)]
        made.kubelet.lose(made.kubelet.of(component="nats")[-1])
        for handle in handles:
            await _signal_until_stored(client, handle.id)
        totals = [(await handle.result(timeout=90))["total"] for handle in handles]
        assert totals == [n + 100 for n in range(10)]
        await made.wait(
            lambda: [pod.ready for pod in made.kubelet.of(component="nats")] == [True] * 3,
            "the third server again",
        )

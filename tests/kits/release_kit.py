"""A release of the chart in an API server in memory, with processes for pods; and the app in three versions that it runs.

The app is that of the chaos harness, so that its judge can say at the end whether anything was lost, with one workflow added: it waits
for as long as a test wants, and then calls a queued step that only the workers of its own version have.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chart_kit import CHART, NAMESPACE, ROOT, helm, tool
from kubelet_kit import PROGRAMS, Ended, Kubelet
from kubernetes_kit import Kubernetes
from sojourn.actors.client import Client
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.roles import Role, api_prefix, inbox_prefix
from sojourn.broker.subjects import Subjects

SHOP = "accept"
PARTITIONS = 8
IMAGE = "registry.example/shop"
AUTH = "shop-sojourn-nats-auth"
MORE = '''

@step(queue="chaos", retry=1)
async def charge_one(name: str) -> str:
    """Only workers of the one version have it."""
    key, attempt = current.step.key, current.step.attempt
    note("begin", key, name, attempt)
    note("end", key, name, attempt)
    return name


@workflow
async def order(number: int) -> dict[str, Any]:
    began = "one"
    await effect("reserve")
    answer = await go.receive()
    await charge_one("charge")
    return {"began": began, "ended": "one", "total": number + answer["n"]}
'''
VALUES: Mapping[str, Any] = {
    "app": "shop_app",
    "image": {"repository": IMAGE, "tag": "v1"},
    "topology": {"namespace": SHOP, "app": "shop", "partitions": PARTITIONS, "history": 16},
    "node": {"replicas": 2, "drainSeconds": 20, "logLevel": "warning"},
    "nats": {"mode": "single", "syncAlways": False, "storage": {"size": "8Gi"}},
    "workers": [{"queue": "chaos", "concurrency": 4, "drainSeconds": 10}],
    "promote": {"timeoutSeconds": 120},
    "janitor": {"minimumAgeMinutes": 0},
}


@dataclass
class Release:
    """What a test holds: the release, what runs it, and connections to its NATS."""

    place: Path
    kubernetes: Kubernetes
    kubelet: Kubelet
    journal: Path
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

    async def kubectl(self, *words: str, text: str = "") -> None:
        """Run kubectl against this API server, which validates nothing."""
        env = {"KUBECONFIG": str(self.kubernetes.kubeconfig), "HOME": str(self.place), "PATH": PROGRAMS}
        done = await asyncio.to_thread(
            subprocess.run, [tool("kubectl"), *words, "--namespace", NAMESPACE],
            input=text, env=env, text=True, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    async def apply(self, tag: str, *sets: str) -> None:
        """`helm template | kubectl apply --server-side`."""
        words = [
            "template",
            "shop",
            str(CHART),
            "--values",
            str(self.place / "values.yaml"),
            "--set",
            f"image.tag={tag}",
        ]
        for one in sets:
            words += ["--set", one]
        rendered = (await self.helm(*words)).stdout
        await self.kubectl("apply", "--server-side", "--validate=false", "--filename", "-", text=rendered)

    async def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Until a condition holds, in a thread."""
        await asyncio.to_thread(self.kubelet.wait, condition, what, seconds)

    async def wait_ready(self, version: str, count: int, component: str = "node") -> None:
        """Until exactly so many nodes (or workers) of a version are ready."""
        await asyncio.to_thread(self.kubelet.wait_ready, version, count, component)

    async def wait_gone(self, what: str) -> None:
        """Until nothing is on its way out any more."""
        pods = self.kubelet.pods
        await self.wait(
            lambda: all(pod.terminating_since is None for pod in list(pods.values())), f"the end of {what}"
        )

    async def janitor(self) -> str:
        """Run the janitor once; its log."""
        return await asyncio.to_thread(self.kubelet.run_cron_job, "-janitor")

    def secret(self, name: str) -> dict[str, str]:
        """The entries of a Secret."""
        found = self.kubernetes.get("secrets", name)
        assert found is not None, name
        return {entry: base64.b64decode(text).decode() for entry, text in found["data"].items()}

    def deployments(self, component: str) -> list[str]:
        """Labels of the versions that have a Deployment of nodes or of workers."""
        return sorted(
            one["metadata"]["labels"]["sojourn/deployment"]
            for one in self.kubernetes.all("deployments")
            if one["metadata"]["labels"]["app.kubernetes.io/component"] == component
        )

    def drains(self, component: str = "node") -> list[Ended]:
        """How the nodes or workers ended that were asked to."""
        return [one for one in self.kubelet.ended if one.container == component and one.asked]

    def server(self) -> str:
        """Host and port of the first NATS server."""
        return f"{self.kubelet.of(component='nats')[0].ip}:4222"

    def connection(self, role: str) -> dict[str, str]:
        """How a user of a role reaches the bundled NATS, as the environment of the command line."""
        auth = self.secret(AUTH)
        return {
            "SOJOURN_SERVER": f"nats://{self.server()}", "SOJOURN_NAMESPACE": SHOP, "SOJOURN_ROLE": role,
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

    async def broker(self, role: Role) -> NatsBroker:
        """A connection as a role, closed with the release."""
        where = self.connection(role)
        options = NatsOptions(
            servers=where["SOJOURN_SERVER"], user=where["SOJOURN_USER"], password=where["SOJOURN_PASSWORD"],
            inbox_prefix=inbox_prefix(role), api_prefix=api_prefix(role), name="test",
        )  # fmt: skip
        made = await NatsBroker.connect(options)
        self.brokers.append(made)
        return made

    def subjects(self) -> Subjects:
        """The names of the release's namespace."""
        return Subjects(SHOP, PARTITIONS)

    async def client(self, role: Role) -> Client:
        """A client as a role, closed with the release."""
        made = Client(await self.broker(role), self.subjects(), by="test", inbox_prefix=inbox_prefix(role))
        self.clients.append(made)
        return made


def _app(version: str) -> str:
    text = (ROOT / "tests/chaos/app/chaos_app.py").read_text()
    return (text + MORE).replace('"one"', f'"{version}"').replace("charge_one", f"charge_{version}")


@asynccontextmanager
async def release(place: Path) -> AsyncIterator[Release]:
    """Images of three versions: v2 changed every workflow and has a queued step of its own, v3 does not import."""
    images = {}
    for tag, text in (("v1", _app("one")), ("v2", _app("two")), ("v3", "import no_such_module\n")):
        folder = place / "images" / tag
        folder.mkdir(parents=True)
        (folder / "shop_app.py").write_text(text)
        images[f"{IMAGE}:{tag}"] = {"PYTHONPATH": str(folder)}
    journal = place / "journal"
    node = {**VALUES["node"], "env": [{"name": "CHAOS_JOURNAL", "value": str(journal)}]}
    (place / "values.yaml").write_text(json.dumps({**VALUES, "node": node}))
    with Kubernetes(place) as kubernetes, Kubelet(kubernetes, place / "pods", images) as kubelet:
        made = Release(place, kubernetes, kubelet, journal)
        try:
            yield made
        finally:
            for client in made.clients:
                await client.close()
            for broker in made.brokers:
                await broker.close()


def put_users(kubernetes: Kubernetes, witness: str) -> None:
    """Make the Secret of NATS users before the chart's job does, with one more that may see everything; the job leaves it as it is."""
    words = [
        sys.executable,
        "-m",
        "sojourn.cli",
        "roles",
        "config",
        "--namespace",
        SHOP,
        "--queue",
        "chaos",
        "--json",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=dict(os.environ))
    made = json.loads(done.stdout)
    accounts = json.loads(made["config"].partition("accounts: ")[2])
    accounts[f"SJ_{SHOP}"]["users"].append({"user": "witness", "password": witness})
    data = {"accounts.conf": f"accounts: {json.dumps(accounts)}\n", "routes.conf": "# one server\n"}
    for user in made["users"]:
        name = "worker-chaos" if user["role"] == "worker" else user["role"]
        data[f"{name}-user"], data[f"{name}-password"] = user["user"], user["password"]
    kubernetes.put(
        {
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": {"name": AUTH, "namespace": NAMESPACE},
            "data": {entry: base64.b64encode(text.encode()).decode() for entry, text in data.items()},
        }
    )  # fmt: skip

"""What Kubernetes' controllers and kubelets do with the chart's objects, done with processes of this machine.

A pod is a process for each of its containers, one after the other for the first ones: with the container's own command, arguments and
environment, its Secrets and ConfigMaps written as files, its mount paths moved under a folder of the pod, its own address in 127/8, its
probes asked, SIGTERM and then SIGKILL after its grace period at the end. Deployments roll as their strategy says, jobs run once, a cron
job when a test asks for it. Images are what a test says they are: entries of the environment.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kubernetes_kit import Kubernetes, Object
from sojourn.broker.server import dying_with_parent

LOOK_SECONDS = 0.1
PROBE_SECONDS = 0.25
RESTART_SECONDS = 1.0
HEADLESS = re.compile(r"([\w-]+-\d+)\.[\w-]+-headless")
PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


@dataclass(frozen=True)
class Ended:
    """How a container's process ended."""

    pod: str
    container: str
    code: int
    asked: bool
    """After SIGTERM of the kubelet's."""
    seconds: float
    """From SIGTERM to the end, when asked."""
    pid: int
    began: float
    """Unix seconds."""
    at: float


@dataclass
class Pod:
    """A pod and its process."""

    name: str
    owner: str
    hash: str
    template: Object
    place: Path
    ip: str
    at: int = 0
    process: subprocess.Popen[bytes] | None = None
    output: IO[bytes] | None = None
    began: float = 0.0
    """Unix seconds at which its process began."""
    ready: bool = False
    finished: bool = False
    failures: int = 0
    final_codes: list[int] = field(default_factory=list)
    restarts: int = 0
    start_after: float = 0.0
    probe_after: float = 0.0
    verdict: bool = False
    """Its exit code is one that its job does not try again after."""
    terminating_since: float | None = None

    @property
    def containers(self) -> list[Object]:
        spec = self.template["spec"]
        return [*spec.get("initContainers", ()), *spec["containers"]]

    @property
    def container(self) -> Object:
        return self.containers[self.at]

    @property
    def is_main(self) -> bool:
        return self.at == len(self.containers) - 1

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.template["metadata"]["labels"])


@dataclass
class Kubelet:
    """Runs what the API server holds, on a thread of its own; a context manager."""

    kubernetes: Kubernetes
    place: Path
    images: Mapping[str, Mapping[str, str]]
    """The environment that an image stands for, by its name."""
    pods: dict[str, Pod] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _stopping: bool = False
    _network: str = field(default_factory=lambda: f"127.{random.randint(1, 250)}.{random.randint(1, 250)}")
    _count: int = 0
    _addresses: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Kubelet:
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join(10)
        for pod in self.pods.values():
            _signal(pod, signal.SIGTERM)
        deadline = time.monotonic() + 5
        for pod in self.pods.values():
            if pod.process is not None:
                with suppress(subprocess.TimeoutExpired):
                    pod.process.wait(max(0.1, deadline - time.monotonic()))
                _signal(pod, signal.SIGKILL)
                pod.process.wait()
            if pod.output is not None:
                pod.output.close()

    # what tests ask

    def of(self, **labels: str) -> list[Pod]:
        """Living pods by labels; `component` and `deployment` for short."""
        names = {"component": "app.kubernetes.io/component", "deployment": "sojourn/deployment"}
        wanted = {names.get(name, name): value for name, value in labels.items()}
        return [
            pod
            for pod in list(self.pods.values())
            if wanted.items() <= pod.labels.items() and pod.terminating_since is None
        ]

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Until a condition holds. Raises with the logs' ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or self.errors:
                raise AssertionError(f"not within {seconds:g} s: {what}\n{self.errors}\n{self.logs()}")
            time.sleep(0.1)

    def wait_ready(self, deployment: str, count: int, component: str = "node", seconds: float = 60.0) -> None:
        """Until exactly so many nodes (or workers) of a version are ready."""

        def are_ready() -> bool:
            found = self.of(component=component, deployment=deployment)
            return [pod.ready for pod in found] == [True] * count

        self.wait(are_ready, f"{count} ready {component}s of {deployment}", seconds)

    def lose(self, pod: Pod) -> None:
        """The host of a pod is gone: killed, and replaced elsewhere."""
        pod.terminating_since = time.monotonic()
        _signal(pod, signal.SIGKILL)

    def run_cron_job(self, ending: str, seconds: float = 60.0) -> str:
        """Run a cron job now, to its end; its log."""
        cron = next(
            one for one in self.kubernetes.all("cronjobs") if one["metadata"]["name"].endswith(ending)
        )
        self._count += 1
        name = f"{cron['metadata']['name']}-{self._count}"
        self.kubernetes.put(
            {
                "apiVersion": "batch/v1", "kind": "Job",
                "metadata": {"name": name, "namespace": cron["metadata"]["namespace"], "labels": cron["metadata"]["labels"]},
                "spec": copy.deepcopy(cron["spec"]["jobTemplate"]["spec"]),
            }
        )  # fmt: skip
        self.wait(lambda: bool(self._conditions(name)), f"the end of {name}", seconds)
        return self.log(name)

    def log(self, owner: str) -> str:
        """All logs of the pods of an object."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.place.glob(f"{owner}-*.log")))

    def logs(self) -> str:
        """The ends of all logs, for failures."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self.place.glob("*.log"))
        )

    def _conditions(self, job: str) -> list[Any]:
        found = self.kubernetes.get("jobs", job)
        return list(found.get("status", {}).get("conditions", ())) if found else []

    # reconciling

    def _run(self) -> None:
        while not self._stopping:
            try:
                for one in self.kubernetes.all("statefulsets"):
                    self._keep(one, "statefulsets", surge=0)
                for one in self.kubernetes.all("deployments"):
                    self._keep(one, "deployments", surge=1)
                for one in self.kubernetes.all("jobs"):
                    self._run_job(one)
                self._end_orphans()
                for pod in list(self.pods.values()):
                    self._look_after(pod)
            except Exception as error:
                self.errors.append(repr(error))
                raise
            time.sleep(LOOK_SECONDS)

    def _keep(self, owner: Object, plural: str, surge: int) -> None:
        name, spec = owner["metadata"]["name"], owner["spec"]
        wanted, digest = spec.get("replicas", 1), _hash(spec["template"])
        living = [pod for pod in self.pods.values() if pod.owner == name and pod.terminating_since is None]
        new, old = (
            [pod for pod in living if pod.hash == digest],
            [pod for pod in living if pod.hash != digest],
        )
        there = living
        if plural == "statefulsets":  # each has a name and an address for good, so the former one goes first
            there = [pod for pod in self.pods.values() if pod.owner == name]
        if len(new) < wanted and len(there) < wanted + surge:
            number = next(n for n in range(1000) if f"{name}-{n}" not in self.pods)
            self._make(f"{name}-{number}", name, owner, spec["template"], digest)
        ready = sum(pod.ready for pod in new)
        for pod in old[: max(0, len(old) - max(0, wanted - ready))]:
            self._terminate(pod)
        for pod in new[wanted:]:
            self._terminate(pod)

        def status(one: Object) -> None:
            one["status"] = {
                "observedGeneration": one["metadata"]["generation"], "replicas": len(living), "updatedReplicas": len(new),
                "readyReplicas": ready, "availableReplicas": ready,
            }  # fmt: skip

        self.kubernetes.update(plural, name, status)

    def _run_job(self, job: Object) -> None:
        name, spec = job["metadata"]["name"], job["spec"]
        if job.get("status", {}).get("conditions"):
            return
        pod = next((pod for pod in self.pods.values() if pod.owner == name), None)
        if pod is None:
            pod = self._make(f"{name}-0", name, job, spec["template"], _hash(spec["template"]))
            for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
                if rule["action"] == "FailJob":
                    pod.final_codes = rule["onExitCodes"]["values"]
        elif pod.finished or pod.verdict or pod.failures > spec.get("backoffLimit", 6):
            good = pod.finished
            self._forget(pod)

            def status(one: Object) -> None:
                one["status"] = {
                    "startTime": one["metadata"]["creationTimestamp"], "succeeded": int(good), "failed": int(not good),
                    "conditions": [{"type": "Complete" if good else "Failed", "status": "True", "reason": "Kit"}],
                }  # fmt: skip

            self.kubernetes.update("jobs", name, status)

    def _end_orphans(self) -> None:
        owners = {
            one["metadata"]["name"]
            for plural in ("deployments", "statefulsets", "jobs")
            for one in self.kubernetes.all(plural)
        }
        for pod in list(self.pods.values()):
            if pod.owner not in owners:
                self._terminate(pod)

    # one pod

    def _make(self, name: str, owner: str, by: Object, template: Object, digest: str) -> Pod:
        self._count += 1
        place = self.place / f"{name}-{self._count}"
        place.mkdir(parents=True)
        address = f"{self._network}.{self._count % 250 + 1}"
        if by["kind"] == "StatefulSet":
            address = self._addresses.setdefault(name, address)
        pod = Pod(name, owner, digest, copy.deepcopy(template), place, address)
        self.pods[name] = pod
        self.kubernetes.put(
            {
                "apiVersion": "v1", "kind": "Pod", "spec": {},
                "metadata": {"name": name, "namespace": by["metadata"]["namespace"], "labels": pod.labels},
                "status": {"phase": "Running", "podIP": pod.ip},
            }
        )  # fmt: skip
        return pod

    def _forget(self, pod: Pod) -> None:
        if pod.output is not None:
            pod.output.close()
        self.pods.pop(pod.name, None)
        self.kubernetes.remove("pods", pod.name)

    def _terminate(self, pod: Pod) -> None:
        if pod.terminating_since is None:
            pod.terminating_since, pod.ready = time.monotonic(), False
            _signal(pod, signal.SIGTERM, group=not pod.is_main)

    def _look_after(self, pod: Pod) -> None:
        now = time.monotonic()
        if pod.process is None:
            if pod.terminating_since is not None:
                self._forget(pod)
            elif now >= pod.start_after and not pod.finished:
                self._start(pod)
            return
        code = pod.process.poll()
        if code is None:
            if pod.terminating_since is not None:
                if now - pod.terminating_since > pod.template["spec"].get(
                    "terminationGracePeriodSeconds", 30
                ):
                    _signal(pod, signal.SIGKILL)
            elif pod.is_main and now >= pod.probe_after:
                pod.ready, pod.probe_after = _probe(pod), now + PROBE_SECONDS
            return
        asked = pod.terminating_since
        seconds = now - asked if asked else 0.0
        name, pid = pod.container["name"], pod.process.pid
        self.ended.append(
            Ended(pod.name, name, code, asked is not None, seconds, pid, pod.began, time.time())
        )
        pod.process = None
        if asked is not None:
            self._forget(pod)
        elif code == 0 and not pod.is_main:
            pod.at += 1
        elif code == 0 and pod.template["spec"].get("restartPolicy", "Always") != "Always":
            pod.finished = True
        else:
            pod.ready, pod.restarts, pod.start_after = False, pod.restarts + 1, now + RESTART_SECONDS
            pod.failures += 1
            pod.verdict = code in pod.final_codes

    def _start(self, pod: Pod) -> None:
        if not self._resolves(pod) or not self._mounts(pod):
            return  # a resolver would be asked again; here it is looked up once
        moved = self._volumes(pod)
        container = pod.container
        words = [
            self._translate(pod, moved, one) for one in (*container["command"], *container.get("args", ()))
        ]
        environment = {
            "PATH": PROGRAMS, "LANG": "C.UTF-8", "HOSTNAME": pod.name, "PYTHONDONTWRITEBYTECODE": "1",
            **self.images.get(container["image"], {}),
            **{one["name"]: self._translate(pod, moved, self._value(pod, one)) for one in container.get("env", ())},
        }  # fmt: skip
        if pod.template["spec"]["automountServiceAccountToken"]:
            environment["KUBE_API"] = f"{self.kubernetes.url}/as/{pod.template['spec']['serviceAccountName']}"
        words = [re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], one) for one in words]
        program = shutil.which(words[0], path=PROGRAMS)
        assert program is not None, words[0]
        if pod.output is None:
            pod.output = (self.place / f"{pod.name}-{self._count}.log").open("ab")
        pod.began = time.time()
        pod.process = subprocess.Popen(
            dying_with_parent([program, *words[1:]]),
            stdin=subprocess.DEVNULL, stdout=pod.output, stderr=pod.output, env=environment, cwd=pod.place,
            start_new_session=True,
        )  # fmt: skip

    def _mounts(self, pod: Pod) -> bool:
        """Whether every Secret and ConfigMap that the pod mounts is there: until then it waits, as on Kubernetes."""
        for volume in pod.template["spec"].get("volumes", ()):
            for plural, one, entry in (
                ("secrets", "secret", "secretName"),
                ("configmaps", "configMap", "name"),
            ):
                if one in volume and self.kubernetes.get(plural, volume[one][entry]) is None:
                    return False
        return True

    def _resolves(self, pod: Pod) -> bool:
        """Whether every service that the container names has a pod."""
        text = json.dumps(pod.container.get("env", ()))
        named = [one for one in self.kubernetes.all("services") if f"//{one['metadata']['name']}:" in text]
        labels = [one.labels for one in self.pods.values()]
        owner = self.kubernetes.get("statefulsets", pod.owner)
        if owner is not None and any(
            f"{pod.owner}-{n}" not in self.pods for n in range(owner["spec"]["replicas"])
        ):
            return False
        return all(any(one["spec"]["selector"].items() <= each.items() for each in labels) for one in named)

    def _value(self, pod: Pod, one: Object) -> str:
        if "valueFrom" not in one:
            return str(one.get("value", ""))
        return {"status.podIP": pod.ip, "metadata.name": pod.name}[one["valueFrom"]["fieldRef"]["fieldPath"]]

    def _translate(self, pod: Pod, moved: Mapping[str, Path], text: str) -> str:
        if moved and str(self.place.parent) not in text:  # a path of the test's own stays
            paths = "|".join(re.escape(path) for path in sorted(moved, key=len, reverse=True))
            text = re.sub(
                rf"(?<![\w.~/-])(?:{paths})(?=$|[/\s\"';])", lambda match: str(moved[match[0]]), text
            )
        for service in self.kubernetes.all("services"):
            name = service["metadata"]["name"]
            backend = [
                one for one in self.pods.values() if service["spec"]["selector"].items() <= one.labels.items()
            ]
            if backend and name in text:
                text = re.sub(rf"\b{re.escape(name)}(?=:)", backend[0].ip, text)
        return text

    def _volumes(self, pod: Pod) -> dict[str, Path]:
        """Write what the container mounts; where each mount path is really."""
        volumes = {one["name"]: one for one in pod.template["spec"].get("volumes", ())}
        mounts = pod.container.get("volumeMounts", ())
        moved = {mount["mountPath"]: pod.place / "root" / mount["mountPath"].lstrip("/") for mount in mounts}
        for mount in mounts:
            volume, target = volumes.get(mount["name"]), moved[mount["mountPath"]]
            if volume is None:  # a claim of a StatefulSet: it outlives its pod
                claim = self.place / "claims" / f"{mount['name']}-{pod.name}"
                claim.mkdir(parents=True, exist_ok=True)
                moved[mount["mountPath"]] = claim
                continue
            content = self._content(volume)
            if "subPath" in mount:
                content, target = {target.name: content[mount["subPath"]]}, target.parent
            target.mkdir(parents=True, exist_ok=True)
            mode = volume.get("secret", {}).get("defaultMode", 0o644)
            for name, data in content.items():
                (target / name).unlink(missing_ok=True)
                (target / name).write_bytes(data)
                (target / name).chmod(mode)
        routes = moved.get("/etc/nats/auth")
        if routes is not None:  # a pod's name within a headless service
            text = (routes / "routes.conf").read_text()
            text = HEADLESS.sub(
                lambda match: self.pods[match[1]].ip if match[1] in self.pods else match[0], text
            )
            (routes / "routes.conf").chmod(0o600)
            (routes / "routes.conf").write_text(text)
        configuration = moved.get("/etc/nats/nats.conf")
        if configuration is not None:  # ports are a pod's own on Kubernetes; here its address is
            text = self._translate(pod, moved, configuration.read_text())
            text = text.replace("port: 4222", f"host: {pod.ip}\nport: 4222").replace(
                "http_port: 8222", f'http: "{pod.ip}:8222"'
            )
            configuration.write_text(text.replace("port: 6222", f"host: {pod.ip}\n  port: 6222"))
        return moved

    def _content(self, volume: Object) -> dict[str, bytes]:
        if "configMap" in volume:
            found = self.kubernetes.get("configmaps", volume["configMap"]["name"])
            assert found is not None, volume
            return {name: text.encode() for name, text in found["data"].items()}
        if "secret" in volume:
            found = self.kubernetes.get("secrets", volume["secret"]["secretName"])
            assert found is not None, volume
            data = {name: base64.b64decode(text) for name, text in found["data"].items()}
            items = volume["secret"].get("items")
            return {one["path"]: data[one["key"]] for one in items} if items else data
        return {}


def _hash(template: Object) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def _probe(pod: Pod) -> bool:
    probe = pod.container.get("readinessProbe")
    if probe is None:
        return True
    ports = {one["name"]: one["containerPort"] for one in pod.container["ports"]}
    get = probe["httpGet"]
    try:
        with urllib.request.urlopen(
            f"http://{pod.ip}:{ports[get['port']]}{get['path']}", timeout=1
        ) as answer:
            return bool(answer.status < 400)
    except (urllib.error.URLError, OSError):
        return False


def _signal(pod: Pod, which: signal.Signals, *, group: bool = False) -> None:
    process = pod.process
    if process is not None and process.poll() is None:
        with suppress(ProcessLookupError):
            if group or which == signal.SIGKILL:
                os.killpg(process.pid, which)
            else:
                process.send_signal(which)

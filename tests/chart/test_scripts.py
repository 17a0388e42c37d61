"""The jobs' scripts as processes, with the rights that the chart gives them, against an API server; `sojourn` answers what a test says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from chart_kit import CHART, NAMESPACE, RELEASE, render
from kubernetes_kit import Kubernetes

FILE = CHART / "ci/workers.yaml"
NAME = f"{RELEASE}-sojourn"
HELM = {"meta.helm.sh/release-name": RELEASE}
LABELS = {"app.kubernetes.io/name": "sojourn", "app.kubernetes.io/instance": RELEASE}
READY = {"nodes": [{"deployment": "v2", "state": "ready", "host": "a"}]}
RECEIVES = {"deployments": [{"deployment": "v2", "receives": True}, {"deployment": "v1", "receives": False}]}


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[Kubernetes]:
    """An API server with the accounts' roles in it."""
    with Kubernetes(tmp_path) as made:
        for one in render(FILE):
            if one["kind"] in ("Role", "RoleBinding"):
                made.put(json.loads(json.dumps(one)))
        yield made


def deploy(kubernetes: Kubernetes, name: str, component: str, version: str, **more: Any) -> None:
    """A Deployment of this release, made long ago."""
    labels = {**LABELS, "app.kubernetes.io/component": component, "sojourn/deployment": version}
    metadata = {
        "name": name, "namespace": NAMESPACE, "labels": {**labels, **more.get("labels", {})}, "annotations": more["annotations"],
    }  # fmt: skip
    spec = {"replicas": more.get("replicas", 1)}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    kubernetes.put(made)

    def age(one: Any) -> None:
        one["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"

    kubernetes.update("deployments", name, age)


def run(
    place: Path, url: str, script: str, answers: Mapping[str, Any] | None = None, **env: str
) -> tuple[int, str]:
    """Run a job's script; exit code and log.

    `answers`: by the words of a `sojourn` command, without its options: a document, an exit code, or a list of them.
    """
    programs = place / "bin"
    programs.mkdir(exist_ok=True)
    (place / "answers.json").write_text(json.dumps(dict(answers or {})))
    stub = programs / "sojourn"
    stub.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"answers = json.load(open({str(place / 'answers.json')!r}))\n"
        "words = ' '.join(word for word in sys.argv[1:] if not word.startswith('-'))\n"
        "answer = answers[words]\n"
        "if isinstance(answer, list):  # one after the other\n"
        "    answer = answer.pop(0)\n"
        f"    json.dump(answers, open({str(place / 'answers.json')!r}, 'w'))\n"
        "if isinstance(answer, int):\n"
        "    sys.exit(answer)\n"
        "print(json.dumps(answer))\n"
    )
    stub.chmod(0o755)
    account = f"{NAME}-{Path(script).stem}"
    done = subprocess.run(
        [sys.executable, str(CHART / "files" / script)],
        env={
            "PATH": f"{programs}:{os.environ['PATH']}", "KUBE_API": f"{url}/as/{account}", "KUBE_NAMESPACE": NAMESPACE,
            "NAME": "sojourn", "INSTANCE": RELEASE, "HTTP_PROXY": "http://127.0.0.1:1",
            "PYTHONDONTWRITEBYTECODE": "1", **env,
        },
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def leave(kubernetes: Kubernetes, place: Path) -> tuple[int, str]:
    return run(place, kubernetes.url, "leave.py", JOBS=f"{NAME}-promote")


def janitor(
    kubernetes: Kubernetes, place: Path, needing: int, tasks: int = 0, listed: str = ""
) -> tuple[int, str]:
    shown = {"drained": needing == 0, "needing": needing}
    queues = {"queues": [{"queue": "ocr", "waiting": tasks, "taken": 0}]}
    answers = {"nodes": READY, "versions list": RECEIVES, "versions show v1": shown, "queues": queues}
    env = {"WANTED": "v2", "LISTED": listed, "WORKERS": "", "MINIMUM_AGE_SECONDS": "600"}
    return run(place, kubernetes.url, "janitor.py", answers, **env)


# leave


@pytest.mark.parametrize("mark", ["meta.helm.sh/release-name", "argocd.argoproj.io/tracking-id"])
def test_an_uninstall_takes_away_nodes_and_workers_of_every_version_and_nothing_else(
    kubernetes: Kubernetes, tmp_path: Path, mark: str
) -> None:
    for version in ("v1", "v2"):
        for component in ("node", "worker"):
            deploy(kubernetes, f"{NAME}-{component}-{version}", component, version, annotations={mark: "x"})
    # Another part of a parent's release, which calls its own pods workers.
    theirs = {"app.kubernetes.io/name": "crawler"}
    deploy(kubernetes, "crawler", "worker", "v1", annotations=HELM, labels=theirs)
    code, log = leave(kubernetes, tmp_path)
    assert code == 0, log
    assert [one["metadata"]["name"] for one in kubernetes.all("deployments")] == ["crawler"]
    assert "0 nodes and workers left" in log


def test_what_was_applied_without_helm_is_left_alone_since_apply_runs_every_hook(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    deploy(kubernetes, f"{NAME}-node-v1", "node", "v1", annotations=applied)
    code, log = leave(kubernetes, tmp_path)
    assert code == 0, log
    assert "not managed by Helm or Argo CD, nothing is deleted" in log
    assert kubernetes.get("deployments", f"{NAME}-node-v1")


def test_a_refusal_is_one_line_and_tried_again(kubernetes: Kubernetes, tmp_path: Path) -> None:
    kubernetes.remove("rolebindings", f"{NAME}-leave")
    code, log = leave(kubernetes, tmp_path)
    assert code == 75
    assert "answered 403" in log
    assert "Traceback" not in log


def test_an_answer_that_ends_half_way_is_tried_again(tmp_path: Path) -> None:
    """An API server that is stopped in the middle of an answer, as when its host is drained."""

    def answer_half(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"items": [')

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_half, args=(server,))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        code, log = run(tmp_path, url, "leave.py", JOBS="x")
        thread.join(10)
    assert code == 75, log
    assert "no whole answer" in log
    assert "Traceback" not in log


# janitor


def test_workers_of_a_version_that_is_needed_are_started_when_their_autoscaler_left_none(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    """KEDA had scaled them to none; the upgrade took its object away and left them so."""
    worker = f"{NAME}-worker-ocr-v1"
    deploy(kubernetes, worker, "worker", "v1", replicas=0, annotations={**HELM, "sojourn/queue": "ocr"})
    code, log = janitor(kubernetes, tmp_path, needing=3)
    assert code == 0, log
    assert f"{worker}: 3 workflows need it" in log
    assert f"{worker}: there was none, one is started" in log
    found = kubernetes.get("deployments", worker)
    assert found is not None
    assert found["spec"]["replicas"] == 1
    code, log = janitor(kubernetes, tmp_path, needing=3)
    assert "is started" not in log
    code, log = janitor(kubernetes, tmp_path, needing=0)
    assert f"{worker}: nobody needs it, removed" in log


def test_workers_are_started_for_tasks_that_nobody_else_takes(kubernetes: Kubernetes, tmp_path: Path) -> None:
    worker = f"{NAME}-worker-ocr-v1"
    deploy(kubernetes, worker, "worker", "v1", replicas=0, annotations={**HELM, "sojourn/queue": "ocr"})
    _, log = janitor(kubernetes, tmp_path, needing=0, tasks=5)
    assert f"{worker}: 5 tasks are in queue ocr, and nobody else serves it" in log
    found = kubernetes.get("deployments", worker)
    assert found is not None
    assert found["spec"]["replicas"] == 1


@pytest.mark.parametrize("component", ["node", "worker"])
def test_a_version_that_git_lists_stays_until_it_does_not_since_argo_cd_would_make_it_anew(
    kubernetes: Kubernetes, tmp_path: Path, component: str
) -> None:
    """With Helm, which makes nothing by itself, it goes at once."""
    for name, mark in (("a", "argocd.argoproj.io/tracking-id"), ("b", "meta.helm.sh/release-name")):
        deploy(kubernetes, name, component, "v1", annotations={mark: "x", "sojourn/queue": "ocr"})
    code, log = janitor(kubernetes, tmp_path, needing=0, listed="v1")
    assert code == 0, log
    assert "a: nobody needs it; it goes once `versions` does not list it" in log
    assert "b: nobody needs it, removed" in log
    _, log = janitor(kubernetes, tmp_path, needing=0)
    assert "a: nobody needs it, removed" in log


def test_the_janitor_looks_at_no_other_charts_deployments(kubernetes: Kubernetes, tmp_path: Path) -> None:
    theirs = {"app.kubernetes.io/name": "crawler"}
    deploy(kubernetes, "crawler", "node", "v0", annotations=HELM, labels=theirs)
    code, log = janitor(kubernetes, tmp_path, needing=0)
    assert code == 0, log
    assert kubernetes.get("deployments", "crawler")
    assert "crawler" not in log


# promote


def promote(
    kubernetes: Kubernetes, place: Path, answers: Mapping[str, Any], seconds: str = "30"
) -> tuple[int, str]:
    known = {"versions set-current v2": None, "versions list": RECEIVES, "nodes": READY, **answers}
    env = {"WEIGHTS": "v2=100", "NODES": "v2=1", "READY_SECONDS": seconds, "WAIT_FOR_DRAIN": "yes"}
    env |= {"WORKERS": f"{NAME}-worker-ocr-v2=1", "DRAIN_SECONDS": "60"}
    return run(place, kubernetes.url, "promote.py", known, **env)


def test_a_broker_that_is_away_for_a_moment_does_not_end_hours_of_waiting_for_a_drain(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    deploy(kubernetes, f"{NAME}-worker-ocr-v2", "worker", "v2", annotations=HELM)

    def ready(one: Any) -> None:
        one["status"] = {"readyReplicas": 1, "observedGeneration": 1}

    kubernetes.update("deployments", f"{NAME}-worker-ocr-v2", ready)
    shown = {"needing": 2, "lines": [{"count": 2, "function": "order", "line": 7}]}
    answers = {"versions drain v1": [3, 5, {}], "versions show v1": [3, shown]}
    code, log = promote(kubernetes, tmp_path, answers)
    assert code == 0, log
    assert "v2 is current" in log
    assert "2 workflows need it (asleep: 2 at order line 7)" in log
    assert "v1 is drained" in log


def test_an_api_server_that_refuses_to_say_who_is_ready_moves_nothing_and_says_so(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    kubernetes.remove("rolebindings", f"{NAME}-promote")
    code, log = promote(kubernetes, tmp_path, {"versions set-current v2": 1}, seconds="1")
    assert code == 1, "a verdict, which the job does not try again"
    assert "answered 403" in log
    assert "`current` was not moved" in log

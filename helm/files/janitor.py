"""Removes the Deployments of nodes and workers that nobody needs any more, one each time it runs.

Nodes go when all of this holds: this release's values do not want their version, the broker starts nothing new on it, they exist for
a while, no workflow needs them, every wanted version has nodes that serve, and no node is just leaving. Two versions that can each run
the other's workflows are both free to go, but not at once: that is why only one goes at a time. Whatever cannot be told (the broker
does not answer) leaves everything as it is.

Workers of a queue go when the values do not name them, no workflow needs their version (or it is wanted, and only the queue is not), and
their queue is served by workers that are wanted and ready, or is empty. Queues are shared by versions: a task of the old one may wait
there for the old code until the last workflow of that version has gone. An upgrade takes the autoscaler of such workers away; where it
had scaled them to none, one is started, since nothing else would.

A version that the values list as draining is removed too. Only where Helm is not (Argo CD), it stays until it is listed no more: whoever
keeps the cluster as Git has it would make it anew each time.
"""

from __future__ import annotations

import datetime
import os
from functools import cache
from typing import Any

import cli
from kube import Kube, Refused, serving


def main() -> int:
    """Look at each Deployment of nodes, then of workers, of this release."""
    wanted = set(os.environ["WANTED"].split(","))
    if not is_calm(wanted):
        return 0
    receiving = {one["deployment"] for one in cli.ask("versions", "list")["deployments"] if one["receives"]}
    kube = Kube()
    for found in deployments(kube, "node"):
        label, name = found["metadata"]["labels"]["sojourn/deployment"], found["metadata"]["name"]
        if label in wanted:
            cli.tell(f"{name}: wanted")
        elif reason := stays(found, label, receiving):
            cli.tell(f"{name}: {reason}")
        elif would_come_back(found, label):
            cli.tell(f"{name}: nobody needs it; it goes once `versions` does not list it")
        else:
            return remove(kube, found)
    return look_at_workers(kube, wanted, receiving)


def look_at_workers(kube: Kube, wanted: set[str], receiving: set[str]) -> int:
    """Each Deployment of workers, by the rule of this module."""
    named = set(os.environ["WORKERS"].split(","))
    all_of_them = deployments(kube, "worker")
    served = {queue_of(one) for one in all_of_them if one["metadata"]["name"] in named and is_ready(one)}
    for found in all_of_them:
        label, name = found["metadata"]["labels"]["sojourn/deployment"], found["metadata"]["name"]
        queue = queue_of(found)
        if name in named:
            cli.tell(f"{name}: wanted")
            continue
        if is_young(found):
            cli.tell(f"{name}: too young to be judged")
        elif label not in wanted and (reason := stays(found, label, receiving)):
            cli.tell(f"{name}: {reason}")
        elif queue not in served and (tasks := tasks_left(queue)):
            cli.tell(f"{name}: {tasks} tasks are in queue {queue}, and nobody else serves it")
        elif would_come_back(found, label):
            cli.tell(f"{name}: nobody needs it; it goes once `versions` does not list it")
            continue
        else:
            return remove(kube, found)
        if found["spec"].get("replicas") == 0:
            one, by = {"spec": {"replicas": 1}}, "fieldManager=sojourn-janitor"
            kube.ask("PATCH", "apis/apps/v1", "deployments", f"{name}/scale", one, by)
            cli.tell(f"{name}: there was none, one is started")
    return 0


def stays(found: Any, label: str, receiving: set[str]) -> str:
    """Why a Deployment of a version that is not wanted cannot go yet; empty when it can."""
    if label in receiving:
        return "new workflows start on it still; `sojourn versions set-current` moves them"
    if is_young(found):
        return "too young to be judged"
    left = workflows_left(label)
    return f"{left} workflows need it" if left else ""


def would_come_back(found: Any, label: str) -> bool:
    """Whether the values list its version, and somebody else than Helm sees to it that what they list is there."""
    by_helm = "meta.helm.sh/release-name" in (found["metadata"].get("annotations") or {})
    return label in os.environ["LISTED"].split(",") and not by_helm


def queue_of(found: Any) -> str:
    """The queue that a Deployment of workers serves."""
    return str(found["metadata"]["annotations"]["sojourn/queue"])


def is_ready(found: Any) -> bool:
    """Whether any of its workers is."""
    return bool(found.get("status", {}).get("readyReplicas"))


def tasks_left(queue: str) -> int:
    """Tasks that wait in a queue or are in workers' hands."""
    found = [one for one in cli.ask("queues")["queues"] if one["queue"] == queue]
    return sum(one["waiting"] + one["taken"] for one in found)


def is_calm(wanted: set[str]) -> bool:
    """Whether every wanted version serves and no node is leaving: what is told of the others holds then."""
    nodes = cli.ask("nodes", fine=(0, 1))["nodes"]
    missing = wanted - {node["deployment"] for node in nodes if node["state"] == "ready"}
    if missing:
        cli.tell(f"no node of {', '.join(sorted(missing))} serves: nothing is removed")
        return False
    leaving = [node["host"] for node in nodes if node["state"] == "draining"]
    if leaving:
        cli.tell(f"{', '.join(leaving)} is leaving: nothing else is removed meanwhile")
    return not leaving


def is_young(found: Any) -> bool:
    """Whether it was made less than the minimum age ago."""
    created = datetime.datetime.fromisoformat(found["metadata"]["creationTimestamp"].replace("Z", "+00:00"))
    age = datetime.datetime.now(datetime.UTC) - created
    return age.total_seconds() < float(os.environ["MINIMUM_AGE_SECONDS"])


def deployments(kube: Kube, component: str) -> list[Any]:
    """Those of this release's nodes or workers, of every version."""
    found: list[Any] = kube.ask("GET", "apis/apps/v1", "deployments", query=serving(component))["items"]
    return found


@cache
def workflows_left(label: str) -> int:
    """Workflows that can run on no other version. One that never registered has none."""
    try:
        shown = cli.ask("versions", "show", label)
    except cli.Failed as failed:
        if failed.code != cli.UNKNOWN:
            raise
        return 0
    return 0 if shown["drained"] else max(1, shown["needing"])


def remove(kube: Kube, found: Any) -> int:
    """Delete it. The request names what was looked at: one that was changed or made anew meanwhile is not deleted."""
    metadata = found["metadata"]
    body = {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "propagationPolicy": "Background",
        "preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
    }
    try:
        kube.ask("DELETE", "apis/apps/v1", "deployments", metadata["name"], body)
    except Refused as refused:
        cli.tell(f"{metadata['name']}: not removed ({refused})")
        return 0 if refused.status in (404, 409) else 1
    cli.tell(f"{metadata['name']}: nobody needs it, removed")
    return 0


if __name__ == "__main__":
    cli.end(main)

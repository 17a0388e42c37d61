"""Removes the node Deployments of versions that nobody needs any more, one each time it runs.

One goes when all of this holds: this release's values do not want it, the broker starts nothing new on it, it exists for a while, no
workflow needs it, every wanted version has nodes that serve, and no node is just leaving. Two versions that can each run the other's
workflows are both free to go, but not at once: that is why only one goes at a time. Whatever cannot be told (the broker does not
answer) leaves everything as it is.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

import cli
from kube import Kube, Refused


def main() -> int:
    """Look at each Deployment of nodes of this release."""
    wanted = set(os.environ["WANTED"].split(","))
    if not is_calm(wanted):
        return 0
    receiving = {one["deployment"] for one in cli.ask("versions", "list")["deployments"] if one["receives"]}
    kube = Kube()
    for found in deployments(kube):
        label, name = found["metadata"]["labels"]["sojourn/deployment"], found["metadata"]["name"]
        if label in wanted:
            cli.tell(f"{name}: wanted")
        elif label in receiving:
            cli.tell(f"{name}: new workflows start on it still; `sojourn versions set-current` moves them")
        elif is_young(found):
            cli.tell(f"{name}: too young to be judged")
        elif left := workflows_left(label):
            cli.tell(f"{name}: {left} workflows need it")
        else:
            return remove(kube, found)
    return 0


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


def deployments(kube: Kube) -> list[Any]:
    """Those of nodes, of this release, of every version."""
    instance = f"app.kubernetes.io/instance={os.environ['INSTANCE']}"
    query = f"labelSelector={instance},app.kubernetes.io/component=node,sojourn/deployment"
    found: list[Any] = kube.ask("GET", "apis/apps/v1", "deployments", query=query)["items"]
    return found


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

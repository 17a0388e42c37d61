"""Removes the node Deployments of versions that nobody needs any more.

One goes when all of this holds: this release's values do not want it, the broker starts no new actor on it, it exists for a while,
and it has no actor left. Whatever cannot be told (the broker does not answer) leaves everything as it is.
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
    oldest = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=float(os.environ["MINIMUM_AGE_SECONDS"]))
    current = {one["label"] for one in cli.ask("versions", "list") if one["current"] or one["weight"]}
    kube, failed = Kube(), 0
    for found in deployments(kube):
        label, name = found["metadata"]["labels"]["sojourn/deployment"], found["metadata"]["name"]
        created = datetime.datetime.fromisoformat(found["metadata"]["creationTimestamp"].replace("Z", "+00:00"))
        if label in wanted:
            cli.tell(f"{name}: wanted")
        elif label in current:
            cli.tell(f"{name}: gets new actors still; `sojourn versions set-current` moves them")
        elif created > oldest:
            cli.tell(f"{name}: too young to be judged")
        else:
            failed += not remove_if_drained(kube, found, label)
    return 1 if failed else 0


def deployments(kube: Kube) -> list[Any]:
    """Those of nodes, of this release, of every version."""
    selector = f"app.kubernetes.io/instance={os.environ['INSTANCE']},app.kubernetes.io/component=node,sojourn/deployment"
    found: list[Any] = kube.ask("GET", "apis/apps/v1", "deployments", query=f"labelSelector={selector}")["items"]
    return found


def remove_if_drained(kube: Kube, found: Any, label: str) -> bool:
    """Whether it was removed or rightly left. Deleting names what was looked at: a new one of that name is not deleted."""
    name = found["metadata"]["name"]
    left = actors_left(label)
    if left:
        cli.tell(f"{name}: {left} actors left")
        return True
    body = {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "propagationPolicy": "Background",
        "preconditions": {"uid": found["metadata"]["uid"], "resourceVersion": found["metadata"]["resourceVersion"]},
    }
    try:
        kube.ask("DELETE", "apis/apps/v1", "deployments", name, body)
    except Refused as refused:
        cli.tell(f"{name}: not removed ({refused})")
        return refused.status in (404, 409)
    cli.tell(f"{name}: drained, removed")
    return True


def actors_left(label: str) -> int:
    """Actors that need this version. One that never registered has none."""
    try:
        shown = cli.ask("versions", "show", label)
    except cli.Failed as failed:
        if failed.code != cli.UNKNOWN:
            raise
        return 0
    return 0 if shown["drained"] else max(1, shown["actors"])


if __name__ == "__main__":
    cli.end(main)

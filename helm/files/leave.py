"""Before uninstalling: all node and worker Deployments of this release go, each draining, while the broker is still there.

Helm and Argo CD run this when a release ends. `helm template | kubectl apply` runs it as it runs everything, on a release that is to
live: what neither of the two has put its mark on is left alone.
"""

from __future__ import annotations

import os
import time

import cli
from kube import Kube, Refused, serving

LOOK_SECONDS = 1.0
MARKS = {"meta.helm.sh/release-name", "argocd.argoproj.io/tracking-id"}
"""Annotations of what is managed by somebody who knows this hook."""


def main() -> int:
    """Delete them and wait until their pods have gone; the job's deadline bounds it. Finished jobs that Helm would leave go too."""
    kube = Kube()
    there = [
        one["metadata"] for one in kube.ask("GET", "apis/apps/v1", "deployments", query=serving())["items"]
    ]
    if there and not any(MARKS & (one.get("annotations") or {}).keys() for one in there):
        names = ", ".join(one["name"] for one in there)
        cli.tell(f"{names}: not managed by Helm or Argo CD, nothing is deleted")
        return 0
    for one in there:
        delete(kube, "apis/apps/v1", "deployments", one["name"])
    left = -1
    while left:
        pods = kube.ask("GET", "api/v1", "pods", query=serving())["items"]
        if len(pods) != left:
            left = len(pods)
            cli.tell(f"{left} nodes and workers left")
        time.sleep(LOOK_SECONDS if left else 0)
    for job in os.environ["JOBS"].split(","):
        delete(kube, "apis/batch/v1", "jobs", job)
    return 0


def delete(kube: Kube, group: str, kind: str, name: str) -> None:
    """Delete one object and what it owns; nothing when there is none."""
    try:
        kube.ask("DELETE", group, kind, name, {"propagationPolicy": "Background"})
    except Refused as refused:
        if refused.status != 404:
            raise
    else:
        cli.tell(f"{name}: deleted")


if __name__ == "__main__":
    cli.end(main)

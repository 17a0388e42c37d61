"""Before uninstalling: all node Deployments of this release go, each node draining, while the broker is still there."""

from __future__ import annotations

import os
import time

import cli
from janitor import deployments
from kube import Kube, Refused

LOOK_SECONDS = 1.0


def main() -> int:
    """Delete them and wait until their pods have gone; the job's deadline bounds it."""
    kube = Kube()
    for found in deployments(kube):
        name = found["metadata"]["name"]
        try:
            kube.ask("DELETE", "apis/apps/v1", "deployments", name, {"propagationPolicy": "Background"})
        except Refused as refused:
            if refused.status != 404:
                raise
        cli.tell(f"{name}: deleted")
    selector = f"app.kubernetes.io/instance={os.environ['INSTANCE']},app.kubernetes.io/component=node"
    left = -1
    while left:
        pods = kube.ask("GET", "api/v1", "pods", query=f"labelSelector={selector}")["items"]
        if len(pods) != left:
            left = len(pods)
            cli.tell(f"{left} nodes left")
        time.sleep(LOOK_SECONDS if left else 0)
    return 0


if __name__ == "__main__":
    cli.end(main)

"""After an install, upgrade or rollback: the wanted versions become current, once their nodes serve, and their workers if there are any.

Nothing is moved before: if they do not come up in time this fails, the upgrade with it, and what was current stays so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import cli
from kube import Kube, serving

LOOK_SECONDS = 2.0


def main() -> int:
    """Wait for nodes and workers, promote, and if asked wait for the drain of all others."""
    weights = cli.pairs(os.environ["WEIGHTS"])
    deadline = time.monotonic() + float(os.environ["READY_SECONDS"])
    wait_for("nodes", cli.pairs(os.environ["NODES"]), ready_nodes, deadline)
    workers = cli.pairs(os.environ.get("WORKERS", ""))
    if workers:
        wait_for("workers", workers, ready_workers, deadline)
    promote(weights)
    if os.environ.get("WAIT_FOR_DRAIN"):
        wait_for_drains(set(weights), time.monotonic() + float(os.environ["DRAIN_SECONDS"]))
    return 0


def wait_for(what: str, wanted: dict[str, int], look: Callable[[], dict[str, int]], deadline: float) -> None:
    """Until so many of each are ready, by what `look` says. Raises `cli.Verdict`."""
    told = ""
    while True:
        try:
            ready = look()
        except (cli.Again, OSError) as failed:
            ready = {}
            words = str(failed)
        else:
            words = ", ".join(
                f"{name}: {ready.get(name, 0)} of {count} {what}" for name, count in wanted.items()
            )
        if words != told:
            told = words
            cli.tell(words)
        if all(ready.get(name, 0) >= count for name, count in wanted.items()):
            return
        if time.monotonic() > deadline:
            limit = os.environ["READY_SECONDS"]
            raise cli.Verdict(f"not all {what} served within {limit} s ({words}); `current` was not moved")
        time.sleep(LOOK_SECONDS)


def ready_nodes() -> dict[str, int]:
    """Ready nodes by deployment."""
    found: dict[str, int] = {}
    for node in cli.ask("nodes", fine=(0, 1))["nodes"]:  # 1: some partition has no owner yet
        if node["state"] == "ready":
            found[node["deployment"]] = found.get(node["deployment"], 0) + 1
    return found


def ready_workers() -> dict[str, int]:
    """Ready workers by the name of their Deployment."""
    found = Kube().ask("GET", "apis/apps/v1", "deployments", query=serving("worker"))["items"]
    return {
        one["metadata"]["name"]: one.get("status", {}).get("readyReplicas") or 0
        for one in found
        if one.get("status", {}).get("observedGeneration", 0) >= one["metadata"].get("generation", 0)
    }


def promote(weights: dict[str, int]) -> None:
    """New actors start on these from now on."""
    if len(weights) == 1:
        (label,) = weights
        cli.ask("versions", "set-current", label)
        cli.tell(f"{label} is current")
        return
    shares = [f"{label}={weight}" for label, weight in weights.items()]
    cli.ask("versions", "ramp", *shares)
    cli.tell(f"new actors are shared out: {', '.join(shares)}")


def wait_for_drains(wanted: set[str], deadline: float) -> None:
    """Until all other versions have no actor left, or time is up: the janitor goes on then."""
    others = [
        one["deployment"]
        for one in cli.ask("versions", "list")["deployments"]
        if one["deployment"] not in wanted
    ]
    for label in others:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                cli.tell(f"time is up: {label} is not drained yet; its nodes stay until it is")
                return
            try:
                cli.ask(
                    "versions",
                    "drain",
                    label,
                    "--wait",
                    f"--timeout={min(30.0, left):.0f}s",
                    seconds=left + 60,
                )
            except cli.Failed as failed:
                if failed.code == cli.UNKNOWN:
                    cli.tell(f"{label} is gone")
                    break
                if failed.code not in (cli.SILENT, cli.LATE):
                    raise
                cli.tell(f"{label}: {summary(label)}")
                time.sleep(0 if failed.code == cli.LATE else min(LOOK_SECONDS, left))
            else:
                cli.tell(f"{label} is drained")
                break


def summary(label: str) -> str:
    """How many actors are left and where; a broker that does not answer now may later, and hours of waiting are not to end with it."""
    try:
        shown = cli.ask("versions", "show", label)
    except cli.Failed as failed:
        return str(failed)
    places = ", ".join(
        f"{one['count']} at {one['function']} line {one['line']}" for one in shown["lines"][:5]
    )
    return f"{shown['needing']} workflows need it" + (f" (asleep: {places})" if places else "")


if __name__ == "__main__":
    cli.end(main)

"""A node without workflows, as a process: `python node_process.py URL NAMESPACE NODE [stuck]`.

`stuck`: after a line on stdin its loop runs code without an await for a while.
"""

from __future__ import annotations

import logging
import sys
import threading
import time

from sojourn.actors.limits import Limits
from sojourn.actors.registry import Registry
from sojourn.broker.nats import NatsOptions
from sojourn.cluster.node import Node, NodeOptions, run_node
from sojourn.cluster.tenure.lease import LeaseTerms
from sojourn.codecs.keyring import Keyring

TERMS = LeaseTerms(ttl=4, renew=0.5, answer=3.0, tick=3.0, probe=0.2, silent=0.5, connected=1.0, move=0.5)


def stall_when_told(options: NodeOptions) -> None:
    """Make the node's loop run `held_up` when a line arrives."""
    started = Node.run

    async def run(node: Node) -> None:
        import asyncio

        loop = asyncio.get_running_loop()

        def wait() -> None:
            sys.stdin.readline()
            loop.call_soon_threadsafe(held_up)

        threading.Thread(target=wait, daemon=True).start()
        await started(node)

    Node.run = run  # type: ignore[method-assign]  # this process is the test's own


def held_up() -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        time.sleep(0.05)


def main() -> int:
    url, namespace, node = sys.argv[1:4]
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    options = NodeOptions(
        app="none",
        nats=NatsOptions(servers=url),
        keyring=Keyring.ephemeral(lambda n: b"k" * n),
        namespace=namespace,
        node_id=node,
        registry=Registry(),
        terms=TERMS,
        limits=Limits(code_seconds=1.0, stuck_seconds=2.0),
        drain_seconds=10.0,
        announce=True,
    )
    if "stuck" in sys.argv[4:]:
        stall_when_told(options)
    return run_node(options)


if __name__ == "__main__":
    sys.exit(main())

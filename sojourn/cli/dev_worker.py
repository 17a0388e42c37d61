"""The worker beside the node of `sojourn dev`, for apps whose steps name a queue."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sojourn.broker.seam import Broker
    from sojourn.broker.subjects import Subjects

    from .output import Output

CONCURRENCY: Final = 4
DRAIN_SECONDS: Final = 5.0


@asynccontextmanager
async def dev_worker(
    broker: Broker,
    subjects: Subjects,
    app: str,
    server: str,
    level: str,
    output: Output,
    hurry: asyncio.Event,
) -> AsyncIterator[None]:
    """Run a worker meanwhile, if a node has made a queue; started once the node is ready, drained on leaving: at once, when `hurry` is
    set.
    """
    from sojourn.processes import NodeProcess

    prefix = subjects.step_consumer_prefix
    found = await broker.consumers(subjects.steps_stream)
    queues = sorted(name.removeprefix(prefix) for name in found if name.startswith(prefix))
    if not queues:
        yield
        return
    name = f"dev-{secrets.token_hex(3)}"
    arguments = [app, "--server", server, "--namespace", subjects.namespace, "--worker-id", name]
    arguments += ["--concurrency", str(CONCURRENCY), "--drain", f"{DRAIN_SECONDS:g}s", "--log", level]
    worker = NodeProcess(name, arguments, command="worker")
    await worker.start()
    output.say(f"worker     {name} takes steps of {', '.join(queues)}", "green")
    try:
        yield
    finally:
        stopping = asyncio.create_task(worker.stop(DRAIN_SECONDS + 10.0), name="stop the worker")
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait((stopping, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not stopping.done():
            worker.terminate()  # a second time: it leaves at once
        await stopping

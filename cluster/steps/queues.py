"""Queues of steps as nodes see them: the consumer that their workers share, and how much waits in it.

Workers may not make consumers, so every node does for the queues that its app's steps name, before it takes part; the
first one succeeds, and the same again is fine. They last: a queue keeps its tasks while it has no worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sojourn.broker.errors import BrokerError, Refused
from sojourn.broker.seam import Broker, ConsumerConfig, ConsumerState
from sojourn.broker.subjects import Subjects, Token, token

if TYPE_CHECKING:
    from sojourn.cluster.metrics import Metrics

ACK_WAIT: Final = 30.0
"""Seconds after which the task of a worker that gives no sign of life goes to another one."""
MAX_RUNNING: Final = 100_000
"""Tasks of one queue in workers' hands at a time."""
MAX_WAITING: Final = 100_000
"""Free places that may wait for a task of one queue."""
MEASURE_SECONDS: Final = 10.0
_LOG = logging.getLogger("sojourn.cluster")


def consumer_of(subjects: Subjects, queue: Token) -> ConsumerConfig:
    """What the workers of a queue share."""
    return ConsumerConfig(
        subjects.step_consumer(queue),
        (subjects.step(queue),),
        ack_wait=ACK_WAIT,
        max_ack_pending=MAX_RUNNING,
        max_waiting=MAX_WAITING,
    )


async def state_of(broker: Broker, subjects: Subjects, queue: Token) -> ConsumerState | None:
    """What waits in a queue, and how many free places wait for it. Raises `BrokerError`."""
    return await broker.consumer_state(subjects.steps_stream, subjects.step_consumer(queue))


class Queues:
    """The queues of one app. Engine loop only."""

    def __init__(self, broker: Broker, subjects: Subjects, queues: Iterable[str], gauges: Metrics) -> None:
        self._broker = broker
        self._subjects = subjects
        self._queues = tuple(token(queue, "a queue's name") for queue in sorted(queues))
        self._gauges = gauges
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        """Which they are."""
        return f"<Queues {', '.join(self._queues) or 'none'}>"

    async def prepare(self) -> None:
        """Make their consumers, and begin to measure. Raises `BrokerError`."""
        for queue in self._queues:
            try:
                await self._broker.create_consumer(
                    self._subjects.steps_stream, consumer_of(self._subjects, queue)
                )
            except Refused as refused:
                if await state_of(self._broker, self._subjects, queue) is None:
                    raise
                _LOG.info("queue %s has a consumer with other settings: %s", queue, refused)
        if self._queues:
            self._task = asyncio.create_task(self._keep_measuring(), name="measure queues")

    async def stop(self) -> None:
        """Measure no more. Twice is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def measure(self) -> None:
        """Take the figures once. Raises `BrokerError`."""
        for queue in self._queues:
            state = await state_of(self._broker, self._subjects, queue)
            depth = state.waiting + state.unacknowledged if state is not None else 0
            self._gauges.gauge("step_queue_depth", depth, queue=queue)

    async def _keep_measuring(self) -> None:
        while True:
            try:
                await self.measure()
            except BrokerError as error:
                _LOG.info("the queues of steps were not measured: %s", error)
            except Exception:  # figures are for people to look at: no mistake in them may end a node
                _LOG.exception("the queues of steps could not be measured")
            await asyncio.sleep(MEASURE_SECONDS)

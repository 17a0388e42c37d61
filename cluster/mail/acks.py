"""Acknowledgements of one partition's deliveries: pipelined requests, off the path of commits.

An acknowledgement that the broker refuses (the consumer is gone) means that this node may no longer be the owner, which is
membership's question. One of unknown outcome is sent again: it deletes one message of a work queue, so a second one does no harm. A new
attach brings every message that was not acknowledged again, under a new consumer; what was pending for the old one is then forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from sojourn.broker.errors import BrokerClosed, BrokerError
from sojourn.broker.seam import Broker, Delivery

AGAIN_SECONDS: Final = 0.5


class Acknowledger:
    """Sends acknowledgements, and deletions of held events, and reports each confirmation. Used on the engine's loop only."""

    def __init__(
        self, broker: Broker, held_stream: str, on_refused: Callable[[str], None], *, window: int = 256
    ) -> None:
        """`window`: requests on the wire at a time; further ones wait in order."""
        self._broker = broker
        self._held_stream = held_stream
        self._on_refused = on_refused
        self._slots = asyncio.Semaphore(window)
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Acknowledger pending={len(self._tasks)}>"

    def acknowledge(self, delivery: Delivery, confirmed: Callable[[], None]) -> None:
        """Acknowledge; call `confirmed` once the broker said so, unless `forget` came first."""

        async def acknowledge() -> None:
            if await self._broker.ack(delivery):
                confirmed()
            else:
                self._on_refused("an acknowledgement was refused: the consumer is gone")

        self._submit(acknowledge)

    def delete(self, seq: int, confirmed: Callable[[], None]) -> None:
        """Delete a held event; one that was not there any more is as good."""

        async def delete() -> None:
            await self._broker.delete(self._held_stream, seq)
            confirmed()

        self._submit(delete)

    def tasks(self) -> set[asyncio.Task[None]]:
        """What is pending, to be waited for."""
        return set(self._tasks)

    def forget(self) -> None:
        """Give up everything that is pending: the deliveries belong to a consumer that is gone."""
        for task in tuple(self._tasks):
            task.cancel()

    def _submit(self, request: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.create_task(self._persist(request))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _persist(self, request: Callable[[], Awaitable[None]]) -> None:
        async with self._slots:
            while True:
                try:
                    return await request()
                except BrokerClosed:
                    return None
                except BrokerError:
                    await asyncio.sleep(AGAIN_SECONDS)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_refused(f"an acknowledgement failed: {error!r}")

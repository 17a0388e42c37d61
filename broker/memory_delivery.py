"""How the in-memory twin hands messages over: pulls on consumers, plain subscriptions.

On the loop, as from a socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.memory_consumer import MemoryConsumer
from sojourn.broker.seam import Delivery, Received

log = logging.getLogger("sojourn.broker")

MAX_PENDING_PLAIN = 4096


class MemoryPull:
    """A pull on one consumer. Deliveries reach `on_message` on the loop, as from a socket."""

    def __init__(
        self,
        consumer: MemoryConsumer[MemoryPull],
        on_message: Callable[[Delivery], None],
        on_lost: Callable[[str], None],
        register: set[MemoryPull],
    ) -> None:
        self._consumer = consumer
        self._on_message = on_message
        self._on_lost = on_lost
        self._register = register
        self._over = False

    def hand(self, delivery: Delivery) -> None:
        """Give a delivery to its reader, on the loop."""
        asyncio.get_running_loop().call_soon(self._deliver, delivery)

    def lose(self, reason: str) -> None:
        """End this pull and say why, once."""
        if not self._over:
            self._finish()
            asyncio.get_running_loop().call_soon(self._on_lost, reason)

    async def stop(self) -> None:
        """Stop asking for messages; what is in the buffer is dropped (unacknowledged)."""
        self._finish()

    def _deliver(self, delivery: Delivery) -> None:
        if self._over:
            return
        try:
            self._on_message(delivery)
        except Exception:
            log.exception("the handler of %r failed", self._consumer)
            self.lose("the handler failed: it may have missed a message")

    def _finish(self) -> None:
        if self._over:
            return
        self._over = True
        self._register.discard(self)
        self._consumer.pulls.remove(self)


class MemoryFetch(MemoryPull):
    """A pull for one message (`Broker.fetch`): over as soon as it has it."""

    def __init__(self, consumer: MemoryConsumer[MemoryPull], register: set[MemoryPull]) -> None:
        super().__init__(consumer, self._take, self._lost, register)
        self._result: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

    def hand(self, delivery: Delivery) -> None:
        """It has what it asked for: no further message goes here."""
        self._finish()
        asyncio.get_running_loop().call_soon(self._take, delivery)

    async def result(self, wait: float) -> Delivery | None:
        """The message, or None. Raises `OutcomeUnknown`."""
        try:
            async with asyncio.timeout(wait):
                return await self._result
        except TimeoutError:
            return None

    def _take(self, delivery: Delivery) -> None:
        if not self._result.done():
            self._result.set_result(delivery)

    def _lost(self, reason: str) -> None:
        if not self._result.done():
            self._result.set_exception(OutcomeUnknown("fetch", "", reason))


class MemorySubscription:
    """A plain subscription: messages are handled one after another, in order."""

    def __init__(
        self,
        subject: str,
        on_message: Callable[[Received], Awaitable[None]],
        connected: Callable[[], bool],
        end: Callable[[MemorySubscription], None],
    ) -> None:
        self._connected = connected
        self._end = end
        self.subject = subject
        self._on_message = on_message
        self._waiting: deque[Received] = deque()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def offer(self, message: Received) -> None:
        """A message for it; dropped when too many wait, or the connection is down."""
        if self._stopped or not self._connected() or len(self._waiting) >= MAX_PENDING_PLAIN:
            return
        self._waiting.append(message)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._handle())

    async def _handle(self) -> None:
        while self._waiting and not self._stopped:
            try:
                await self._on_message(self._waiting.popleft())
            except Exception:
                log.exception("a handler of plain messages on %s failed", self.subject)
        self._task = None

    async def stop(self) -> None:
        """Unsubscribe. Stopping twice is fine."""
        if self._stopped:
            return
        self._stopped = True
        self._end(self)
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()

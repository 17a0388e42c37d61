"""A continuous pull on one durable consumer, with every doubt about order or completeness told (`on_lost`).

The pull keeps up to `batch` messages asked for: when fewer than half are outstanding it asks for the rest.
A request ends by itself after `EXPIRES_SECONDS` (408) or when its byte bound is reached (409 with that
text), both naming how many messages were not sent; then it asks again. It asks for nothing while whoever
pulls has no room (`seam.Room`).

Doubt, and so the end of this pull, is:

- the connection was cut, or its replies cannot be delivered;
- the consumer is gone (409 `Consumer Deleted`, 503 no responders), or its leader moved (409 `Leadership
  Change`);
- two idle heartbeats are missing;
- the handler raised: it may have missed the message;
- a gap: a message whose consumer sequence is not the previous one + 1, or a heartbeat whose
  `Nats-Last-Consumer` is ahead of what arrived (tried on 2.15.1: both show messages that were sent into a
  dead connection).

Others' messages would look like gaps. So where a consumer is shared (the lanes' nudges: `last_seq` None) nobody looks for any, and
what was sent into a dead connection comes again after `ack_wait`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from sojourn.broker.nats_wire import parse_delivery
from sojourn.broker.seam import Delivery, Room, Stored

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

log = logging.getLogger("sojourn.broker")

EXPIRES_SECONDS = 30.0
HEARTBEAT_SECONDS = 5.0
MAX_BYTES = 32 * 1024 * 1024
"""Bytes one pull request may bring: the bound of what lies in this process unread, per consumer."""

_REQUEST_OVER = ("Batch Completed", "Message Size Exceeds MaxBytes")
"""409s that end one pull request in good order (the first comes only to requests with a byte bound)."""


class NatsPull:
    """See the module. Made by `NatsBroker.pull`; `begin` starts it."""

    def __init__(
        self,
        client: Client,
        stream: str,
        consumer: str,
        on_message: Callable[[Delivery], None],
        on_lost: Callable[[str], None],
        *,
        batch: int,
        last_seq: int | None,
        on_over: Callable[[NatsPull], None],
        api_prefix: str = "$JS.API",
        heartbeat: float = HEARTBEAT_SECONDS,
        room: Room | None = None,
    ) -> None:
        self._client = client
        self._stream = stream
        self._consumer = consumer
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_over = on_over
        self._batch = batch
        self._heartbeat = heartbeat
        self._subject = f"{api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._outstanding = 0
        self._room = room
        self._waits_for_room = False
        self._asking: asyncio.Task[None] | None = None
        self._last_seq = last_seq
        self._over = False
        self._quiet = 0
        self._subscription: Subscription | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._inbox = ""

    def __repr__(self) -> str:
        state = "over" if self._over else f"outstanding={self._outstanding} last_seq={self._last_seq}"
        return f"<NatsPull {self._stream}/{self._consumer} {state}>"

    async def begin(self, inbox: str) -> None:
        """Subscribe, ask for the first messages, watch for heartbeats."""
        self._inbox = inbox
        self._subscription = await self._client.subscribe(
            inbox, cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
        )
        self._watch()
        await self._ask()

    async def stop(self) -> None:
        """Stop asking; what is in the buffer is dropped unacknowledged."""
        self._finish()
        await self._unsubscribe()

    def lose(self, reason: str) -> None:
        """End this pull and say why, once."""
        if self._over:
            return
        self._finish()
        self._on_lost(reason)

    def _finish(self) -> None:
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._on_over(self)

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not self._client.is_closed:
            try:
                await subscription.unsubscribe()
            except (NatsError, OSError):
                return  # the connection is going down: so is the subscription

    async def _ask_if_low(self) -> None:
        if self._over or self._waits_for_room or self._outstanding > self._batch // 2:
            return
        if self._room is not None and self._room.is_full():
            self._waits_for_room = True
            self._room.when_free(self._go_on)
            return
        await self._ask()

    def _go_on(self) -> None:
        """There is room again."""
        self._waits_for_room = False
        if not self._over:
            self._asking = asyncio.get_running_loop().create_task(self._ask_if_low(), name="pull")

    async def _ask(self) -> None:
        wanted = self._batch - self._outstanding
        request = {
            "batch": wanted,
            "max_bytes": MAX_BYTES,
            "expires": round(EXPIRES_SECONDS * 1e9),
            "idle_heartbeat": round(self._heartbeat * 1e9),
        }
        self._outstanding += wanted
        try:
            await self._client.publish(self._subject, orjson.dumps(request), reply=self._inbox)
        except (NatsError, OSError) as error:
            self.lose(f"could not ask for messages: {error!r}")

    async def _receive(self, message: Msg) -> None:
        if self._over:
            await self._unsubscribe()
            return
        self._quiet = 0
        status = message.headers.get("Status") if message.headers else None
        if status is None or message.subject != self._inbox:
            self._deliver(message)
        else:
            self._handle_status(status, message.headers or {})
        await self._ask_if_low()

    def _deliver(self, message: Msg) -> None:
        stream, deliveries, seq, consumer_seq, time = parse_delivery(message.reply)
        if self._last_seq is not None:
            if consumer_seq != self._last_seq + 1:
                self.lose(f"gap: expected consumer sequence {self._last_seq + 1}, received {consumer_seq}")
                return
            self._last_seq = consumer_seq
        self._outstanding -= 1
        stored = Stored(stream, seq, message.subject, message.data, message.headers or {}, time / 1e9)
        try:
            self._on_message(Delivery(stored, message.reply, deliveries > 1, consumer_seq, deliveries))
        except Exception:
            log.exception("the handler of %r failed", self)
            self.lose("the handler failed: it may have missed a message")

    def _handle_status(self, status: str, headers: dict[str, str]) -> None:
        text = headers.get("Description", "")
        if status == "100":
            last = headers.get("Nats-Last-Consumer")
            if last is not None and self._last_seq is not None and int(last) > self._last_seq:
                self.lose(f"gap: the broker sent up to consumer sequence {last}, received {self._last_seq}")
        elif status == "408" or (status == "409" and text.strip() in _REQUEST_OVER):
            self._outstanding = max(0, self._outstanding - int(headers.get("Nats-Pending-Messages", "0")))
        else:
            self.lose(f"{text.strip() or 'no responders'} ({status})")

    def _watch(self) -> None:
        """One look per heartbeat: two without any message mean that they are missing."""
        if self._over:
            return
        self._quiet += 1
        if self._waits_for_room:
            self._quiet = 0  # nothing may be asked for: then the broker has nothing to say
        if self._quiet > 3:  # the first look is at the start, the last heartbeat may be just under way
            self.lose(f"no heartbeat for {3 * self._heartbeat:g} s")
            return
        self._timer = asyncio.get_running_loop().call_later(self._heartbeat, self._watch)

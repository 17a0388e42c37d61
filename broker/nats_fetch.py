"""One message of a shared consumer, asked for by one request (`Broker.fetch`).

For readers that take work one piece at a time: nothing lies in this process that it does not work on yet. A message that was
sent into a dead connection, or came after its reader had gone, comes again after the consumer's `ack_wait`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from sojourn.broker.errors import PERMISSION_DENIED, OutcomeUnknown, Refused
from sojourn.broker.nats_wire import CONSUMER_NOT_FOUND, parse_delivery
from sojourn.broker.seam import Delivery, Stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.subscription import Subscription

GRACE_SECONDS = 5.0
"""Beyond the wait that was asked for, how long the broker may take to say that it is over."""
_ACK = "$JS.ACK."


class NatsFetch:
    """See the module. Made by `NatsBroker.fetch`; `run` does all of it."""

    def __init__(
        self,
        client: Client,
        stream: str,
        consumer: str,
        *,
        on_over: Callable[[NatsFetch], None],
        api_prefix: str,
    ) -> None:
        self._client = client
        self._stream = stream
        self._consumer = consumer
        self._on_over = on_over
        self._subject = f"{api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._answer: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<NatsFetch {self._stream}/{self._consumer}>"

    async def run(self, inbox: str, wait: float) -> Delivery | None:
        """The message, or None when there was none for `wait` seconds. Raises `OutcomeUnknown`, `Refused`."""
        request = {"batch": 1, "expires": round(wait * 1e9)}
        subscription = None
        try:
            subscription = await self._client.subscribe(inbox, cb=self._receive)
            await self._client.publish(self._subject, orjson.dumps(request), reply=inbox)
            async with asyncio.timeout(wait + GRACE_SECONDS):
                return await self._answer
        except TimeoutError:
            raise OutcomeUnknown("fetch", self._subject, "the broker did not answer") from None
        except (NatsError, OSError) as error:
            raise OutcomeUnknown("fetch", self._subject, f"not sent: {error!r}") from error
        finally:
            self._on_over(self)
            await self._unsubscribe(subscription)

    def lose(self, reason: str) -> None:
        """Nobody will answer any more."""
        if not self._answer.done():
            self._answer.set_exception(OutcomeUnknown("fetch", self._subject, reason))

    def deny(self, text: str) -> bool:
        """A permission error from the server (lower-cased by nats-py): whether it is about this request."""
        mine = f'"{self._subject.lower()}"' in text and not self._answer.done()
        if mine:
            self._answer.set_exception(Refused(PERMISSION_DENIED, "permission denied", self._subject))
        return mine

    async def stop(self) -> None:
        """The connection is being closed here."""
        self.lose("the connection was closed here")

    async def _unsubscribe(self, subscription: Subscription | None) -> None:
        if subscription is not None and not self._client.is_closed:
            try:
                await subscription.unsubscribe()
            except (NatsError, OSError):
                return  # the connection is going down: so is the subscription

    async def _receive(self, message: Msg) -> None:
        if self._answer.done():
            return
        if message.reply.startswith(_ACK):  # from another account, a message comes under the inbox's subject
            stream, deliveries, seq, consumer_seq, time = parse_delivery(message.reply)
            stored = Stored(stream, seq, message.subject, message.data, message.headers or {}, time / 1e9)
            self._answer.set_result(Delivery(stored, message.reply, deliveries > 1, consumer_seq, deliveries))
            return
        status = (message.headers or {}).get("Status", "")
        text = (message.headers or {}).get("Description", "").strip()
        if status in ("404", "408"):
            self._answer.set_result(None)
        elif status == "503":
            self._answer.set_exception(Refused(CONSUMER_NOT_FOUND, "no such consumer", self._subject))
        elif status != "100":
            self._answer.set_exception(Refused(int(status or 0), text or "refused", self._subject))

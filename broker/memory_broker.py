"""A connection to the in-memory twin; see `memory`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from sojourn.broker.errors import (
    BrokerClosed,
    NoResponders,
    OutcomeUnknown,
    Refused,
)
from sojourn.broker.memory_delivery import MemoryFetch, MemoryPull, MemorySubscription
from sojourn.broker.memory_faults import Fault
from sojourn.broker.memory_stream import Change
from sojourn.broker.seam import (
    AccountLimits,
    Ack,
    Broker,
    ConsumerConfig,
    ConsumerState,
    Delivery,
    Headers,
    Publish,
    Pull,
    Received,
    Room,
    Stored,
    StreamConfig,
    StreamInfo,
)

if TYPE_CHECKING:
    from sojourn.broker.memory import MemoryServer

T = TypeVar("T")

SCAN_BATCH = 256

MAX_MESSAGE: Final = 1024 * 1024
"""As a server that was not told otherwise. Nothing is refused for it here."""


class MemoryBroker:
    """One connection to a `MemoryServer`; implements the seam."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._closed = False
        self._up = True
        self._listeners: list[Callable[[bool], None]] = []
        self._pulls: set[MemoryPull] = set()
        self._subscriptions: set[MemorySubscription] = set()
        self.requests_sent = 0
        """Round trips begun in the life of this connection."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self._up else "disconnected"
        return f"<MemoryBroker {state} pulls={len(self._pulls)}>"

    # connection
    @property
    def connected(self) -> bool:
        """Whether the connection is up at this moment."""
        return self._up and not self._closed

    @property
    def max_message(self) -> int:
        """Bytes that the broker takes as one message, headers included."""
        return MAX_MESSAGE

    def on_connection(self, listener: Callable[[bool], None]) -> None:
        """Call `listener(True)` after each reconnect, `listener(False)` at each disconnect, on the loop."""
        self._listeners.append(listener)

    def cut(self) -> None:
        """Fault: the connection is lost until `restore`. Pulls end, plain messages meanwhile are lost."""
        if not self._up:
            return
        self._up = False
        for pull in list(self._pulls):
            pull.lose("the connection was cut")
        self._tell(False)

    def restore(self) -> None:
        """The connection is back."""
        if not self._up:
            self._up = True
            self._tell(True)

    async def close(self) -> None:
        """Close. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        for pull in list(self._pulls):
            await pull.stop()
        for subscription in list(self._subscriptions):
            await subscription.stop()

    def _tell(self, up: bool) -> None:
        for listener in self._listeners:
            listener(up)

    async def _do(
        self, operation: str, subject: str, action: Callable[[], T], messages: Sequence[Publish] = ()
    ) -> T:
        """One round trip: out, done (or what the fault makes of it), back."""
        if self._closed:
            raise BrokerClosed(operation)
        if not self._up:
            raise OutcomeUnknown(operation, subject, "not connected (nothing was sent)")
        self.requests_sent += 1
        await asyncio.sleep(0)
        self._server.advance()
        fault = self._server.faults.take(operation, messages)
        if fault is Fault.DELAY:
            self._server.delayed.append((operation, action))
        if fault in (Fault.DROP, Fault.DELAY):
            raise OutcomeUnknown(operation, subject, f"injected fault: {fault.value}")
        result = action()
        self._server.arm()
        if fault is Fault.LOSE_REPLY:
            raise OutcomeUnknown(operation, subject, f"injected fault: {fault.value}")
        await asyncio.sleep(0)
        if not self._up:
            raise OutcomeUnknown(operation, subject, "the connection was cut")
        return result

    # writes
    async def publish(self, message: Publish, *, timeout: float = 2.0) -> Ack:
        """Store one message. Raises `WrongLastSequence`, `Refused`, `OutcomeUnknown`."""
        one = (message,)
        return await self._do("publish", message.subject, lambda: self._server.publish(one), one)

    async def publish_batch(self, messages: Sequence[Publish], *, timeout: float = 5.0) -> Ack:
        """Store all messages of one stream, or none. `Ack.seq` is the last one's. Raises as `publish`."""
        several = tuple(messages)
        return await self._do(
            "publish_batch", several[-1].subject, lambda: self._server.publish(several), several
        )

    async def delete(self, stream: str, seq: int, *, erase: bool = False) -> bool:
        """Delete one stored message; False when it was not there. Raises `OutcomeUnknown`."""
        return await self._do("delete", stream, lambda: self._delete(stream, seq))

    def _delete(self, stream: str, seq: int) -> bool:
        gone = self._server.stream(stream).remove(seq)
        if gone:
            self._server.apply(stream, Change(removed=(seq,)))
        return gone

    async def purge(self, stream: str, subject: str) -> int:
        """Delete all messages under a subject filter; how many they were."""
        return await self._do("purge", stream, lambda: self._purge(stream, subject))

    def _purge(self, stream: str, subject: str) -> int:
        gone = self._server.stream(stream).purge(subject)
        self._server.apply(stream, Change(removed=gone))
        return len(gone)

    # reads
    async def read(self, stream: str, seq: int) -> Stored | None:
        """The message with this sequence, or None when it is not stored."""
        return await self._do("read", stream, lambda: self._server.stream(stream).messages.get(seq))

    async def read_last(self, stream: str, subject: str) -> Stored | None:
        """The newest message of a subject (exact), or None."""
        return await self._do("read", stream, lambda: self._server.stream(stream).last(subject))

    async def read_next(self, stream: str, subject_filter: str, seq: int) -> Stored | None:
        """The first message under the filter with a sequence of at least `seq`, or None."""
        return await self._do(
            "read", stream, lambda: next(self._server.stream(stream).under(subject_filter, seq), None)
        )

    async def scan(
        self, stream: str, subject_filter: str, *, from_seq: int = 1, limit: int | None = None
    ) -> AsyncIterator[Stored]:
        """All messages under the filter in order, in bounded batches."""
        seq, left = from_seq, limit
        while left is None or left > 0:
            count = SCAN_BATCH if left is None else min(SCAN_BATCH, left)
            found = await self._do("scan", stream, self._scan_batch(stream, subject_filter, seq, count))
            for stored in found:
                yield stored
            if len(found) < count:
                return
            seq = found[-1].seq + 1
            left = None if left is None else left - count

    def _scan_batch(self, stream: str, pattern: str, seq: int, count: int) -> Callable[[], list[Stored]]:
        return lambda: list(itertools.islice(self._server.stream(stream).under(pattern, seq), count))

    async def subjects(self, stream: str, subject_filter: str) -> Mapping[str, int]:
        """Subjects under the filter and how many messages each holds."""
        return await self._do("subjects", stream, lambda: self._server.stream(stream).counts(subject_filter))

    async def stream_info(self, stream: str) -> StreamInfo:
        """State of the stream. Raises `StreamNotFound`."""
        server = self._server
        return await self._do("stream_info", stream, lambda: server.stream(stream).info(server.clock()))

    # topology
    async def stream_config(self, stream: str) -> StreamConfig | None:
        """The stream's configuration, or None when there is no such stream."""
        streams = self._server.streams
        return await self._do(
            "stream_config", stream, lambda: streams[stream].config if stream in streams else None
        )

    async def create_stream(self, config: StreamConfig) -> None:
        """Create the stream. Raises `Refused`."""
        await self._do("create_stream", config.name, lambda: self._server.create_stream(config))

    async def update_stream(self, config: StreamConfig) -> None:
        """Change the stream's configuration. Raises `Refused`."""
        await self._do("update_stream", config.name, lambda: self._server.update_stream(config))

    async def account_limits(self) -> AccountLimits:
        """What this account may store."""
        server = self._server
        return await self._do(
            "account_limits",
            "",
            lambda: AccountLimits(
                server.max_bytes,
                sum(stream.info(0.0).bytes for stream in server.streams.values()),
                -1,
            ),
        )

    # consumers
    async def consumers(self, stream: str) -> Sequence[str]:
        """Names of the stream's consumers."""
        server = self._server
        return await self._do(
            "consumers", stream, lambda: list(server.consumers[server.stream(stream).config.name])
        )

    async def create_consumer(self, stream: str, config: ConsumerConfig) -> None:
        """Create the consumer; the same configuration again is fine.

        Raises `Refused` (10100: filters overlap).
        """
        await self._do("create_consumer", stream, lambda: self._server.create_consumer(stream, config))

    async def delete_consumer(self, stream: str, name: str) -> bool:
        """Delete the consumer; False when there was none."""
        return await self._do("delete_consumer", stream, lambda: self._server.delete_consumer(stream, name))

    async def pull(
        self,
        stream: str,
        consumer: str,
        on_message: Callable[[Delivery], None],
        on_lost: Callable[[str], None],
        *,
        batch: int = 500,
        shared: bool = False,
        room: Room | None = None,
    ) -> Pull:
        """Hand every message of the consumer to `on_message`.

        Raises `Refused` when there is no such consumer. `shared` or not, nothing gets lost here but by a fault; there is always `room`.
        """

        def begin() -> MemoryPull:
            source = self._server.stream(stream)
            found = self._server.consumers[stream].get(consumer)
            if found is None:
                raise Refused(10014, "consumer not found", consumer)
            pull = MemoryPull(found, on_message, on_lost, self._pulls)
            self._pulls.add(pull)
            found.pulls.append(pull)
            self._server.pump(found, source)
            return pull

        return await self._do("pull", stream, begin)

    async def ack(self, delivery: Delivery, *, timeout: float = 2.0) -> bool:
        """Acknowledge and wait for the confirmation. False: the consumer is gone. Raises `OutcomeUnknown`."""
        return await self._do("ack", delivery.token, lambda: self._server.acknowledge(delivery.token))

    # consumers that many readers share
    async def fetch(self, stream: str, consumer: str, *, wait: float) -> Delivery | None:
        """One message of a shared consumer, or None when there was none for `wait` seconds."""

        def begin() -> MemoryFetch:
            source = self._server.stream(stream)
            found = self._server.consumers[stream].get(consumer)
            if found is None:
                raise Refused(10014, "consumer not found", consumer)
            if len(found.pulls) >= (found.config.max_waiting or 512):
                raise Refused(409, "Exceeded MaxWaiting", consumer)
            fetch = MemoryFetch(found, self._pulls)
            self._pulls.add(fetch)
            found.pulls.append(fetch)
            self._server.pump(found, source)
            return fetch

        fetch = await self._do("fetch", stream, begin)
        try:
            return await fetch.result(wait)
        finally:
            await fetch.stop()

    async def in_progress(self, delivery: Delivery, *, timeout: float = 2.0) -> bool:
        """Say that it is being worked on. False: the consumer is gone. Raises `OutcomeUnknown`."""
        token = delivery.token
        return await self._do("in_progress", token, lambda: self._server.put_off(token, None))

    async def hand_back(self, delivery: Delivery, delay: float, *, timeout: float = 2.0) -> bool:
        """Give it back, to come again after `delay` seconds. False: the consumer is gone. Raises `OutcomeUnknown`."""
        token = delivery.token
        return await self._do("hand_back", token, lambda: self._server.put_off(token, delay))

    async def consumer_state(self, stream: str, consumer: str) -> ConsumerState | None:
        """What the consumer has to do, or None when there is none."""

        def look() -> ConsumerState | None:
            source = self._server.stream(stream)
            found = self._server.consumers[stream].get(consumer)
            return found.state(source.messages) if found is not None else None

        return await self._do("consumer_state", stream, look)

    # plain messages
    async def send(self, subject: str, payload: bytes = b"", headers: Headers | None = None) -> None:
        """Publish without waiting; stored too when a stream wants the subject."""
        await self._do("send", subject, lambda: self._send(subject, payload, headers or {}, ""))

    def _send(self, subject: str, payload: bytes, headers: Headers, reply: str) -> int:
        if self._server.stream_of(subject) is not None:
            try:
                self._server.publish((Publish(subject, payload, headers),))
            except Refused:
                return 0  # as with the server: the refusal goes to a reply subject nobody gave
            return 1
        return self._server.route(Received(subject, payload, dict(headers), reply))

    async def request(
        self, subject: str, payload: bytes = b"", headers: Headers | None = None, *, timeout: float = 2.0
    ) -> Received:
        """Send and wait for one reply. Raises `NoResponders`, `OutcomeUnknown`."""
        answer: asyncio.Future[Received] = asyncio.get_running_loop().create_future()

        async def take(message: Received) -> None:
            if not answer.done():
                answer.set_result(message)

        inbox = await self.subscribe(self._server.new_inbox(), take)
        try:
            sent = await self._do(
                "request", subject, lambda: self._send(subject, payload, headers or {}, inbox.subject)
            )
            if sent == 0:
                raise NoResponders(subject)
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise OutcomeUnknown("request", subject, f"no answer within {timeout:g} s") from None
        finally:
            await inbox.stop()

    async def subscribe(
        self, subject: str, on_message: Callable[[Received], Awaitable[None]]
    ) -> MemorySubscription:
        """Receive plain messages on a subject (wildcards allowed)."""

        def begin() -> MemorySubscription:
            subscription = MemorySubscription(
                subject, on_message, connected=lambda: self.connected, end=self.end
            )
            self._server.subscriptions.append(subscription)
            self._subscriptions.add(subscription)
            return subscription

        return await self._do("subscribe", subject, begin)

    async def reply(self, message: Received, payload: bytes = b"", headers: Headers | None = None) -> None:
        """Answer a request; a message that asked for no reply gets none."""
        if message.reply:
            await self.send(message.reply, payload, headers)

    def end(self, subscription: MemorySubscription) -> None:
        """A subscription was stopped."""
        self._subscriptions.discard(subscription)
        if subscription in self._server.subscriptions:
            self._server.subscriptions.remove(subscription)


if TYPE_CHECKING:
    _is_a_broker: type[Broker] = MemoryBroker

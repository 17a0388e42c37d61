"""The in-memory twin of the broker: the same seam, the same semantics, no process, no disk, any clock.

`MemoryServer` is the server, `MemoryServer.connect()` a connection; connections can be cut, and operations
can be dropped, delayed or lose their answer (`faults`). It passes the same conformance suite as NATS and
ships with the testing kit; the layers above are tested on it.

Time comes from `clock`. What time brings about (TTLs, schedules, late acknowledgements) happens in
`advance`, called before each operation, by whoever drives a virtual clock, and, when `timers` is set, by a
timer of the running loop.

Not imitated: permissions, replicas (every read is the leader's), inactive consumers, bytes to the exact
count.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from sojourn.broker.errors import (
    BrokerClosed,
    NoResponders,
    OutcomeUnknown,
    Refused,
    StreamNotFound,
)
from sojourn.broker.memory_consumer import MemoryConsumer
from sojourn.broker.memory_faults import Fault, Faults
from sojourn.broker.memory_stream import Change, MemoryStream, effective
from sojourn.broker.nats_wire import parse_delivery, publish_headers
from sojourn.broker.seam import (
    AccountLimits,
    Ack,
    Broker,
    ConsumerConfig,
    Delivery,
    Headers,
    Publish,
    Pull,
    Received,
    Stored,
    StreamConfig,
    StreamInfo,
)
from sojourn.broker.subject_match import matches, overlap, transform

T = TypeVar("T")

log = logging.getLogger("sojourn.broker")

MAX_PENDING_PLAIN = 4096
SCAN_BATCH = 256


class MemoryServer:
    """One server in memory. `clock` gives Unix seconds; with `timers` it drives itself by the running loop."""

    def __init__(
        self, clock: Callable[[], float] = time.time, *, timers: bool = True, max_bytes: int = -1
    ) -> None:
        self.clock = clock
        self.faults = Faults()
        self.max_bytes = max_bytes
        self._timers = timers
        self._timer: asyncio.TimerHandle | None = None
        self._streams: dict[str, MemoryStream] = {}
        self._consumers: dict[str, dict[str, MemoryConsumer[_MemoryPull]]] = {}
        self._subscriptions: list[_MemorySubscription] = []
        self._delayed: list[tuple[str, Callable[[], object]]] = []
        self._inboxes = itertools.count(1)

    def __repr__(self) -> str:
        return f"<MemoryServer streams={len(self._streams)} subscriptions={len(self._subscriptions)}>"

    async def connect(self) -> MemoryBroker:
        """A new connection."""
        await asyncio.sleep(0)
        return MemoryBroker(self)

    # time
    def next_due(self) -> float | None:
        """When `advance` has something to do next (it may turn out to be nothing), or None."""
        dues = [stream.next_due() for stream in self._streams.values()]
        dues += [c.next_due() for consumers in self._consumers.values() for c in consumers.values()]
        return min((due for due in dues if due is not None), default=None)

    def advance(self) -> None:
        """Let happen what is due by the clock."""
        now = self.clock()
        for name, stream in self._streams.items():
            self._apply(name, stream.advance(now))
            for consumer in self._consumers[name].values():
                if consumer.advance(now):
                    self._pump(consumer, stream)
        self._arm()

    def release_delayed(self) -> int:
        """Let the delayed operations arrive now, each on its own merits; how many they were."""
        delayed, self._delayed = self._delayed, []
        for _, action in delayed:
            try:
                action()
            except (Refused, StreamNotFound, OutcomeUnknown):
                continue  # its sender has long given up; the answer reaches nobody
        self._arm()
        return len(delayed)

    def _arm(self) -> None:
        if not self._timers:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.next_due()
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - self.clock()), self.advance)

    # what connections ask for
    def _stream(self, name: str) -> MemoryStream:
        stream = self._streams.get(name)
        if stream is None:
            raise StreamNotFound(name)
        return stream

    def _stream_of(self, subject: str) -> MemoryStream | None:
        for stream in self._streams.values():
            if any(matches(subject, pattern) for pattern in stream.config.subjects):
                return stream
        return None

    def _publish(self, messages: Sequence[Publish]) -> Ack:
        subject = messages[-1].subject
        stream = self._stream_of(subject)
        if stream is None:
            raise OutcomeUnknown("publish", subject, "nobody serves it now: no such stream")
        if any(self._stream_of(message.subject) is not stream for message in messages):
            raise Refused(10176, "atomic publish batch is incomplete", subject)
        incoming = [stream.incoming(message, publish_headers(message) or {}) for message in messages]
        ack, change = stream.append(incoming, self.clock())
        self._apply(stream.config.name, change)
        for message in messages:
            self._route(Received(message.subject, message.payload, publish_headers(message) or {}, ""))
        return ack

    def _apply(self, name: str, change: Change) -> None:
        stream, consumers = self._streams[name], self._consumers[name]
        for seq in change.removed:
            for consumer in consumers.values():
                consumer.withdraw(seq)
        for stored in change.stored:
            self._republish(stream, stored)
            for consumer in consumers.values():
                if consumer.wants(stored.subject):
                    consumer.offer(stored.seq)
        if change.stored:
            for consumer in consumers.values():
                self._pump(consumer, stream)

    def _republish(self, stream: MemoryStream, stored: Stored) -> None:
        rule = stream.config.republish
        if rule is None:
            return
        subject = self._republish_subject(stored.subject, rule)
        if subject is None:
            return
        headers = {
            **stored.headers,
            "Nats-Stream": stored.stream,
            "Nats-Subject": stored.subject,
            "Nats-Sequence": str(stored.seq),
            "Nats-Msg-Size": str(len(stored.payload)),
        }
        self._route(Received(subject, b"", headers, ""))

    @staticmethod
    def _republish_subject(subject: str, rule: tuple[str, str]) -> str | None:
        source, destination = rule
        if not matches(subject, source):
            return None
        if source.endswith(">") and destination.endswith(">"):
            return destination[:-1] + subject[len(source) - 1 :]
        return transform(subject, rule)

    def _pump(self, consumer: MemoryConsumer[_MemoryPull], stream: MemoryStream) -> None:
        while (found := consumer.next(stream.messages, self.clock())) is not None:
            pull, delivery = found
            if self.faults.take("deliver", ()) is Fault.DROP:
                pull.lose(f"gap: the broker sent up to consumer sequence {delivery.consumer_seq}")
            else:
                pull.hand(delivery)

    def _route(self, message: Received) -> int:
        receivers = [s for s in self._subscriptions if matches(message.subject, s.subject)]
        for subscription in receivers:
            subscription.offer(message)
        return len(receivers)

    def _new_inbox(self) -> str:
        return f"_INBOX.memory.{next(self._inboxes)}"

    # topology
    def _create_stream(self, config: StreamConfig) -> None:
        wanted = effective(config)
        present = self._streams.get(config.name)
        if present is not None:
            if present.config == wanted:
                return
            raise Refused(10058, "stream name already in use with a different configuration", config.name)
        self._check_subjects(wanted)
        self._streams[config.name] = MemoryStream(wanted, self.clock())
        self._consumers[config.name] = {}

    def _update_stream(self, config: StreamConfig) -> None:
        stream, wanted = self._stream(config.name), effective(config)
        for name in ("retention", "max_consumers"):
            if getattr(stream.config, name) != getattr(wanted, name):
                raise Refused(10052, f"stream configuration update can not change {name}", config.name)
        self._check_subjects(wanted)
        stream.config = wanted

    def _check_subjects(self, config: StreamConfig) -> None:
        for other in self._streams.values():
            if other.config.name == config.name:
                continue
            if any(overlap(a, b) for a in config.subjects for b in other.config.subjects):
                raise Refused(10065, "subjects overlap with an existing stream", config.name)

    def _create_consumer(self, name: str, config: ConsumerConfig) -> None:
        stream, consumers = self._stream(name), self._consumers[name]
        present = consumers.get(config.name)
        if present is not None:
            if present.config == config:
                return
            raise Refused(10148, "consumer already exists", config.name)
        if stream.config.retention == "workqueue":
            taken = [pattern for other in consumers.values() for pattern in other.config.filters]
            if any(overlap(a, b) for a in config.filters for b in taken):
                raise Refused(10100, "filtered consumer not unique on workqueue stream", config.name)
        if 0 < stream.config.max_consumers <= len(consumers):
            raise Refused(10026, "maximum consumers limit reached", config.name)
        waiting = [
            seq
            for seq, stored in stream.messages.items()
            if any(matches(stored.subject, pattern) for pattern in config.filters)
        ]
        consumers[config.name] = MemoryConsumer(name, config, waiting)

    def _delete_consumer(self, stream: str, name: str) -> bool:
        self._stream(stream)
        consumer = self._consumers[stream].pop(name, None)
        if consumer is None:
            return False
        for pull in list(consumer.pulls):
            pull.lose("Consumer Deleted (409)")
        return True

    def _acknowledge(self, token: str) -> bool:
        name, _, seq, _, _ = parse_delivery(token)
        consumer = self._consumers.get(name, {}).get(token.split(".")[3])
        if consumer is None:
            return False
        consumer.acknowledge(seq)
        stream = self._streams[name]
        if stream.config.retention == "workqueue":
            stream.remove(seq)
        self._pump(consumer, stream)
        return True


class MemoryBroker:
    """One connection to a `MemoryServer`; implements the seam."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._closed = False
        self._up = True
        self._listeners: list[Callable[[bool], None]] = []
        self._pulls: set[_MemoryPull] = set()
        self._subscriptions: set[_MemorySubscription] = set()
        self._cut: asyncio.Future[None] | None = None
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
            self._server._delayed.append((operation, action))
        if fault in (Fault.DROP, Fault.DELAY):
            raise OutcomeUnknown(operation, subject, f"injected fault: {fault.value}")
        result = action()
        self._server._arm()
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
        return await self._do("publish", message.subject, lambda: self._server._publish(one), one)

    async def publish_batch(self, messages: Sequence[Publish], *, timeout: float = 5.0) -> Ack:
        """Store all messages of one stream, or none. `Ack.seq` is the last one's. Raises as `publish`."""
        several = tuple(messages)
        return await self._do(
            "publish_batch", several[-1].subject, lambda: self._server._publish(several), several
        )

    async def delete(self, stream: str, seq: int, *, erase: bool = False) -> bool:
        """Delete one stored message; False when it was not there. Raises `OutcomeUnknown`."""
        return await self._do("delete", stream, lambda: self._delete(stream, seq))

    def _delete(self, stream: str, seq: int) -> bool:
        gone = self._server._stream(stream).remove(seq)
        if gone:
            self._server._apply(stream, Change(removed=(seq,)))
        return gone

    async def purge(self, stream: str, subject: str) -> int:
        """Delete all messages under a subject filter; how many they were."""
        return await self._do("purge", stream, lambda: self._purge(stream, subject))

    def _purge(self, stream: str, subject: str) -> int:
        gone = self._server._stream(stream).purge(subject)
        self._server._apply(stream, Change(removed=gone))
        return len(gone)

    # reads
    async def read(self, stream: str, seq: int) -> Stored | None:
        """The message with this sequence, or None when it is not stored."""
        return await self._do("read", stream, lambda: self._server._stream(stream).messages.get(seq))

    async def read_last(self, stream: str, subject: str) -> Stored | None:
        """The newest message of a subject (exact), or None."""
        return await self._do("read", stream, lambda: self._server._stream(stream).last(subject))

    async def read_next(self, stream: str, subject_filter: str, seq: int) -> Stored | None:
        """The first message under the filter with a sequence of at least `seq`, or None."""
        return await self._do(
            "read", stream, lambda: next(self._server._stream(stream).under(subject_filter, seq), None)
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
        return lambda: list(itertools.islice(self._server._stream(stream).under(pattern, seq), count))

    async def subjects(self, stream: str, subject_filter: str) -> Mapping[str, int]:
        """Subjects under the filter and how many messages each holds."""
        return await self._do("subjects", stream, lambda: self._server._stream(stream).counts(subject_filter))

    async def stream_info(self, stream: str) -> StreamInfo:
        """State of the stream. Raises `StreamNotFound`."""
        server = self._server
        return await self._do("stream_info", stream, lambda: server._stream(stream).info(server.clock()))

    # topology
    async def stream_config(self, stream: str) -> StreamConfig | None:
        """The stream's configuration, or None when there is no such stream."""
        streams = self._server._streams
        return await self._do(
            "stream_config", stream, lambda: streams[stream].config if stream in streams else None
        )

    async def create_stream(self, config: StreamConfig) -> None:
        """Create the stream. Raises `Refused`."""
        await self._do("create_stream", config.name, lambda: self._server._create_stream(config))

    async def update_stream(self, config: StreamConfig) -> None:
        """Change the stream's configuration. Raises `Refused`."""
        await self._do("update_stream", config.name, lambda: self._server._update_stream(config))

    async def account_limits(self) -> AccountLimits:
        """What this account may store."""
        server = self._server
        return await self._do(
            "account_limits",
            "",
            lambda: AccountLimits(
                server.max_bytes,
                sum(stream.info(0.0).bytes for stream in server._streams.values()),
                -1,
            ),
        )

    # consumers
    async def consumers(self, stream: str) -> Sequence[str]:
        """Names of the stream's consumers."""
        server = self._server
        return await self._do(
            "consumers", stream, lambda: list(server._consumers[server._stream(stream).config.name])
        )

    async def create_consumer(self, stream: str, config: ConsumerConfig) -> None:
        """Create the consumer; the same configuration again is fine.

        Raises `Refused` (10100: filters overlap).
        """
        await self._do("create_consumer", stream, lambda: self._server._create_consumer(stream, config))

    async def delete_consumer(self, stream: str, name: str) -> bool:
        """Delete the consumer; False when there was none."""
        return await self._do("delete_consumer", stream, lambda: self._server._delete_consumer(stream, name))

    async def pull(
        self,
        stream: str,
        consumer: str,
        on_message: Callable[[Delivery], None],
        on_lost: Callable[[str], None],
        *,
        batch: int = 500,
    ) -> Pull:
        """Hand every message of the consumer to `on_message`.

        Raises `Refused` when there is no such consumer.
        """

        def begin() -> _MemoryPull:
            source = self._server._stream(stream)
            found = self._server._consumers[stream].get(consumer)
            if found is None:
                raise Refused(10014, "consumer not found", consumer)
            pull = _MemoryPull(found, on_message, on_lost, self._pulls)
            self._pulls.add(pull)
            found.pulls.append(pull)
            self._server._pump(found, source)
            return pull

        return await self._do("pull", stream, begin)

    async def ack(self, delivery: Delivery, *, timeout: float = 2.0) -> bool:
        """Acknowledge and wait for the confirmation. False: the consumer is gone. Raises `OutcomeUnknown`."""
        return await self._do("ack", delivery.token, lambda: self._server._acknowledge(delivery.token))

    # plain messages
    async def send(self, subject: str, payload: bytes = b"", headers: Headers | None = None) -> None:
        """Publish without waiting; stored too when a stream wants the subject."""
        await self._do("send", subject, lambda: self._send(subject, payload, headers or {}, ""))

    def _send(self, subject: str, payload: bytes, headers: Headers, reply: str) -> int:
        if self._server._stream_of(subject) is not None:
            try:
                self._server._publish((Publish(subject, payload, headers),))
            except Refused:
                return 0  # as with the server: the refusal goes to a reply subject nobody gave
            return 1
        return self._server._route(Received(subject, payload, dict(headers), reply))

    async def request(
        self, subject: str, payload: bytes = b"", headers: Headers | None = None, *, timeout: float = 2.0
    ) -> Received:
        """Send and wait for one reply. Raises `NoResponders`, `OutcomeUnknown`."""
        answer: asyncio.Future[Received] = asyncio.get_running_loop().create_future()

        async def take(message: Received) -> None:
            if not answer.done():
                answer.set_result(message)

        inbox = await self.subscribe(self._server._new_inbox(), take)
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
    ) -> _MemorySubscription:
        """Receive plain messages on a subject (wildcards allowed)."""

        def begin() -> _MemorySubscription:
            subscription = _MemorySubscription(self, subject, on_message)
            self._server._subscriptions.append(subscription)
            self._subscriptions.add(subscription)
            return subscription

        return await self._do("subscribe", subject, begin)

    async def reply(self, message: Received, payload: bytes = b"", headers: Headers | None = None) -> None:
        """Answer a request; a message that asked for no reply gets none."""
        if message.reply:
            await self.send(message.reply, payload, headers)

    def _end(self, subscription: _MemorySubscription) -> None:
        self._subscriptions.discard(subscription)
        if subscription in self._server._subscriptions:
            self._server._subscriptions.remove(subscription)


class _MemoryPull:
    """A pull on one consumer. Deliveries reach `on_message` on the loop, as from a socket."""

    def __init__(
        self,
        consumer: MemoryConsumer[_MemoryPull],
        on_message: Callable[[Delivery], None],
        on_lost: Callable[[str], None],
        register: set[_MemoryPull],
    ) -> None:
        self._consumer = consumer
        self._on_message = on_message
        self._on_lost = on_lost
        self._register = register
        self._over = False

    def hand(self, delivery: Delivery) -> None:
        asyncio.get_running_loop().call_soon(self._deliver, delivery)

    def lose(self, reason: str) -> None:
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


class _MemorySubscription:
    """A plain subscription: messages are handled one after another, in order."""

    def __init__(
        self, broker: MemoryBroker, subject: str, on_message: Callable[[Received], Awaitable[None]]
    ) -> None:
        self._broker = broker
        self.subject = subject
        self._on_message = on_message
        self._waiting: deque[Received] = deque()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def offer(self, message: Received) -> None:
        if self._stopped or not self._broker.connected or len(self._waiting) >= MAX_PENDING_PLAIN:
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
        self._broker._end(self)
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()


if TYPE_CHECKING:
    _is_a_broker: type[Broker] = MemoryBroker

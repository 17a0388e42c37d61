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
import time
from collections.abc import Callable, Sequence

from sojourn.broker.errors import (
    OutcomeUnknown,
    Refused,
    StreamNotFound,
)
from sojourn.broker.memory_broker import MemoryBroker as MemoryBroker
from sojourn.broker.memory_consumer import MemoryConsumer
from sojourn.broker.memory_delivery import MemoryPull, MemorySubscription
from sojourn.broker.memory_faults import Fault, Faults
from sojourn.broker.memory_stream import Change, MemoryStream, effective
from sojourn.broker.nats_wire import parse_delivery, publish_headers
from sojourn.broker.seam import (
    Ack,
    ConsumerConfig,
    Publish,
    Received,
    Stored,
    StreamConfig,
)
from sojourn.broker.subject_match import matches, overlap, transform


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
        self.streams: dict[str, MemoryStream] = {}
        self.consumers: dict[str, dict[str, MemoryConsumer[MemoryPull]]] = {}
        self.subscriptions: list[MemorySubscription] = []
        self.delayed: list[tuple[str, Callable[[], object]]] = []
        self._inboxes = itertools.count(1)

    def __repr__(self) -> str:
        return f"<MemoryServer streams={len(self.streams)} subscriptions={len(self.subscriptions)}>"

    async def connect(self) -> MemoryBroker:
        """A new connection."""
        await asyncio.sleep(0)
        return MemoryBroker(self)

    # time
    def next_due(self) -> float | None:
        """When `advance` has something to do next (it may turn out to be nothing), or None."""
        dues = [stream.next_due() for stream in self.streams.values()]
        dues += [c.next_due() for consumers in self.consumers.values() for c in consumers.values()]
        return min((due for due in dues if due is not None), default=None)

    def advance(self) -> None:
        """Let happen what is due by the clock."""
        now = self.clock()
        for name, stream in self.streams.items():
            self.apply(name, stream.advance(now))
            for consumer in self.consumers[name].values():
                if consumer.advance(now):
                    self.pump(consumer, stream)
        self.arm()

    def release_delayed(self) -> int:
        """Let the delayed operations arrive now, each on its own merits; how many they were."""
        delayed, self.delayed = self.delayed, []
        for _, action in delayed:
            try:
                action()
            except (Refused, StreamNotFound, OutcomeUnknown):
                continue  # its sender has long given up; the answer reaches nobody
        self.arm()
        return len(delayed)

    def arm(self) -> None:
        """Set the timer for what is due next."""
        if not self._timers:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.next_due()
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - self.clock()), self.advance)

    # what connections ask for (`memory_broker`)
    def stream(self, name: str) -> MemoryStream:
        """The stream of this name. Raises `StreamNotFound`."""
        stream = self.streams.get(name)
        if stream is None:
            raise StreamNotFound(name)
        return stream

    def stream_of(self, subject: str) -> MemoryStream | None:
        """The stream that stores this subject, or None."""
        for stream in self.streams.values():
            if any(matches(subject, pattern) for pattern in stream.config.subjects):
                return stream
        return None

    def publish(self, messages: Sequence[Publish]) -> Ack:
        """Store one message, or several all or none, and hand on what follows from it."""
        subject = messages[-1].subject
        stream = self.stream_of(subject)
        if stream is None:
            raise OutcomeUnknown("publish", subject, "nobody serves it now: no such stream")
        if any(self.stream_of(message.subject) is not stream for message in messages):
            raise Refused(10176, "atomic publish batch is incomplete", subject)
        incoming = [stream.incoming(message, publish_headers(message) or {}) for message in messages]
        ack, change = stream.append(incoming, self.clock())
        self.apply(stream.config.name, change)
        for message in messages:
            self.route(Received(message.subject, message.payload, publish_headers(message) or {}, ""))
        return ack

    def apply(self, name: str, change: Change) -> None:
        """Hand on what a change of a stream means to its consumers and watchers."""
        stream, consumers = self.streams[name], self.consumers[name]
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
                self.pump(consumer, stream)

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
        self.route(Received(subject, b"", headers, ""))

    @staticmethod
    def _republish_subject(subject: str, rule: tuple[str, str]) -> str | None:
        source, destination = rule
        if not matches(subject, source):
            return None
        if source.endswith(">") and destination.endswith(">"):
            return destination[:-1] + subject[len(source) - 1 :]
        return transform(subject, rule)

    def pump(self, consumer: MemoryConsumer[MemoryPull], stream: MemoryStream) -> None:
        """Hand over what the consumer may deliver now."""
        while (found := consumer.next(stream.messages, self.clock())) is not None:
            pull, delivery = found
            if self.faults.take("deliver", ()) is Fault.DROP:
                pull.lose(f"gap: the broker sent up to consumer sequence {delivery.consumer_seq}")
            else:
                pull.hand(delivery)

    def route(self, message: Received) -> int:
        """Give a plain message to every matching subscription; how many they were."""
        receivers = [s for s in self.subscriptions if matches(message.subject, s.subject)]
        for subscription in receivers:
            subscription.offer(message)
        return len(receivers)

    def new_inbox(self) -> str:
        """A subject nobody else uses."""
        return f"_INBOX.memory.{next(self._inboxes)}"

    # topology
    def create_stream(self, config: StreamConfig) -> None:
        """Create it; the same configuration again is fine. Raises `Refused`."""
        wanted = effective(config)
        present = self.streams.get(config.name)
        if present is not None:
            if present.config == wanted:
                return
            raise Refused(10058, "stream name already in use with a different configuration", config.name)
        self._check_subjects(wanted)
        self.streams[config.name] = MemoryStream(wanted, self.clock())
        self.consumers[config.name] = {}

    def update_stream(self, config: StreamConfig) -> None:
        """Change it. Raises `Refused`, `StreamNotFound`."""
        stream, wanted = self.stream(config.name), effective(config)
        for name in ("retention", "max_consumers"):
            if getattr(stream.config, name) != getattr(wanted, name):
                raise Refused(10052, f"stream configuration update can not change {name}", config.name)
        self._check_subjects(wanted)
        stream.config = wanted

    def _check_subjects(self, config: StreamConfig) -> None:
        for other in self.streams.values():
            if other.config.name == config.name:
                continue
            if any(overlap(a, b) for a in config.subjects for b in other.config.subjects):
                raise Refused(10065, "subjects overlap with an existing stream", config.name)

    def create_consumer(self, name: str, config: ConsumerConfig) -> None:
        """Create it; the same configuration again is fine. Raises `Refused`."""
        stream, consumers = self.stream(name), self.consumers[name]
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

    def delete_consumer(self, stream: str, name: str) -> bool:
        """Delete it and end its pulls; False when there was none."""
        self.stream(stream)
        consumer = self.consumers[stream].pop(name, None)
        if consumer is None:
            return False
        for pull in list(consumer.pulls):
            pull.lose("Consumer Deleted (409)")
        return True

    def acknowledge(self, token: str) -> bool:
        """Take a delivery as done; False when its consumer is gone."""
        name, _, seq, _, _ = parse_delivery(token)
        consumer = self.consumers.get(name, {}).get(token.split(".")[3])
        if consumer is None:
            return False
        consumer.acknowledge(seq)
        stream = self.streams[name]
        if stream.config.retention == "workqueue":
            stream.remove(seq)
        self.pump(consumer, stream)
        return True

    def put_off(self, token: str, delay: float | None) -> bool:
        """A delivery comes again after `delay` seconds, None: after its `ack_wait`; False when its consumer is gone."""
        name, _, seq, _, _ = parse_delivery(token)
        consumer = self.consumers.get(name, {}).get(token.split(".")[3])
        if consumer is None:
            return False
        consumer.put_off(seq, self.clock() + (consumer.config.ack_wait if delay is None else delay))
        self.advance()
        return True

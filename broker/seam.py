"""The seam between Sojourn and its broker: streams, leader reads, consumers, plain messages.

Everything above this file (frame store, held events, timers, dead letters, ownership) is written once over
`Broker` and runs on NATS JetStream and on the in-memory twin alike; one conformance suite is run by both.
The seam is JetStream-shaped on purpose: the protocol's rules speak of sequences, expectations and leader
reads, so a more abstract seam would hide what they need.

Three outcomes of a write are told apart, because the rules treat them differently:

- it returns: stored, with its sequence;
- `WrongLastSequence` / `Refused`: certainly not stored;
- `OutcomeUnknown`: stored, not stored, or stored later. The caller must read before it goes on (PROTOCOL
  4.6).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

Headers = Mapping[str, str]
"""Message headers. A key occurs once; values are ASCII (callers percent-encode)."""

HEADER_NAME: Final = re.compile(r"[!-9;-~]+")
"""What a header may be called: printable ASCII, no space, no colon."""


class Publish(msgspec.Struct, frozen=True):
    """One message to be stored.

    `expect_last` is the last sequence this subject must have (0: none), or, with `expect_filter`, the last
    sequence under that subject filter. `ttl` is in whole seconds. `rollup` keeps only this message of its
    subject ("sub"). `schedule_at` (Unix seconds) with `schedule_target` makes it a message schedule
    (ADR-51); `cancel_schedule` names a schedule subject of the same stream that is purged when this
    message is stored.
    """

    subject: str
    payload: bytes = b""
    headers: Headers = {}
    expect_last: int | None = None
    expect_filter: str | None = None
    ttl: int | None = None
    rollup: bool = False
    msg_id: str | None = None
    schedule_at: float | None = None
    schedule_target: str | None = None
    cancel_schedule: str | None = None


class Ack(msgspec.Struct, frozen=True):
    """What the broker answered to a stored message (for a batch: its last one)."""

    stream: str
    seq: int
    duplicate: bool = False


class Stored(msgspec.Struct, frozen=True):
    """A message as the stream holds it. `time` is the broker's time stamp, Unix seconds."""

    stream: str
    seq: int
    subject: str
    payload: bytes
    headers: Headers
    time: float


class Delivery(msgspec.Struct, frozen=True):
    """A stored message handed to a consumer, waiting for its acknowledgement under `token`."""

    message: Stored
    token: str
    redelivered: bool
    consumer_seq: int
    deliveries: int = 1
    """How often this message was handed out, this time included; of a new consumer, from the beginning."""


@dataclass(frozen=True, slots=True)
class Received:
    """A plain (not stored) message."""

    subject: str
    payload: bytes
    headers: Headers
    reply: str


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """State of a stream.

    `created` is its creation time in Unix nanoseconds (the identity of a stream's life); `now` the broker's
    clock.
    """

    name: str
    created: int
    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    now: float


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """A durable pull consumer with explicit acknowledgement (PROTOCOL 1: ack_wait 1 h, window 10,000,
    max_deliver -1).
    """

    name: str
    filters: tuple[str, ...]
    ack_wait: float = 3600.0
    max_ack_pending: int = 10_000
    inactive_threshold: float | None = None
    max_waiting: int | None = None
    """Requests for messages that may wait at a time; None: the broker's default, 512."""


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """What a consumer has to do now."""

    waiting: int
    """Messages not handed out yet."""
    unacknowledged: int
    """Messages handed out and not acknowledged."""
    requests: int
    """Requests that wait for a message."""


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """A stream as `topology` wants it; compared field by field with what the broker has (drift)."""

    name: str
    subjects: tuple[str, ...]
    retention: str = "limits"  # "limits" | "workqueue"
    discard: str = "old"  # "old" | "new"
    replicas: int = 1
    max_msgs_per_subject: int = -1
    discard_new_per_subject: bool = False
    max_bytes: int = -1
    max_age: float = 0.0
    max_consumers: int = -1
    max_msg_size: int = -1
    duplicate_window: float = 120.0
    transform: tuple[str, str] | None = None  # (source, destination) subject transform
    republish: tuple[str, str] | None = None  # (source, destination), headers only
    allow_schedules: bool = False
    allow_ttl: bool = False
    allow_atomic: bool = False
    allow_rollup: bool = False
    allow_direct: bool = True
    deny_purge: bool = False
    marker_ttl: float | None = None


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """What the account may store, in bytes, and what it stores; consumers per stream. -1: no limit."""

    max_bytes: int
    bytes: int
    max_consumers: int


class Room(Protocol):
    """Whether whoever pulls can take more."""

    def is_full(self) -> bool:
        """Whether nothing more should be asked for now. What was asked for may still come."""

    def when_free(self, again: Callable[[], None]) -> None:
        """Call `again` once, on the loop, when there is room again."""


class Pull(Protocol):
    """A running pull on one consumer."""

    async def stop(self) -> None:
        """Stop asking for messages; what is in the buffer is dropped (unacknowledged).

        Stopping twice is fine.
        """


class Subscription(Protocol):
    """A running plain subscription."""

    async def stop(self) -> None:
        """Unsubscribe. Stopping twice is fine."""


class Broker(Protocol):
    """One connection to the broker. All methods may raise `BrokerClosed` after `close`."""

    async def close(self) -> None:
        """Flush what is buffered and close. Closing twice is fine."""

    @property
    def connected(self) -> bool:
        """Whether the connection is up at this moment."""

    @property
    def max_message(self) -> int:
        """Bytes that the broker takes as one message, headers included."""

    def on_connection(self, listener: Callable[[bool], None]) -> None:
        """Call `listener(True)` after each reconnect, `listener(False)` at each disconnect, on the loop."""

    # writes
    async def publish(self, message: Publish, *, timeout: float = 2.0) -> Ack:
        """Store one message. Raises `WrongLastSequence`, `Refused`, `OutcomeUnknown`."""

    async def publish_batch(self, messages: Sequence[Publish], *, timeout: float = 5.0) -> Ack:
        """Store all messages of one stream, or none (ADR-50).

        `Ack.seq` is the last one's. Raises as `publish`.
        """

    async def delete(self, stream: str, seq: int, *, erase: bool = False) -> bool:
        """Delete one stored message; False when it was not there. Raises `OutcomeUnknown`."""

    async def purge(self, stream: str, subject: str) -> int:
        """Delete all messages under a subject filter (admin rights needed); how many they were."""

    # reads from the stream's leader
    async def read(self, stream: str, seq: int) -> Stored | None:
        """The message with this sequence, or None when it is not stored."""

    async def read_last(self, stream: str, subject: str) -> Stored | None:
        """The newest message of a subject (exact), or None."""

    async def read_next(self, stream: str, subject_filter: str, seq: int) -> Stored | None:
        """The first message under the filter with a sequence of at least `seq`, or None."""

    def scan(
        self, stream: str, subject_filter: str, *, from_seq: int = 1, limit: int | None = None
    ) -> AsyncIterator[Stored]:
        """All messages under the filter in order, in bounded batches.

        From any replica: may lag; not for decisions.
        """

    async def subjects(self, stream: str, subject_filter: str) -> Mapping[str, int]:
        """Subjects under the filter and how many messages each holds (paged inside)."""

    async def stream_info(self, stream: str) -> StreamInfo:
        """State of the stream. Raises `StreamNotFound`."""

    # topology (admin rights)
    async def stream_config(self, stream: str) -> StreamConfig | None:
        """The stream's configuration, or None when there is no such stream."""

    async def create_stream(self, config: StreamConfig) -> None:
        """Create the stream. Raises `Refused`."""

    async def update_stream(self, config: StreamConfig) -> None:
        """Change the stream's configuration. Raises `Refused`."""

    async def account_limits(self) -> AccountLimits:
        """What this account may store. Raises `Refused` when it has no JetStream."""

    # consumers
    async def consumers(self, stream: str) -> Sequence[str]:
        """Names of the stream's consumers."""

    async def create_consumer(self, stream: str, config: ConsumerConfig) -> None:
        """Create the consumer; the same configuration again is fine.

        Raises `Refused` (code 10100: its filter overlaps another's).
        """

    async def delete_consumer(self, stream: str, name: str) -> bool:
        """Delete the consumer; False when there was none."""

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
        """Hand every message of the consumer to `on_message` (sync, on the loop), asking for more as they
        come.

        `on_lost(reason)` is called once, and the pull is over, when order or completeness is in doubt: the
        consumer is gone, a heartbeat was missed twice, the connection was cut, or a gap showed in the
        consumer sequence. The owner then attaches anew. `shared`: the consumer has other readers, whose
        messages are no gap; what gets lost on the way comes again after the consumer's `ack_wait`. `room`: nothing is
        asked for while it is full; at most `batch` messages are on their way then.
        """

    async def ack(self, delivery: Delivery, *, timeout: float = 2.0) -> bool:
        """Acknowledge and wait for the broker's confirmation.

        False: refused (the consumer is gone). Raises `OutcomeUnknown`.
        """

    # consumers that many readers share, one message at a time
    async def fetch(self, stream: str, consumer: str, *, wait: float) -> Delivery | None:
        """One message of a shared consumer, or None when there was none for `wait` seconds.

        What is lost on the way comes again after the consumer's `ack_wait`. Raises `OutcomeUnknown`; `Refused` for no
        such consumer, or when too many readers wait already.
        """

    async def in_progress(self, delivery: Delivery, *, timeout: float = 2.0) -> bool:
        """Say that it is being worked on: `ack_wait` begins anew. As `ack`."""

    async def hand_back(self, delivery: Delivery, delay: float, *, timeout: float = 2.0) -> bool:
        """Give it back: any reader gets it again, not before `delay` seconds. As `ack`."""

    async def consumer_state(self, stream: str, consumer: str) -> ConsumerState | None:
        """What the consumer has to do, or None when there is none."""

    # plain messages
    async def send(self, subject: str, payload: bytes = b"", headers: Headers | None = None) -> None:
        """Publish without storing. Lost without a word when nobody listens."""

    async def request(
        self, subject: str, payload: bytes = b"", headers: Headers | None = None, *, timeout: float = 2.0
    ) -> Received:
        """Send and wait for one reply. Raises `NoResponders`, `OutcomeUnknown`."""

    async def subscribe(
        self, subject: str, on_message: Callable[[Received], Awaitable[None]]
    ) -> Subscription:
        """Receive plain messages on a subject (wildcards allowed)."""

    async def reply(self, message: Received, payload: bytes = b"", headers: Headers | None = None) -> None:
        """Answer a request."""

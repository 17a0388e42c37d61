"""The seam on NATS JetStream: one connection, raw requests, our own pull loop.

nats-py is used for connecting, publishing, subscribing only. Its JetStream and KV layers are not:
`publish_async` never completes when an acknowledgement is lost, `fetch` hangs over a reconnect, watchers
do not recover from a restart, `kv.create` mistakes TTL markers (all tried on 2.16.0). Publishing while
disconnected is refused there (`pending_size=0`), because such a message would otherwise be sent after the
reconnect, when its sender has long given up.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
from nats.aio.msg import Msg
from sojourn.broker import nats_wire as wire
from sojourn.broker.errors import (
    BrokerClosed,
    NoResponders,
    OutcomeUnknown,
    Refused,
    StreamNotFound,
)
from sojourn.broker.nats_connection import NatsConnection
from sojourn.broker.nats_fetch import NatsFetch
from sojourn.broker.nats_options import NatsOptions as NatsOptions
from sojourn.broker.nats_pull import NatsPull
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
    Subscription,
)

SCAN_BATCH = 8_192
"""Messages asked for at once in a scan. After each batch the server counts what is left, which takes it 75 ms with a million records
(nats-server 2.15), and holds up writers meanwhile: in batches of 256 a census of a million took five minutes.
"""
SCAN_BYTES = 16 * 1024 * 1024
"""The same in bytes; two batches are in memory at a time."""
SCAN_SECONDS = 10.0
"""For each answer of a batch."""


class NatsBroker:
    """One connection to NATS. Made by `await NatsBroker.connect(options)`."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._requests = connection.requests
        self._api_prefix = connection.options.api_prefix
        self._pulls: set[NatsPull | NatsFetch] = set()
        connection.on_cut(self._lose_pulls)
        connection.on_denied = self._deny_fetch

    def __repr__(self) -> str:
        connection = self._connection
        state = "closed" if connection.closed else "connected" if self.connected else "disconnected"
        return f"<NatsBroker {connection.options.name} {state} pulls={len(self._pulls)}>"

    @classmethod
    async def connect(cls, options: NatsOptions) -> NatsBroker:
        """Connect within `options.connect_timeout`. Raises `ConnectFailed`."""
        return cls(await NatsConnection.open(options))

    # connection
    @property
    def connected(self) -> bool:
        """Whether the connection is up at this moment."""
        return self._connection.connected

    @property
    def max_message(self) -> int:
        """Bytes that the broker takes as one message, headers included."""
        return self._connection.client.max_payload

    @property
    def requests_sent(self) -> int:
        """Round trips begun in the life of this connection."""
        return self._requests.sent

    @property
    def failed_attempts(self) -> int:
        """Errors of the connection since it was last up."""
        return self._connection.failed_attempts

    def on_connection(self, listener: Callable[[bool], None]) -> None:
        """Call `listener(True)` after each reconnect, `listener(False)` at each disconnect, on the loop."""
        self._connection.on_connection(listener)

    async def close(self) -> None:
        """Flush what is buffered and close. Closing twice is fine."""
        for pull in list(self._pulls):
            await pull.stop()
        await self._connection.close()

    def _lose_pulls(self) -> None:
        for pull in list(self._pulls):
            pull.lose("the connection was cut")

    def _deny_fetch(self, text: str) -> bool:
        return any(pull.deny(text) for pull in self._pulls if isinstance(pull, NatsFetch))

    # writes
    async def publish(self, message: Publish, *, timeout: float = 2.0) -> Ack:
        """Store one message. Raises `WrongLastSequence`, `Refused`, `OutcomeUnknown`."""
        answer = await self._requests.request(
            "publish", message.subject, message.payload, wire.publish_headers(message), timeout
        )
        if answer.headers is not None:
            _refuse_status(answer, "publish", message.subject)
        return wire.parse_ack(answer.data, message)

    async def publish_batch(self, messages: Sequence[Publish], *, timeout: float = 5.0) -> Ack:
        """Store all messages of one stream, or none (ADR-50). `Ack.seq` is the last one's. Raises as
        `publish`.

        All but the last go out without an answer. A connection cut between them leaves an incomplete
        batch, which the server drops whole.
        """
        if len(messages) == 1:
            return await self.publish(messages[0], timeout=timeout)
        batch_id = secrets.token_hex(12)
        last = messages[-1]
        for n, message in enumerate(messages[:-1], 1):
            headers = {
                **(wire.publish_headers(message) or {}),
                "Nats-Batch-Id": batch_id,
                "Nats-Batch-Sequence": str(n),
            }
            self._connection.send("publish", message.subject, message.payload, headers)
        headers = {
            **(wire.publish_headers(last) or {}),
            "Nats-Batch-Id": batch_id,
            "Nats-Batch-Sequence": str(len(messages)),
            "Nats-Batch-Commit": "1",
        }
        answer = await self._requests.request("publish", last.subject, last.payload, headers, timeout)
        if answer.headers is not None:
            _refuse_status(answer, "publish", last.subject)
        return wire.parse_ack(answer.data, last)

    async def delete(self, stream: str, seq: int, *, erase: bool = False) -> bool:
        """Delete one stored message; False when it was not there. Raises `OutcomeUnknown`."""
        subject = f"{self._api_prefix}.STREAM.MSG.DELETE.{stream}"
        answer = await self._api("delete", subject, {"seq": seq, "no_erase": not erase})
        error = answer.get("error")
        if error is None:
            return True
        if error.get("err_code") in (wire.NO_MESSAGE_TO_DELETE, wire.NO_SUCH_SEQUENCE):
            return False
        raise wire.api_error(error, "delete", subject, stream)

    async def purge(self, stream: str, subject: str) -> int:
        """Delete all messages under a subject filter (admin rights needed); how many they were."""
        answer = await self._stream_api("purge", f"STREAM.PURGE.{stream}", {"filter": subject}, stream)
        purged: int = answer.get("purged", 0)
        return purged

    # reads from the stream's leader
    async def read(self, stream: str, seq: int) -> Stored | None:
        """The message with this sequence, or None when it is not stored."""
        return await self._get(stream, {"seq": seq}) if seq > 0 else None

    async def read_last(self, stream: str, subject: str) -> Stored | None:
        """The newest message of a subject (exact), or None."""
        return await self._get(stream, {"last_by_subj": subject})

    async def read_next(self, stream: str, subject_filter: str, seq: int) -> Stored | None:
        """The first message under the filter with a sequence of at least `seq`, or None."""
        return await self._get(stream, {"seq": max(seq, 1), "next_by_subj": subject_filter})

    async def _get(self, stream: str, request: dict[str, Any]) -> Stored | None:
        subject = f"{self._api_prefix}.STREAM.MSG.GET.{stream}"
        answer = await self._api("read", subject, request)
        error = answer.get("error")
        if error is None:
            return wire.parse_stored(stream, answer["message"])
        if error.get("err_code") == wire.NO_MESSAGE_FOUND:
            return None
        raise wire.api_error(error, "read", subject, stream)

    async def scan(
        self, stream: str, subject_filter: str, *, from_seq: int = 1, limit: int | None = None
    ) -> AsyncIterator[Stored]:
        """All messages under the filter in order, in bounded batches. From any replica: not for decisions.

        The next batch is on its way while this one is read.
        """
        left = limit
        asked = self._ask_batch(stream, subject_filter, max(from_seq, 1), left)
        try:
            while asked is not None:
                found, more = await asked
                asked = None
                if left is not None:
                    left -= len(found)
                if found and more:
                    asked = self._ask_batch(stream, subject_filter, _parsed(found[-1]).seq + 1, left)
                for message in found:
                    yield _parsed(message)
        finally:
            if asked is not None:
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)

    def _ask_batch(
        self, stream: str, subject_filter: str, seq: int, left: int | None
    ) -> asyncio.Task[tuple[list[Msg], bool]] | None:
        """Ask for a batch from this sequence; what comes of it, and whether there is more. None: none of it is wanted."""
        if left is not None and left <= 0:
            return None
        request = {
            "seq": seq,
            "next_by_subj": subject_filter,
            "batch": SCAN_BATCH if left is None else min(SCAN_BATCH, left),
            "max_bytes": SCAN_BYTES,
        }
        return asyncio.get_running_loop().create_task(self._batch(stream, request), name=f"scan {stream}")

    async def _batch(self, stream: str, request: Mapping[str, Any]) -> tuple[list[Msg], bool]:
        subject = f"{self._api_prefix}.DIRECT.GET.{stream}"
        *found, end = await self._requests.request_many("scan", subject, orjson.dumps(request), SCAN_SECONDS)
        headers = end.headers or {}
        if headers.get("Status") not in ("204", "404"):
            await self._raise_scan_status(end, subject, stream)
        if found and not wire.is_whole([message.headers or {} for message in (*found, end)]):
            raise OutcomeUnknown("scan", subject, "messages of a batch were lost on their way")
        return found, headers.get("Nats-Num-Pending", "0") != "0"

    async def _raise_scan_status(self, end: Msg, subject: str, stream: str) -> None:
        headers = end.headers or {}
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == "503":  # nobody serves direct gets of it: there is no such stream, or not at the moment
            await self.stream_info(stream)
            raise OutcomeUnknown("scan", subject, f"no replica of `{stream}` answers")
        raise Refused(int(status or 0), text, subject)

    async def subjects(self, stream: str, subject_filter: str) -> Mapping[str, int]:
        """Subjects under the filter and how many messages each holds (paged inside)."""
        found: dict[str, int] = {}
        seen = 0
        while True:
            request = {"subjects_filter": subject_filter, "offset": seen}
            answer = await self._info("subjects", f"STREAM.INFO.{stream}", stream, request)
            page = answer["state"].get("subjects") or {}
            found.update(page)
            seen += len(page)
            if not page or seen >= answer.get("total", 0):
                return found

    async def stream_info(self, stream: str) -> StreamInfo:
        """State of the stream. Raises `StreamNotFound`."""
        return wire.parse_stream_info(await self._info("stream_info", f"STREAM.INFO.{stream}", stream))

    # topology
    async def stream_config(self, stream: str) -> StreamConfig | None:
        """The stream's configuration, or None when there is no such stream."""
        try:
            answer = await self._info("stream_config", f"STREAM.INFO.{stream}", stream)
        except StreamNotFound:
            return None
        return wire.stream_from_json(answer["config"])

    async def create_stream(self, config: StreamConfig) -> None:
        """Create the stream. Raises `Refused`."""
        request = wire.stream_to_json(config)
        await self._stream_api("create_stream", f"STREAM.CREATE.{config.name}", request, config.name)

    async def update_stream(self, config: StreamConfig) -> None:
        """Change the stream's configuration. Raises `Refused`."""
        request = wire.stream_to_json(config)
        await self._stream_api("update_stream", f"STREAM.UPDATE.{config.name}", request, config.name)

    async def account_limits(self) -> AccountLimits:
        """What this account may store. Raises `Refused` when it has no JetStream."""
        answer = await self._stream_api("account_limits", "INFO", None, "")
        return AccountLimits(
            answer["limits"]["max_storage"], answer["storage"], answer["limits"]["max_consumers"]
        )

    # consumers
    async def consumers(self, stream: str) -> Sequence[str]:
        """Names of the stream's consumers."""
        names: list[str] = []
        while True:
            request = {"offset": len(names)}
            answer = await self._stream_api("consumers", f"CONSUMER.NAMES.{stream}", request, stream)
            page = answer.get("consumers") or []
            names.extend(page)
            if not page or len(names) >= answer.get("total", 0):
                return names

    async def create_consumer(self, stream: str, config: ConsumerConfig) -> None:
        """Create the consumer; the same configuration again is fine.

        Raises `Refused` (10100: filters overlap).
        """
        request = wire.consumer_to_json(stream, config)
        api = f"CONSUMER.CREATE.{stream}.{config.name}"
        await self._stream_api("create_consumer", api, request, stream, timeout=5.0)

    async def delete_consumer(self, stream: str, name: str) -> bool:
        """Delete the consumer; False when there was none."""
        try:
            await self._stream_api(
                "delete_consumer", f"CONSUMER.DELETE.{stream}.{name}", None, stream, timeout=5.0
            )
        except Refused as error:
            if error.code == wire.CONSUMER_NOT_FOUND:
                return False
            raise
        return True

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
        """Hand every message of the consumer to `on_message`; see `nats_pull`.

        Raises `Refused` for no such consumer.
        """
        answer = await self._info("pull", f"CONSUMER.INFO.{stream}.{consumer}", stream)
        options = self._connection.options
        pull = NatsPull(
            self._connection.client,
            stream,
            consumer,
            on_message,
            on_lost,
            batch=batch,
            last_seq=None if shared else answer["delivered"]["consumer_seq"],
            on_over=self._pulls.discard,
            api_prefix=self._api_prefix,
            heartbeat=options.heartbeat,
            room=room,
        )
        self._pulls.add(pull)
        await pull.begin(f"{options.inbox_prefix}.{secrets.token_hex(8)}")
        return pull

    async def ack(self, delivery: Delivery, *, timeout: float = 2.0) -> bool:
        """Acknowledge and wait for the broker's confirmation.

        False: the consumer is gone. Raises `OutcomeUnknown`.
        """
        return await self._answer_delivery("ack", delivery, b"", timeout)

    # consumers that many readers share
    async def fetch(self, stream: str, consumer: str, *, wait: float) -> Delivery | None:
        """One message of a shared consumer, or None when there was none for `wait` seconds; see `nats_fetch`."""
        if self._connection.closed:
            raise BrokerClosed("fetch")
        options = self._connection.options
        fetch = NatsFetch(
            self._connection.client,
            stream,
            consumer,
            on_over=self._pulls.discard,
            api_prefix=self._api_prefix,
        )
        self._pulls.add(fetch)
        return await fetch.run(f"{options.inbox_prefix}.{secrets.token_hex(8)}", wait)

    async def in_progress(self, delivery: Delivery, *, timeout: float = 2.0) -> bool:
        """Say that it is being worked on. False: the consumer is gone. Raises `OutcomeUnknown`."""
        return await self._answer_delivery("in_progress", delivery, b"+WPI", timeout)

    async def hand_back(self, delivery: Delivery, delay: float, *, timeout: float = 2.0) -> bool:
        """Give it back, to come again after `delay` seconds. False: the consumer is gone. Raises `OutcomeUnknown`."""
        body = b"-NAK " + orjson.dumps({"delay": round(delay * 1e9)})
        return await self._answer_delivery("hand_back", delivery, body, timeout)

    async def consumer_state(self, stream: str, consumer: str) -> ConsumerState | None:
        """What the consumer has to do, or None when there is none."""
        try:
            found = await self._info("consumer_state", f"CONSUMER.INFO.{stream}.{consumer}", stream)
        except Refused as error:
            if error.code == wire.CONSUMER_NOT_FOUND:
                return None
            raise
        return ConsumerState(found["num_pending"], found["num_ack_pending"], found["num_waiting"])

    async def _answer_delivery(
        self, operation: str, delivery: Delivery, payload: bytes, timeout: float
    ) -> bool:
        answer = await self._requests.request(operation, delivery.token, payload, None, timeout)
        return not (answer.headers and "Status" in answer.headers)

    # plain messages
    async def send(self, subject: str, payload: bytes = b"", headers: Headers | None = None) -> None:
        """Publish without storing. Lost without a word when nobody listens. Raises `OutcomeUnknown`."""
        self._connection.send("send", subject, payload, wire.encode_headers(headers or {}))

    async def request(
        self, subject: str, payload: bytes = b"", headers: Headers | None = None, *, timeout: float = 2.0
    ) -> Received:
        """Send and wait for one reply. Raises `NoResponders`, `OutcomeUnknown`."""
        answer = await self._requests.request(
            "request", subject, payload, wire.encode_headers(headers or {}), timeout
        )
        if answer.headers and answer.headers.get("Status") == "503":
            raise NoResponders(subject)
        return _received(answer)

    async def subscribe(
        self, subject: str, on_message: Callable[[Received], Awaitable[None]]
    ) -> Subscription:
        """Receive plain messages on a subject (wildcards allowed)."""

        async def deliver(message: Msg) -> None:
            await on_message(_received(message))

        return await self._connection.subscribe(subject, deliver)

    async def reply(self, message: Received, payload: bytes = b"", headers: Headers | None = None) -> None:
        """Answer a request; a message that asked for no reply gets none."""
        if message.reply:
            self._connection.send("reply", message.reply, payload, wire.encode_headers(headers or {}))

    # inside
    async def _api(
        self, operation: str, subject: str, request: dict[str, Any] | None, timeout: float = 2.0
    ) -> wire.Json:
        payload = orjson.dumps(request) if request is not None else b""
        answer = await self._requests.request(operation, subject, payload, None, timeout)
        if answer.headers is not None:
            _refuse_status(answer, operation, subject)
        return wire.parse_answer(answer.data, operation, subject)

    async def _info(
        self, operation: str, api: str, stream: str, request: dict[str, Any] | None = None
    ) -> wire.Json:
        """What the leader of a stream or consumer says of it. Raises `OutcomeUnknown` for another replica's answer."""
        answer = await self._stream_api(operation, api, request, stream)
        if wire.knows_no_leader(answer):
            raise OutcomeUnknown(
                operation, f"{self._api_prefix}.{api}", "a replica answered that knows no leader"
            )
        return answer

    async def _stream_api(
        self,
        operation: str,
        api: str,
        request: dict[str, Any] | None,
        stream: str,
        timeout: float = 2.0,
    ) -> wire.Json:
        subject = f"{self._api_prefix}.{api}"
        answer = await self._api(operation, subject, request, timeout)
        error = answer.get("error")
        if error is not None:
            raise wire.api_error(error, operation, subject, stream)
        return answer


def _parsed(message: Msg) -> Stored:
    return wire.parse_direct(message.headers or {}, message.data)


def _received(message: Msg) -> Received:
    return Received(message.subject, message.data, message.headers or {}, message.reply)


def _refuse_status(answer: Msg, operation: str, subject: str) -> None:
    """An answer that is a status: 503 means that nobody serves the subject now."""
    status = (answer.headers or {}).get("Status")
    if status == "503":
        raise OutcomeUnknown(operation, subject, "nobody serves it now: no such stream, or it has no leader")


if TYPE_CHECKING:
    _is_a_broker: type[Broker] = NatsBroker

"""Sees every message of a stream as it is stored, also those that are rolled up a moment later.

A look at a bucket shows what is there, but a record is sealed within milliseconds of its actor's end, and the seal rolls its history up. So
the witness has the server push each message to it, in memory and without acknowledgements, and begins anew behind the last one whenever
order or completeness is in doubt: a gap in the consumer's sequence, a heartbeat that did not come, a lost connection. What was rolled up
while nobody pushed stays unseen; `unseen` says how the numbers of such messages can be told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import nats
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from sojourn.broker.nats_wire import parse_delivery
from sojourn.broker.seam import Stored

HEARTBEAT_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 3.5
AGAIN_SECONDS: Final = 0.3


class Witness:
    """Of one stream. `run` it as a task."""

    def __init__(
        self,
        urls: Sequence[str],
        stream: str,
        subject_filter: str,
        on_message: Callable[[Stored], None],
    ) -> None:
        self._urls = list(urls)
        self._stream = stream
        self._filter = subject_filter
        self._on_message = on_message
        self._seen: list[int] = []
        self._last = 0
        self._expected = 1
        self._broken = asyncio.Event()
        self._heard = 0.0
        self.defects: list[str] = []
        """Errors that are no disturbance of the connection: the harness's own."""
        self.restarts = 0

    @property
    def last(self) -> int:
        """Sequence of the newest message seen."""
        return self._last

    def unseen(self) -> list[int]:
        """Sequences that were stored and never pushed, of this filter or of other subjects, in order."""
        seen = set(self._seen)
        return [seq for seq in range(1, self._last) if seq not in seen]

    async def run(self) -> None:
        """Follow the stream until cancelled."""
        connection = await nats.connect(
            self._urls,
            name="witness",
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            error_cb=self._error,
            reconnected_cb=self._reconnected,
        )
        try:
            while True:
                with suppress(NatsError, TimeoutError, OSError):
                    await self._follow(connection)
                self.restarts += 1
                if not self._broken.is_set():
                    await asyncio.sleep(AGAIN_SECONDS)
        finally:
            with suppress(NatsError):
                await connection.close()

    async def _follow(self, connection: Any) -> None:
        self._broken.clear()
        self._expected = 1
        inbox = connection.new_inbox()
        subscription = await connection.subscribe(inbox, cb=self._receive)
        try:
            await connection.jetstream(timeout=3.0).add_consumer(
                self._stream,
                ConsumerConfig(
                    deliver_subject=inbox,
                    filter_subject=self._filter,
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=self._last + 1,
                    ack_policy=AckPolicy.NONE,
                    idle_heartbeat=HEARTBEAT_SECONDS,
                    inactive_threshold=30.0,
                    mem_storage=True,
                    num_replicas=1,
                ),
            )
            self._heard = time.monotonic()
            while not self._broken.is_set() and time.monotonic() - self._heard < SILENT_SECONDS:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._broken.wait(), 0.5)
        finally:
            with suppress(NatsError):
                await subscription.unsubscribe()

    async def _error(self, error: Exception) -> None:
        if not isinstance(error, NatsError | OSError | TimeoutError):
            self.defects.append(f"the witness: {error!r}")

    async def _reconnected(self) -> None:
        self._broken.set()  # the consumer is in the memory of a server that may have been another one

    async def _receive(self, message: Any) -> None:
        self._heard = time.monotonic()
        if not message.reply or not message.reply.startswith("$JS.ACK."):
            return  # a heartbeat
        stream, _, seq, consumer_seq, at = parse_delivery(message.reply)
        if consumer_seq != self._expected or self._broken.is_set():
            self._broken.set()
            return
        self._expected += 1
        self._last = seq
        self._seen.append(seq)
        self._on_message(Stored(stream, seq, message.subject, message.data, {}, at / 1e9))

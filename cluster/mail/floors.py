"""Which stored messages are surely gone: what lets an origin leave an actor's consumed set (PROTOCOL 4.4).

A confirmed acknowledgement proves nothing for ever: after the loss of a stream's leader, confirmed messages came back. What a leader read
shows as gone did not. One read per second, partition and stream (the first message still stored under the partition's filter: its
*floor*) answers for all actors; a read by sequence answers for one message above the floor.

That a source is gone lets its origin leave a consumed set only if no held copy exists, and an owner knows of the copies that it made or
listed. A later owner may have moved the event, and then acknowledged the source. It writes its fence before it moves anything: while the
fence, read *after* the sources, is not a later owner's, what was read as gone was not moved by one. Only then does `may_leave` count on it.

A message that is gone may still lie in this client's buffer. `is_gone` is therefore asked for every delivery too, and a message that is
gone never becomes an event again.

With three replicas a *new* consumer delivers what is gone, too: its leader may be a server that was away, and hands out what its own
copy of the stream still has (tried: messages acknowledged minutes before). What was stored before the consumer was made is `old`, and
whether it is still stored is read before it is taken for an event. What came later nobody else can have acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from sojourn.broker.absence import PATIENCE_SECONDS, read_next_surely, read_surely, state_reaching
from sojourn.broker.errors import BrokerError
from sojourn.broker.seam import Broker, Stored
from sojourn.codecs.record import Origin

MAX_EXACT: Final = 20_000
"""Single messages above a floor that are remembered as gone. At the bound, nothing above the floor is pruned for a while."""


class Floors:
    """The floors of one partition's three ingress streams. Used on the engine's loop only."""

    def __init__(
        self,
        broker: Broker,
        streams: Mapping[str, tuple[str, str]],
        created: Mapping[str, int],
        *,
        is_last_owner: Callable[[], Awaitable[bool]] | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`streams`: short name ("mail", "ctl", "wake") to stream name and the partition's filter. `created`: identity of each.
        `is_last_owner` reads whether no later owner has been here; None: nobody moves events but who asks. `patience`: see
        `broker.absence`.
        """
        self._patience = patience
        self._broker = broker
        self._streams = dict(streams)
        self._created = dict(created)
        self._is_last_owner = is_last_owner
        self._floors = dict.fromkeys(streams, 0)
        self._seen = dict.fromkeys(streams, 0)
        self._exact: set[Origin] = set()
        self._own_floors = dict(self._floors)
        self._own_exact: frozenset[Origin] = frozenset()
        """Floors and single messages at the last time when no later owner had been here."""
        self._old = dict.fromkeys(streams, 0)
        """The last message of each stream that may have been there before the consumer was made."""
        self._touched: set[str] = set(streams)
        self._refreshing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        floors = " ".join(f"{name}={floor}" for name, floor in self._floors.items())
        return f"<Floors {floors} above={len(self._exact)}>"

    def stream(self, name: str) -> str:
        """The stream's full name."""
        return self._streams[name][0]

    def saw(self, origin: Origin) -> None:
        """A message with this origin was delivered: the stream is at least that long."""
        if origin.seq > self._seen[origin.stream]:
            self._seen[origin.stream] = origin.seq

    async def begin(self) -> None:
        """New consumers were made: what is stored by now may have been acknowledged before. Raises as `stream_info`."""
        if self._patience:  # with one server a consumer has the stream's own messages
            infos = await asyncio.gather(
                *(self._broker.stream_info(name) for name, _ in self._streams.values())
            )
            self._old = {name: info.last_seq for name, info in zip(self._streams, infos, strict=True)}

    def is_old(self, origin: Origin) -> bool:
        """Whether the message may have been stored before this owner's consumer was made: delivered, it may be gone all the same."""
        return origin.seq <= self._old[origin.stream]

    def is_gone(self, origin: Origin) -> bool:
        """Whether the message is known to be no longer stored in its stream."""
        return (
            origin.created == self._created[origin.stream] and origin.seq < self._floors[origin.stream]
        ) or origin in self._exact

    def may_leave(self, origin: Origin) -> bool:
        """Whether the message is gone, and not because a later owner moved it: its origin may leave a consumed set if no held copy is
        known.
        """
        return (
            origin.created == self._created[origin.stream] and origin.seq < self._own_floors[origin.stream]
        ) or origin in self._own_exact

    async def prove(self) -> None:
        """Find out whether what is known to be gone may leave consumed sets. Raises `BrokerError`."""
        floors, exact = dict(self._floors), frozenset(self._exact)
        if self._is_last_owner is None or await self._is_last_owner():
            self._own_floors, self._own_exact = floors, exact

    def touch(self, stream: str) -> None:
        """Something was acknowledged: the floor may have risen."""
        self._touched.add(stream)

    async def refresh(self) -> None:
        """Read the floors of the streams in which something was acknowledged since the last time. Callers at the same time share."""
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(self._refreshed)
        await asyncio.shield(self._refreshing)

    async def stored(self, origin: Origin) -> bool:
        """Whether the message is stored in its stream now (leader read). Raises as `Broker.read`."""
        if self.is_gone(origin):
            return False
        if origin.created != self._created[origin.stream]:
            return False
        if await self._read(origin) is not None:
            return True
        if len(self._exact) < MAX_EXACT:
            self._exact.add(origin)
        return False

    async def was_there(self, origin: Origin) -> bool:
        """Whether the message was stored once and is no more, for somebody outside, who may name any. Nothing is remembered of it: one
        that is still to come would be taken for gone, and dropped. Raises as `Broker.read`.
        """
        name, seq = origin.stream, origin.seq
        if origin.created != self._created[name] or seq < 1:
            return False
        if seq > self._seen[name] and seq > (await self._broker.stream_info(self.stream(name))).last_seq:
            return False
        return self.is_gone(origin) or await self._read(origin) is None

    async def ends(self) -> tuple[Origin, ...]:
        """The last messages of the two streams that carry mail, whoever they are for. Raises as `stream_info`."""
        mail, ctl = await asyncio.gather(
            *(self._broker.stream_info(self.stream(name)) for name in ("mail", "ctl"))
        )
        return (Origin("mail", mail.created, mail.last_seq), Origin("ctl", ctl.created, ctl.last_seq))

    async def storage_went_back(self, origins: Iterable[Origin]) -> str:
        """Why a stream cannot be the one that these origins were consumed from; empty when it can (I8). Raises as `stream_info`."""
        highest: dict[str, int] = {}
        for origin in origins:
            if origin.created != self._created[origin.stream]:
                return (
                    f"an event was consumed from a {origin.stream} stream created at {origin.created}, "
                    f"the present one was created at {self._created[origin.stream]}"
                )
            highest[origin.stream] = max(highest.get(origin.stream, 0), origin.seq)
        for name, seq in highest.items():
            if seq > self._seen[name]:
                state = await state_reaching(self._broker, self.stream(name), seq, patience=self._patience)
                self._seen[name] = max(self._seen[name], state.last_seq)
            if seq > self._seen[name]:
                return (
                    f"event {seq} was consumed from the {name} stream, which now ends at {self._seen[name]}"
                )
        return ""

    async def _read(self, origin: Origin) -> Stored | None:
        return await read_surely(
            self._broker, self.stream(origin.stream), origin.seq, patience=self._patience
        )

    async def _refresh(self) -> None:
        touched, self._touched = self._touched, set()
        for name in touched:
            stream, subject_filter = self._streams[name]
            # Sampled before the read: an empty answer then speaks for everything up to here.
            seen = self._seen[name]
            at = max(1, self._floors[name])
            try:
                if seen < at:  # nothing is above it that could be gone
                    first = await self._broker.read_next(stream, subject_filter, at)
                else:
                    first = await read_next_surely(
                        self._broker, stream, subject_filter, at, seen=seen, patience=self._patience
                    )
            except BrokerError:
                self._touched.add(name)
                continue
            floor = first.seq if first is not None else seen + 1
            self._floors[name] = max(self._floors[name], floor)
        self._exact = {origin for origin in self._exact if not origin.seq < self._floors[origin.stream]}
        if touched:
            try:
                await self.prove()
            except BrokerError:
                self._touched |= touched

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled():
            task.exception()

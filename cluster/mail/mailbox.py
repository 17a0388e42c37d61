"""The events of one actor that are in its owner's memory, and everything that may be done with one short of a commit.

An event leaves by exactly one door: consumed by a commit and acknowledged when the record is clean, moved to HELD, without effect, or dead.
The last two are decided on a leader read of the record, and a dead letter is written only if the event is still stored *after* that read
(PROTOCOL 4.3): an older owner may have consumed it in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from sojourn.actors.events import Decision, Event, Verdict
from sojourn.broker.dead import DeadLettered
from sojourn.broker.seam import Delivery
from sojourn.codecs.record import Origin, Record

from .arrivals import Unparsable, held_arrival
from .mailroom import Arrival, HeldOf, HeldRef, Item, Phase

if TYPE_CHECKING:
    from sojourn.cluster.hosting.serving import Serving

UNKNOWN_SECONDS: Final = 3600.0
"""How long mail for an actor that has no record is kept (signal before start)."""
UNKNOWN_EVENTS: Final = 10_000
"""Held mails of one partition for actors that have no record; further ones are dead at once."""
MOVE_AFTER_SECONDS: Final = 10.0
MOVE_OVER: Final = 64
"""Mail waits in memory at most this long, and at most this many per actor (4.2)."""
FULL_SECONDS: Final = 30.0
"""How long an event that the dead letters have no room for waits until it is tried again."""
FETCH: Final = 8
"""Held mails of one channel that are read at a time."""
READS: Final = 64
"""Leader reads of one actor's sources in flight."""
SWEEP: Final = 64
"""Held events of an ended or unknown actor that are read at a time."""


class Fetched(Enum):
    """What came of reading held events; of several, the last of these."""

    NOTHING = 0
    ADDED = 1
    GONE = 2
    """One that the record waits for is not stored: somebody else has taken it, and the record is not the newest."""


class Mailbox:
    """Items of one actor by origin. Used by its host only, on the engine's loop."""

    def __init__(self, serving: Serving, actor: str) -> None:
        self._serving = serving
        self._actor = actor
        self._items: dict[Origin, Item] = {}
        self._deleting: set[int] = set()
        """Held copies whose deletion is under way."""

    def __repr__(self) -> str:
        held = len(self._serving.held.of(self._actor))
        return f"<Mailbox of {self._actor}: {len(self._items)} loaded, {held} held>"

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(tuple(self._items.values()))

    # ---- in

    def deliver(self, event: Event, parsed: Arrival, delivery: Delivery) -> None:
        """An event came, or came again: a second copy only renews what must be acknowledged."""
        item = self._items.get(event.origin)
        if item is None:
            now = self._serving.services.monotonic()
            item = self._items[event.origin] = Item(event, parsed, delivery.message, now)
            ref = self._serving.held.get(self._actor, event.origin)
            item.held_seq = ref.seq if ref is not None else None
        if item.delivery is None:
            self._serving.unacknowledged += 1
        item.delivery = delivery
        if item.held_seq is not None and item.phase is Phase.WAITING:
            self._acknowledge(item)  # it was moved; only its source's acknowledgement was missing

    def get(self, origin: Origin) -> Item:
        """The item of a loaded event."""
        return self._items[origin]

    def holds_only(self, consumed: Container[Origin]) -> bool:
        """Whether every event in memory is among these."""
        return all(origin in consumed for origin in self._items)

    def events(self) -> list[Event]:
        """Events to be decided on. While a move is unsettled no mail is among them (4.2), and nothing that may be stale."""
        now = self._serving.services.monotonic()
        moving = any(item.phase is Phase.MOVING for item in self._items.values())
        return [
            item.event
            for item in self._items.values()
            if item.phase is Phase.WAITING
            and not (moving and item.event.kind == "mail")
            and item.not_before <= now
            and not self._is_doubtful(item)
        ]

    def has(self, origin: Origin) -> bool:
        """Whether a copy of the event is known to be stored: in hand, or in HELD."""
        item = self._items.get(origin)
        return (item is not None and item.delivery is not None) or self._serving.held.has(self._actor, origin)

    async def fetch_held(self, record: Record | None, now: float) -> Fetched:
        """Read the held events that could be used now, each from the leader. Raises `BrokerError`.

        Reading them after the record is the second look that the load asks for: another owner may have deleted them meanwhile.
        """
        held = self._serving.held.of(self._actor)
        if not held.others and not held.mail:
            return Fetched.NOTHING
        wanted = _wanted(held, record, now, self._items)
        if not wanted:
            return Fetched.NOTHING
        found = await asyncio.gather(*(self._fetch(origin, ref) for origin, ref in wanted))
        return max(found, key=lambda one: one.value)

    async def _fetch(self, origin: Origin, ref: HeldRef) -> Fetched:
        services = self._serving.services
        held = await services.held.event(ref.seq)
        if held is None:
            self._serving.held.remove(self._actor, origin)
            return Fetched.GONE
        if origin in self._items:
            return Fetched.NOTHING
        found = held_arrival(held, services)
        if isinstance(found, Unparsable):
            # It was parsed when it was delivered; a newer Sojourn wrote it, and will read it.
            return Fetched.NOTHING
        event, parsed, stored = found
        self._items[origin] = Item(event, parsed, stored, services.monotonic(), held_seq=ref.seq)
        return Fetched.ADDED

    async def drop_stale(self) -> None:
        """Forget what a new consumer delivered although it is stored no more (`Floors.is_old`). Raises `BrokerError`.

        The record was read before: whoever consumed such an event may have let its origin leave the consumed set.
        """
        floors = self._serving.floors
        doubtful = [item for item in self._items.values() if self._is_doubtful(item)]
        for start in range(0, len(doubtful), READS):
            part = doubtful[start : start + READS]
            there = await asyncio.gather(*(floors.stored(item.origin) for item in part))
            for item, stored in zip(part, there, strict=True):
                item.seen_stored = stored
                if not stored and self._items.get(item.origin) is item:
                    self._remove(item.origin)

    def _is_doubtful(self, item: Item) -> bool:
        return (
            not item.seen_stored
            and item.delivery is not None
            and item.held_seq is None
            and item.phase is Phase.WAITING
            and self._serving.floors.is_old(item.origin)
        )

    # ---- out: consumed

    def release_consumed(self, consumed: Iterable[Origin]) -> bool:
        """The record is clean: acknowledge what it consumed, wherever its copies are. Whether there was anything to do."""
        found = False
        for origin in consumed:
            item = self._items.get(origin)
            if item is not None:
                if item.phase is Phase.WAITING:
                    self.settle(item)
                    found = True
            elif (ref := self._serving.held.get(self._actor, origin)) is not None:
                self._delete_held(origin, ref.seq)
                found = True
        return found

    def drop_gone(self, gone: Iterable[Origin]) -> None:
        """Nothing of these events is stored any more: nothing of them stays in memory either (4.4)."""
        for origin in gone:
            self._remove(origin)

    def settle(self, item: Item) -> None:
        """The event is decided for good: delete every copy of it."""
        item.phase = Phase.SETTLING
        if item.delivery is not None:
            self._acknowledge(item)
        elif item.held_seq is not None:
            self._delete_held(item.origin, item.held_seq)
        else:
            self._remove(item.origin)

    def _acknowledge(self, item: Item) -> None:
        delivery = item.delivery
        if delivery is None:
            return

        def confirmed() -> None:
            if self._items.get(item.origin) is not item or item.delivery is not delivery:
                return
            self._serving.floors.touch(item.origin.stream)
            self._let_go(item)
            if item.phase is Phase.SETTLING and item.held_seq is not None:
                self._delete_held(item.origin, item.held_seq)
            else:
                self._remove(item.origin)
            self._serving.services.fault("after_ack", self._actor)

        self._serving.acks.acknowledge(delivery, confirmed)

    def _delete_held(self, origin: Origin, seq: int) -> None:
        if seq in self._deleting:
            return
        self._deleting.add(seq)

        def confirmed() -> None:
            self._deleting.discard(seq)
            self._serving.held.remove(self._actor, origin)
            self._remove(origin)

        self._serving.acks.delete(seq, confirmed)

    def _let_go(self, item: Item) -> None:
        if item.delivery is not None:
            item.delivery = None
            self._serving.unacknowledged -= 1

    def _remove(self, origin: Origin) -> None:
        item = self._items.pop(origin, None)
        if item is not None:
            self._let_go(item)
            if not self._items:
                self._serving.hosts.emptied(self._actor)

    # ---- out: no effect, dead

    async def refuse(
        self, item: Item, decision: Decision, tell: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """End an event that changes nothing, after a leader read of the record agreed. `tell` runs once it is known to be dead and
        before it is acknowledged. Raises `BrokerError`.
        """
        if self._items.get(item.origin) is not item:
            return  # a new attach brings it again
        if decision.verdict is Verdict.DEAD:
            if not await self._bury(item, decision.reason):
                return
            if tell is not None:
                await tell()
        if decision.verdict is Verdict.NO_EFFECT:
            self._serving.services.meter.count("events_without_effect", kind=item.event.kind)
        if self._items.get(item.origin) is item:
            self.settle(item)

    async def _bury(self, item: Item, reason: str) -> bool:
        """Write the dead letter; False when the event is not stored any more, or has to stay where it is."""
        services = self._serving.services
        held = item.held_seq is not None and await services.held.stored(item.held_seq)
        if not held and not await self._serving.floors.stored(item.origin):
            self._serving.held.remove(self._actor, item.origin)
            self._remove(item.origin)
            return False
        label, _, detail = reason.partition(": ")
        written = await services.dead.write(item.origin, item.stored, label, detail, time=item.event.time)
        if written is DeadLettered.FULL:
            item.not_before = services.monotonic() + FULL_SECONDS
            return False
        if written is DeadLettered.DROPPED:
            services.meter.count("dead_letters_dropped", reason=label)
        else:
            services.meter.count("dead_letters", reason=label)
        services.fault("dead_stored", self._actor)
        return True

    # ---- out: moved

    def overdue(self, waiting: list[Item], now: float, *, at_once: bool) -> list[Item]:
        """Which of the waiting items have to move to HELD: all of them, in order of origin per channel, or none."""
        loose = [
            item
            for item in waiting
            if item.held_seq is None and item.delivery is not None and item.phase is Phase.WAITING
        ]
        if not loose:
            return []
        oldest = min(item.arrived for item in loose)
        if at_once or now - oldest >= MOVE_AFTER_SECONDS or len(loose) > MOVE_OVER:
            return sorted(loose, key=lambda item: item.origin)
        return loose[:0]

    def moved(self, item: Item, ref: HeldRef) -> None:
        """The mover stored the event: acknowledge its source."""
        self._serving.held.add(self._actor, item.origin, ref)
        if self._items.get(item.origin) is item:
            item.held_seq = ref.seq
            item.phase = Phase.WAITING
            self._acknowledge(item)

    def full(self, item: Item) -> None:
        """HELD has no room for this event. Mail is dead; an event that the actor needs to go on stays in memory and tries again."""
        if self._items.get(item.origin) is item:
            item.phase = Phase.WAITING
            if item.event.kind == "mail":
                item.homeless = True
            else:
                item.not_before = self._serving.services.monotonic() + FULL_SECONDS

    # ---- all at once

    def park(self) -> None:
        """Forget the payloads of what is in HELD only; the index keeps where it is."""
        for origin, item in tuple(self._items.items()):
            if item.delivery is None and item.held_seq is not None and item.phase is Phase.WAITING:
                del self._items[origin]

    def reread(self) -> None:
        """The record was read anew: forget what has a held copy, which is read after the record.

        Also what was delivered beside it, whose acknowledgement is under way: whoever consumed the held copy may have forgotten it.
        """
        for origin, item in tuple(self._items.items()):
            item.seen_stored = False
            if item.held_seq is not None and item.phase is Phase.WAITING:
                if item.delivery is not None:
                    self._serving.floors.touch(origin.stream)
                    self._let_go(item)
                del self._items[origin]

    def clear(self) -> None:
        """A new attach brings everything again: forget it all."""
        self._deleting.clear()  # given up with the acknowledgements
        for item in self._items.values():
            self._let_go(item)
        self._items.clear()


def _wanted(
    held: HeldOf, record: Record | None, now: float, loaded: Container[Origin]
) -> list[tuple[Origin, HeldRef]]:
    """The held events that the actor's record could use now and that are not loaded: all that is no mail, the earliest of each channel.

    Of what is to be swept those that are loaded count: no more is in memory at a time, and the next are read when these are gone.
    """
    if record is None:
        pairs = (p for p in held if not p[1].is_mail or now - p[1].time >= UNKNOWN_SECONDS)
        return [pair for pair in islice(pairs, SWEEP) if pair[0] not in loaded]
    consumed = record.envelope.consumed
    if record.index.status.ended:
        pairs = (pair for pair in held if pair[0] not in consumed)
        return [pair for pair in islice(pairs, SWEEP) if pair[0] not in loaded]
    others = [pair for pair in held.others.items() if pair[0] not in consumed and pair[0] not in loaded]
    if record.envelope.hold is not None:
        return [pair for pair in others if pair[1].kind == "ctl"]
    if ends := record.envelope.ends:
        pairs = (pair for refs in held.mail.values() for pair in _up_to(ends, refs))
        others += (pair for pair in islice(pairs, SWEEP) if pair[0] not in loaded)
    for channel in {
        name for wait in record.envelope.waits if wait.kind == "receive" for name in wait.channels
    }:
        mail = (pair for pair in held.mail.get(channel, {}).items() if pair[0] not in consumed)
        # Those that are loaded count: what is fetched here is always the channel's earliest.
        others += (pair for pair in islice(mail, FETCH) if pair[0] not in loaded)
    return others


def _up_to(ends: Iterable[Origin], refs: Mapping[Origin, HeldRef]) -> Iterator[tuple[Origin, HeldRef]]:
    """Mail of one channel that was sent to an earlier run: the first, as long as it is."""
    return takewhile(lambda pair: any(pair[0].is_up_to(end) for end in ends), refs.items())

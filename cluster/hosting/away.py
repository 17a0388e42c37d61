"""The partition owner's side of an actor that is on a lane (PROTOCOL 8).

Another node runs the actor and writes its record; what stays here is what only the owner of the partition may do: its events
come here, are moved to HELD in order, and acknowledged; after every move the lane's nodes are nudged. What needs no pin is done
here too: `terminate`, the end of the grace period, and taking the actor off a lane whose deployment has no nodes left.

Nothing is decided on the record in memory without a leader read, because the lane node changes it all the time. An event is moved
only if its source is still stored, read after it was delivered: the lane node forgets a consumed event once its source is gone
and no held copy is there, so a copy of one that is gone must never be made (a message may lie in this client's buffer a second
time).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from sojourn.actors.decide import grace_timers
from sojourn.actors.events import Decision, Verdict
from sojourn.broker.subjects import ActorId
from sojourn.cluster.mail.mailroom import Item, Phase

if TYPE_CHECKING:
    from sojourn.cluster.mail.mailbox import Mailbox
    from sojourn.codecs.record import Record

    from .hot_cache import Hot
    from .known_record import KnownRecord
    from .serving import Serving
    from .turner import Turner

LOOK_SECONDS: Final = (15.0, 300.0)
"""First and longest pause between two looks at an actor whose held events nobody took: a nudge either way may be lost."""
LIST_OVER: Final = 64
"""Held events of one actor beyond which those that the lane node has taken are sought out."""
READS: Final = 64
"""Leader reads of one actor's sources in flight."""

Refuse: TypeAlias = "Callable[[Hot, list[tuple[Item, Decision]]], Awaitable[bool]]"
"""The host's way to end events without effect."""


@dataclass(frozen=True, slots=True)
class Look:
    """When an actor on a lane is looked at again, in local monotonic seconds, and how long that pause is."""

    at: float
    pause: float


class Away:
    """See the module. One per actor on a lane; used by its host's loop only."""

    def __init__(
        self, serving: Serving, actor: str, mailbox: Mailbox, known: KnownRecord, turner: Turner
    ) -> None:
        self._serving = serving
        self._actor = actor
        self._mailbox = mailbox
        self._known = known
        self._turner = turner
        self._owes_nudge = True
        """Something lies in HELD that the lane's nodes may not know of."""
        self._list_at = LIST_OVER

    def __repr__(self) -> str:
        return f"<Away {self._actor}, nudge owed: {self._owes_nudge}>"

    def moved(self) -> None:
        """Another event is in HELD."""
        self._owes_nudge = True
        self._serving.away.pop(self._actor, None)

    def look(self) -> None:
        """Nudge once more, if events are still held."""
        self._owes_nudge = True

    async def advance(self, hot: Hot, submit: Callable[[Sequence[Item]], None], refuse: Refuse) -> bool:
        """Do one thing; False: nothing is left to do until something happens.

        `submit` gives items to the mover. Raises `BrokerError`, `Overtaken`, `HigherEpoch`.
        """
        record, services = hot.record, self._serving.services
        assert record is not None, "an actor without a record is on no lane"
        if not services.pins.has_nodes(record.index.lane):
            await self._turner.end_lane(hot)
            return True
        waiting = [item for item in self._mailbox if self._is_waiting(item)]
        for item in waiting:
            if self._is_ours(record, item):
                return await self._take(hot, record, item, refuse)
        loose = [item for item in waiting if item.held_seq is None and item.delivery is not None]
        if loose:
            submit(await self._stored(loose))
            return False  # the mover's end wakes this loop
        await self._nudge(record.index.lane)
        return False

    def _is_waiting(self, item: Item) -> bool:
        return item.phase is Phase.WAITING and item.not_before <= self._serving.services.monotonic()

    def _is_ours(self, record: Record, item: Item) -> bool:
        """What the owner handles although the actor is on a lane."""
        event, envelope = item.event, record.envelope
        # While it is held the end of its grace waits in HELD, like everything else that a hold does not accept.
        ends_grace = (
            event.kind == "timer" and envelope.hold is None and event.body.get("n") in grace_timers(envelope)
        )
        return event.kind in ("nudge", "terminate") or ends_grace or item.homeless

    async def _take(self, hot: Hot, record: Record, item: Item, refuse: Refuse) -> bool:
        """Decide one event on the newest record."""
        if not await self._known.is_newest(hot):
            self._known.forget()
            return True
        services, event = self._serving.services, item.event
        decision = services.engine.decide(record, event)
        if item.homeless:
            decision = Decision(Verdict.DEAD, "mailbox full")
        elif event.kind == "nudge":
            decision = Decision(Verdict.NO_EFFECT, "still on its lane")
        if decision.verdict is Verdict.CONSUME:
            await self._turner.consume(hot, item, needs_frame=False)
            # The lane node may be running a step for nobody now.
            await self._publish_nudge(record.index.lane)
        elif decision.verdict in (Verdict.NO_EFFECT, Verdict.DEAD):
            return await refuse(hot, [(item, decision)])
        else:
            self._mailbox.settle(item)  # consumed, by a commit whose outbox the present record carries
        return True

    async def _stored(self, items: Sequence[Item]) -> list[Item]:
        """Those whose source is still stored, in order of origin; the others leave memory.

        Also left out is what was given up meanwhile: after a new attach the same events come again, and are moved then.
        """
        floors = self._serving.floors
        found: list[Item] = []
        for start in range(0, len(items), READS):
            part = items[start : start + READS]
            there = await asyncio.gather(*(floors.stored(item.origin) for item in part))
            found += [item for item, stored in zip(part, there, strict=True) if stored]
            self._mailbox.drop_gone(
                item.origin for item, stored in zip(part, there, strict=True) if not stored
            )
        left = (item for item in found if item.phase is Phase.WAITING and item.delivery is not None)
        return sorted(left, key=lambda item: item.origin)

    async def _nudge(self, lane: str) -> None:
        """Nudge the lane if events are held that it may not know of; remember to look again."""
        serving = self._serving
        if not self._owes_nudge:
            return
        if len(serving.held.of(self._actor)) > self._list_at:
            await self._list()
        # Before it is sent: an event that is moved meanwhile owes one of its own.
        self._owes_nudge = False
        if serving.held.of(self._actor):
            try:
                await self._publish_nudge(lane)
            except BaseException:
                self._owes_nudge = True
                raise
            before = serving.away.get(self._actor)
            pause = LOOK_SECONDS[0] if before is None else min(2 * before.pause, LOOK_SECONDS[1])
            serving.away[self._actor] = Look(serving.services.monotonic() + pause, pause)
        else:
            serving.away.pop(self._actor, None)

    async def _publish_nudge(self, lane: str) -> None:
        services = self._serving.services
        await services.nudger.nudge(lane, ActorId(self._actor))
        services.fault("lane_nudged", self._actor)

    async def _list(self) -> None:
        """Forget the held events that the lane node has taken: it deletes them, and does not say so."""
        serving = self._serving
        known = dict(serving.held.of(self._actor))
        left = {event.seq for event in await serving.services.held.of_actor(ActorId(self._actor))}
        for origin, ref in known.items():
            if ref.seq not in left:
                serving.held.remove(self._actor, origin)
        self._list_at = LIST_OVER + 2 * len(left)

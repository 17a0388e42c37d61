"""What one actor's loop does next: it looks at everything that is known, and does *one* thing.

    load -> count an attempt, take over calls -> control -> flush -> a step's result -> go on -> other events -> seal -> acknowledge
         -> refuse -> move to HELD

in the order of PROTOCOL 4.1 and 4.6 to 4.8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from sojourn.actors.events import Decision, StepDone, Verdict
from sojourn.actors.joining import AT_ONCE
from sojourn.broker.seam import Publish
from sojourn.broker.subjects import ActorId, Token
from sojourn.cluster.mail.mailbox import MOVE_AFTER_SECONDS, UNKNOWN_SECONDS, Fetched, Mailbox
from sojourn.cluster.mail.mailroom import HeldRef, Item, Phase
from sojourn.cluster.mail.moves import Parcel

from .away import Away
from .known_record import KnownRecord
from .nudges import KEPT_SECONDS
from .outbox import flush, lines, send_reply
from .refusals import Refusals
from .turner import Turner
from .verdicts import verdicts

if TYPE_CHECKING:
    from sojourn.cluster.steps.local_steps import RunningCall

    from .hot_cache import Hot
    from .serving import Serving

CONTROL: Final = frozenset(
    ("start", "cancel", "terminate", "pause", "resume", "release", "spawned", "refused")
)
UNKNOWN_AT_REST: Final = 256
"""Deliveries of the partition in hand beyond which mail for actors without a record is moved to HELD at once."""
FLUSH_AGAIN_SECONDS: Final = (0.1, 5.0)
"""First and longest pause after the broker did not take an entry of the outbox."""
RELEASE_OVER: Final = 64
"""Consumed events beyond which those of a clean record are acknowledged before the next is consumed."""


class ActorWork:
    """Of one actor; used by its host's loop only, one call at a time."""

    def __init__(
        self,
        serving: Serving,
        actor: str,
        mailbox: Mailbox,
        known: KnownRecord,
    ) -> None:
        self.actor = actor
        self.mailbox = mailbox
        self.results: deque[tuple[RunningCall, StepDone]] = deque()
        """Ends of steps that are not committed yet."""
        self.in_doubt = False
        """Somebody else may have written the record."""
        self._serving = serving
        self._known = known
        self._turner = Turner(serving, actor, mailbox, known, self.results)
        self._refusals = Refusals(serving, mailbox, known, self._turner)
        self._flush_pause = FLUSH_AGAIN_SECONDS[0]
        self._flush_at = 0.0
        self._refused: frozenset[int] = frozenset()
        """The first entries of those targets that did not take them at the last try: until `_flush_at`."""
        self._move_at = 0.0
        self._away: Away | None = None

    def __repr__(self) -> str:
        return f"<ActorWork of {self.actor}: {len(self.mailbox)} events, {len(self.results)} results>"

    def moments(self) -> list[float]:
        """Local monotonic times at which something is to be tried that waits for nothing else."""
        return [moment for moment in (self._flush_at, self._move_at) if moment]

    def look_away(self) -> None:
        """If it is on a lane: nudge once more."""
        self.in_doubt = True
        if self._away is not None:
            self._away.look()

    def reattached(self) -> None:
        """HELD was listed anew: if it is on a lane, its nodes may not know of all that is there."""
        if self._away is not None:
            self._away.look()

    async def advance(self) -> bool:
        """Do one thing. False: there is nothing to do until something happens."""
        known, turner, serving = self._known, self._turner, self._serving
        hot = known.hot or await known.loaded()
        await self.mailbox.drop_stale()
        if known.unreadable:
            return self._move([item for item in self.mailbox if item.phase is Phase.WAITING], at_once=True)
        if self.in_doubt:
            self.in_doubt = False
            if hot.record is not None and not await known.is_newest(hot):
                known.forget()
                return True
        if known.is_elsewhere(hot):
            return await self._leave_lane(hot)
        if known.is_away(hot):
            return await self._advance_away(hot)
        self._away = None
        serving.away.pop(self.actor, None)
        if known.cold and not serving.releasing and await turner.first_things(hot):
            return True
        if hot.record is None:
            self._remember_unknown()
        if serving.held.of(self.actor):
            fetched = await self.mailbox.fetch_held(hot.record, serving.services.clock.now())
            if fetched is Fetched.GONE:
                self.in_doubt = True
            if fetched is not Fetched.NOTHING:
                return True
        decided = verdicts(serving, hot, self.mailbox)
        consume = decided.first
        if consume is not None and consume[0].event.kind in CONTROL and not serving.releasing:
            return await self._consume(hot, *consume)
        if await self._flush(hot):
            return True
        self._release_some(hot)
        if self.results:
            ended = [done for _, done in islice(self.results, AT_ONCE)]
            if await turner.local(hot, ended[0], ended[1:]):
                self._forget_settled(hot)
            return not self._waits_for_its_step(hot)
        if await turner.go_on(hot):
            return True
        if consume is not None and not serving.releasing:
            return await self._consume(hot, *consume, more=decided.more[: AT_ONCE - 1])
        if await turner.seal(hot):
            return True
        if turner.is_clean(hot) and hot.record is not None:
            serving.services.fault("before_ack", self.actor)
            self.mailbox.release_consumed(hot.record.envelope.consumed)
        if decided.refused:
            return await self._refusals.refuse(hot, decided.refused)
        if serving.releasing:
            return False
        for item, reply in decided.promised:
            item.answered = True
            await send_reply(serving.services, reply)
        held = hot.record is not None and hot.record.envelope.hold is not None
        # Mail for nobody costs a loop's memory per actor while it waits here, and anyone may send any amount of it.
        at_once = held or (hot.record is None and serving.unacknowledged > UNKNOWN_AT_REST)
        return self._move(decided.waiting + (decided.consumed if held else []), at_once=at_once)

    def _waits_for_its_step(self, hot: Hot) -> bool:
        """After a commit: whether only the end of a step that runs can be next. Looking at everything once more
        would find that too, at half the price of the commit. Whatever happens meanwhile wakes the loop.
        """
        record, serving = hot.record, self._serving
        if record is None or self.results or self._known.cold or serving.releasing:
            return False
        envelope = record.envelope
        return (
            bool(envelope.calls)
            and record.index.lane == serving.lane
            and not (envelope.outbox or envelope.results or envelope.hold)
            and all(wait.kind == "call" for wait in envelope.waits)
            and all(call.runs_here for call in envelope.calls)
            and not serving.held.of(self.actor)
            and self.mailbox.holds_only(envelope.consumed)
        )

    async def quarantine(self, reason: str) -> None:
        """Hold the actor; without a record to hold, the event that it cannot take goes to the dead letters. Raises
        `Overtaken`, `HigherEpoch`, `BrokerError`.
        """
        if await self._turner.quarantine(reason):
            return
        hot = await self._known.loaded()
        first = verdicts(self._serving, hot, self.mailbox).first
        if hot.record is None and not self._known.unreadable and first is not None:
            await self._refusals.refuse(hot, [(first[0], Decision(Verdict.DEAD, reason))])

    # ---- lanes

    async def _advance_away(self, hot: Hot) -> bool:
        """This node owns the partition, and a lane node runs the actor."""
        if self._away is None:
            self._away = Away(self._serving, self.actor, self.mailbox, self._known, self._turner)
        self.hand_over_results()
        if self._serving.releasing:
            return False
        return await self._away.advance(hot, self._submit, self._refusals.refuse)

    async def _leave_lane(self, hot: Hot) -> bool:
        """This node has a lane, and the actor is not on it: forget it, and tell the owner if it was given back from here."""
        serving, record = self._serving, hot.record
        self.hand_over_results()
        if record is not None and not record.index.lane and record.envelope.lane_epoch:
            services = serving.services
            subject = services.subjects.wake(ActorId(self.actor), Token("nudge"))
            await services.broker.publish(Publish(subject, b"{}", ttl=KEPT_SECONDS))
            services.fault("owner_nudged", self.actor)
        serving.held.forget(self.actor)
        self.mailbox.clear()
        self._known.forget()
        return False

    def hand_over_results(self) -> None:
        """What steps brought that ended here is for whoever runs the actor."""
        services = self._serving.services
        while self.results:
            services.steps.hand_over(services, *self.results.popleft())

    def _wake(self) -> None:
        """Have the loop look again."""
        self._serving.hosts.wake(self.actor)

    def _submit(self, items: Sequence[Item]) -> None:
        if items:
            self._serving.mover.submit(
                Parcel(self.actor, tuple(items), self._moved_away, self._mailbox_full, self._wake)
            )
        else:
            self._wake()  # what was to be moved is gone

    def _moved_away(self, item: Item, ref: HeldRef) -> None:
        self.mailbox.moved(item, ref)
        if self._away is not None:
            self._away.moved()

    # ---- events

    def _release_some(self, hot: Hot) -> None:
        """Acknowledge meanwhile what a backlog of mail has left behind: it would fill the consumed set else."""
        record = hot.record
        if (
            record is not None
            and len(record.envelope.consumed) >= RELEASE_OVER
            and self._turner.is_clean(hot)
        ):
            self.mailbox.release_consumed(record.envelope.consumed)

    def _remember_unknown(self) -> None:
        """What is held for an actor without record expires: the partition wakes this actor then."""
        oldest = min((ref.time for _, ref in self._serving.held.of(self.actor)), default=None)
        if oldest is not None:
            self._serving.unknown[self.actor] = oldest + UNKNOWN_SECONDS

    def _forget_settled(self, hot: Hot) -> None:
        """The first end of a step is settled, and those after it that were taken with it."""
        self.results.popleft()
        if self.results:
            calls = hot.record.envelope.calls if hot.record is not None else ()
            pending = {(call.op, call.attempt) for call in calls}
            while self.results and (self.results[0][1].op, self.results[0][1].attempt) not in pending:
                self.results.popleft()

    async def _consume(self, hot: Hot, item: Item, decision: Decision, more: Sequence[Item] = ()) -> bool:
        refusal = await self._turner.consume(hot, item, needs_frame=decision.needs_frame, more=more)
        if refusal is not None:
            return await self._refusals.refuse(hot, [(item, refusal)])
        return True

    async def _flush(self, hot: Hot) -> bool:
        """Publish what the record's outbox allows; whether that changed anything. What the broker does not take is tried again later, and
        only what goes to the same target waits for that.
        """
        record, services = hot.record, self._serving.services
        if record is None or len(hot.flushed) >= len(record.envelope.outbox):
            self._flush_at = 0.0  # nothing is left that was to be tried again
            return False
        refused = self._refused if services.monotonic() < self._flush_at else frozenset()
        wanted = [line for line in lines(record, hot.flushed) if line[0].n not in refused]
        if not wanted:
            return False
        before = len(hot.flushed)
        all_taken = await flush(services, hot, record, wanted)
        if len(hot.flushed) >= len(record.envelope.outbox):
            self._flush_pause, self._flush_at = FLUSH_AGAIN_SECONDS[0], 0.0
            if all_taken:  # else something is given up, and nothing is left to try
                services.fault("after_flush", self.actor)
                self._known.flushed(hot)
            return True
        self._refused = refused.union(line[0].n for line in lines(record, hot.flushed))
        if not refused:
            self._flush_at = services.monotonic() + self._flush_pause
            self._flush_pause = min(2 * self._flush_pause, FLUSH_AGAIN_SECONDS[1])
        return len(hot.flushed) > before

    def _move(self, items: list[Item], *, at_once: bool) -> bool:
        """Give what is overdue to the mover. False: its end will wake this loop."""
        now = self._serving.services.monotonic()
        overdue = tuple(self.mailbox.overdue(items, now, at_once=at_once))
        loose = [item.arrived for item in items if item.held_seq is None and item.phase is Phase.WAITING]
        self._move_at = min(loose) + MOVE_AFTER_SECONDS if loose and not overdue else 0.0
        if overdue:
            self._serving.mover.submit(
                Parcel(self.actor, overdue, self.mailbox.moved, self._mailbox_full, self._wake)
            )
        return False

    def _mailbox_full(self, item: Item) -> None:
        self.mailbox.full(item)
        self._wake()

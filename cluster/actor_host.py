"""One actor at work: its events, its live coroutines, its commits, one after another.

The loop is a task only while there is something to do. Each pass looks at everything that is known and does *one* thing (`_advance`):

    load -> count an attempt, take over calls -> control -> flush -> a step's result -> go on -> other events -> seal -> acknowledge
         -> refuse -> move to HELD

in the order of PROTOCOL 4.1 and 4.6 to 4.8. A commit that turns out to be another's ends the pass: what was hot is discarded in
silence and the unacknowledged events meet a fresh load. When nothing is left to do the host rests: its record and coroutines stay
in the hot cache, bounded and for seconds, and the host itself is forgotten once none of its events is in memory and none of its
steps runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from sojourn.actors.events import Decision, Event, StepDone, Verdict
from sojourn.broker.errors import BrokerClosed, BrokerError
from sojourn.broker.seam import Delivery, Publish
from sojourn.broker.subjects import ActorId, Token

from .away import NUDGE_SECONDS, Away
from .commits import HigherEpoch, Overtaken, RecordTooLarge
from .mailbox import MOVE_AFTER_SECONDS, UNKNOWN_EVENTS, UNKNOWN_SECONDS, Mailbox
from .mailroom import Arrival, HeldRef, Item, Phase
from .moves import Parcel
from .outbox import answer, flush, send_reply
from .turner import Turner

if TYPE_CHECKING:
    from .hot_cache import Hot
    from .serving import Serving
    from .steps import RunningCall

CONTROL: Final = frozenset(
    ("start", "cancel", "terminate", "pause", "resume", "release", "spawned", "refused")
)
AGAIN_SECONDS: Final = (0.1, 5.0)
"""First and longest pause after something failed that may work later: a read without answer, a full stream."""
REFUSALS: Final = 64
"""Dead letters and answers of one actor on the wire at a time."""
RELEASE_OVER: Final = 64
"""Consumed events beyond which those of a clean record are acknowledged before the next is consumed."""
DEFECTS: Final = 3
"""Failures of Sojourn's own code in a row after which an actor is quarantined: it must not take its partition along (I6)."""


class ActorHost:
    """See the module. Made by a partition for an actor that has something to do; used on the engine's loop only."""

    def __init__(self, serving: Serving, actor: str) -> None:
        self.actor = actor
        self.mailbox = Mailbox(serving, actor, self._emptied)
        self._serving = serving
        self._turner = Turner(serving, actor, self.mailbox, self.step_ended, self._in_hand)
        self._results: deque[tuple[RunningCall, StepDone]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._timer: asyncio.TimerHandle | None = None
        self._flush_pause = AGAIN_SECONDS[0]
        self._flush_at = 0.0
        self._move_at = 0.0
        self._defects = 0
        self._away: Away | None = None
        self._in_doubt = False
        """Somebody else may have written the record."""

    def __repr__(self) -> str:
        state = "at work" if self._task is not None else "resting"
        return f"<ActorHost {self.actor} {state}, {len(self.mailbox)} events, {len(self._results)} results>"

    # ---- what happens to it

    def deliver(self, event: Event, parsed: Arrival, delivery: Delivery) -> None:
        """An event of this actor arrived."""
        self.mailbox.deliver(event, parsed, delivery)
        self.wake()

    def step_ended(self, run: RunningCall, done: StepDone) -> None:
        """A local step of this actor ended."""
        self._results.append((run, done))
        self.wake()

    def _in_hand(self, key: str, attempt: int) -> bool:
        """Whether the outcome of this attempt is here and not committed yet: the attempt must not run again."""
        return any(run.key == key and done.attempt == attempt for run, done in self._results)

    def wake(self) -> None:
        """Look at everything again."""
        self._again = True
        if self._task is None and not self._serving.over:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            # In the partition's context, not in that of the step whose end is told here.
            self._task = asyncio.create_task(
                self._run(), name=f"actor {self.actor}", context=self._serving.context
            )

    def reattached(self) -> None:
        """Every event that is not acknowledged comes again; the record and the coroutines stay."""
        self.mailbox.clear()
        self.wake()

    def drop(self) -> None:
        """Forget everything, in silence."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self.mailbox.clear()
        self._turner.forget()
        services = self._serving.services
        while self._results:
            services.steps.hand_over(services, *self._results.popleft())

    async def wait_rest(self, seconds: float) -> None:
        """Return when its loop rests, or after that time."""
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=seconds)

    def lease_ended(self) -> None:
        """A runner is gone, or other code is here: look at pending calls and at the pin again."""
        self._turner.look_again()
        self.wake()

    def look_away(self) -> None:
        """An actor on a lane has had events in HELD for a while: nudge again, see whether it is back."""
        self._in_doubt = True
        if self._away is not None:
            self._away.look()
        self.wake()

    def nudged(self, *, news: bool) -> None:
        """The owner of the partition told this lane of the actor. `news`: events are in HELD that were not known."""
        self._in_doubt = self._in_doubt or not news
        self.wake()

    @property
    def task(self) -> asyncio.Task[None] | None:
        """Its loop, while it runs."""
        return self._task

    def oldest_waiting(self) -> float | None:
        """Arrival (local monotonic) of the oldest event that was not decided yet; None when there is none."""
        return min((item.arrived for item in self.mailbox if item.delivery is not None), default=None)

    # ---- the loop

    async def _run(self) -> None:
        pause = AGAIN_SECONDS[0]
        try:
            while self._again and not self._serving.over:
                self._again = False
                try:
                    while await self._advance():
                        pause = AGAIN_SECONDS[0]
                    self._defects = 0
                except Overtaken:
                    self._serving.services.meter.count("commit_conflicts")
                    self._turner.forget()
                    self._again = True
                except HigherEpoch as later:
                    self._serving.lost(f"a record of {self.actor} has epoch {later.epoch}")
                    return
                except BrokerClosed:
                    return
                except RecordTooLarge as large:
                    await self._too_large(large)
                    self._again = True
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, AGAIN_SECONDS[1])
                except BrokerError as error:
                    self._serving.services.log.warning("%s: trying again: %s", self.actor, error)
                    self._again = True
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, AGAIN_SECONDS[1])
                except Exception as error:
                    await self._defect(error)
                    self._again = True
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, AGAIN_SECONDS[1])
        finally:
            self._task = None
            self._rest()

    async def _too_large(self, large: RecordTooLarge) -> None:
        """A turn whose record no broker takes is not made: the actor is held with the last one that fits."""
        self._serving.services.log.error("%s: its record is too large: %s", self.actor, large)
        self._turner.forget()
        await self._quarantine(f"its record would be too large: {large}")

    async def _defect(self, error: Exception) -> None:
        """Something failed that never should: the actor is held with its last good record, the others go on."""
        self._serving.services.log.exception("%s: a defect in Sojourn", self.actor)
        self._turner.forget()
        self._defects += 1
        if self._defects >= DEFECTS:
            self._defects = 0
            await self._quarantine(f"a defect in Sojourn: {type(error).__name__}: {error}"[:2_000])

    async def _quarantine(self, reason: str) -> None:
        """Hold the actor; without a record to hold, the event that it cannot take goes to the dead letters."""
        try:
            if await self._turner.quarantine(reason):
                return
            hot = await self._turner.loaded()
            first = self._decide(hot).first
            if hot.record is None and not self._turner.unreadable and first is not None:
                await self._refuse(hot, [(first[0], Decision(Verdict.DEAD, reason))])
        except (Overtaken, HigherEpoch, BrokerError):
            return
        except Exception:
            # Not even that: its events stay unacknowledged, and it is tried again for as long as they come.
            self._serving.services.log.exception("%s: cannot be quarantined", self.actor)

    def _emptied(self) -> None:
        """The last acknowledgement is confirmed: there may be nothing left to stay for, or more to sweep."""
        if len(self._serving.held.of(self.actor)):
            self.wake()
        elif self._task is None:
            self._rest()

    def _rest(self) -> None:
        """Nothing to do now: keep what may be needed soon, forget the rest, and wake up for what has a time."""
        serving = self._serving
        if serving.over:
            return
        self._turner.rest()
        self.mailbox.park()
        if not len(self.mailbox) and not self._results and not self._turner.owes_work():
            if self._timer is not None:
                self._timer.cancel()
            self._turner.park()
            serving.retire(self)
            return
        now = serving.services.monotonic()
        moments = [item.not_before for item in self.mailbox if item.not_before > now]
        moments += [moment for moment in (self._flush_at, self._move_at) if moment]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if moments:
            # At least a tenth of a second: what is due now was looked at just now and waits for something else.
            delay = max(0.1, min(moments) - now)
            self._timer = asyncio.get_running_loop().call_later(delay, self.wake)

    async def _advance(self) -> bool:
        """Do one thing. False: there is nothing to do until something happens."""
        turner, serving = self._turner, self._serving
        hot = turner.hot or await turner.loaded()
        if turner.unreadable:
            return self._move([item for item in self.mailbox if item.phase is Phase.WAITING], at_once=True)
        if self._in_doubt:
            self._in_doubt = False
            if hot.record is not None and not await turner.is_newest(hot):
                turner.forget()
                return True
        if turner.is_elsewhere(hot):
            return await self._leave_lane(hot)
        if turner.is_away(hot):
            return await self._advance_away(hot)
        self._away = None
        serving.away.pop(self.actor, None)
        if turner.is_cold and not serving.releasing and await turner.first_things(hot):
            return True
        if hot.record is None:
            self._remember_unknown()
        if serving.held.of(self.actor) and await self.mailbox.fetch_held(
            hot.record, serving.services.clock.now()
        ):
            return True
        decided = self._decide(hot)
        consume = decided.first
        if consume is not None and consume[0].event.kind in CONTROL and not serving.releasing:
            return await self._consume(hot, *consume)
        if await self._flush(hot):
            return True
        self._release_some(hot)
        if self._results:
            if await turner.local(hot, self._results[0][1]):
                self._results.popleft()
            return not self._waits_for_its_step(hot)
        if await turner.go_on(hot):
            return True
        if consume is not None and not serving.releasing:
            return await self._consume(hot, *consume)
        if await turner.seal(hot):
            return True
        if turner.is_clean(hot) and hot.record is not None:
            serving.services.fault("before_ack", self.actor)
            self.mailbox.release_consumed(hot.record.envelope.consumed)
        if decided.refused:
            return await self._refuse(hot, decided.refused)
        if serving.releasing:
            return False
        held = hot.record is not None and hot.record.envelope.hold is not None
        return self._move(decided.waiting + (decided.consumed if held else []), at_once=held)

    def _waits_for_its_step(self, hot: Hot) -> bool:
        """After a commit: whether only the end of a step that runs can be next. Looking at everything once more
        would find that too, at half the price of the commit. Whatever happens meanwhile wakes the loop.
        """
        record, serving = hot.record, self._serving
        if record is None or self._results or self._turner.is_cold or serving.releasing:
            return False
        envelope = record.envelope
        return (
            bool(envelope.calls)
            and record.index.lane == serving.lane
            and not (envelope.outbox or envelope.results or envelope.hold)
            and all(wait.kind == "call" for wait in envelope.waits)
            and all(call.retry_timer is None for call in envelope.calls)
            and not serving.held.of(self.actor)
            and self.mailbox.holds_only(envelope.consumed)
        )

    # ---- lanes

    async def _advance_away(self, hot: Hot) -> bool:
        """This node owns the partition, and a lane node runs the actor."""
        if self._away is None:
            self._away = Away(self._serving, self.actor, self.mailbox, self._turner)
        self._hand_over_results()
        if self._serving.releasing:
            return False
        return await self._away.advance(hot, self._submit, self._refuse)

    async def _leave_lane(self, hot: Hot) -> bool:
        """This node has a lane, and the actor is not on it: forget it, and tell the owner if it was given back from here."""
        serving, record = self._serving, hot.record
        self._hand_over_results()
        if record is not None and not record.index.lane and record.envelope.lane_epoch:
            services = serving.services
            subject = services.subjects.wake(ActorId(self.actor), Token("nudge"))
            await services.broker.publish(Publish(subject, b"{}", ttl=NUDGE_SECONDS))
            services.fault("owner_nudged", self.actor)
        serving.held.forget(self.actor)
        self.mailbox.clear()
        self._turner.forget()
        return False

    def _hand_over_results(self) -> None:
        """What steps brought that ended here is for whoever runs the actor."""
        services = self._serving.services
        while self._results:
            services.steps.hand_over(services, *self._results.popleft())

    def _submit(self, items: Sequence[Item]) -> None:
        if items:
            self._serving.mover.submit(
                Parcel(self.actor, tuple(items), self._moved_away, self._mailbox_full, self.wake)
            )
        else:
            self.wake()  # what was to be moved is gone

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

    def _decide(self, hot: Hot) -> _Decided:
        """The verdict on every event, in order."""
        decided = _Decided()
        if not len(self.mailbox):
            return decided
        engine, now = self._serving.services.engine, self._serving.services.clock.now()
        for event in engine.order(self.mailbox.events()):
            item = self.mailbox.get(event.origin)
            decision = engine.decide(hot.record, event)
            match decision.verdict:
                case Verdict.CONSUME:
                    if decided.first is None:
                        decided.first = (item, decision)
                case Verdict.CONSUMED:
                    decided.consumed.append(item)
                case Verdict.WAIT if item.homeless:
                    decided.refused.append((item, Decision(Verdict.DEAD, "mailbox full")))
                case Verdict.WAIT if self._is_hopeless(hot, event, now):
                    decided.refused.append((item, Decision(Verdict.DEAD, "no such actor")))
                case Verdict.WAIT:
                    decided.waiting.append(item)
                case _:
                    decided.refused.append((item, decision))
        return decided

    def _is_hopeless(self, hot: Hot, event: Event, now: float) -> bool:
        """Mail for an actor without record is kept for an hour, and no more than the partition's bound (4.3)."""
        if hot.record is not None:
            return False
        serving = self._serving
        if now - event.time >= UNKNOWN_SECONDS:
            return True
        return not event.held and serving.unknown_events >= UNKNOWN_EVENTS

    def _remember_unknown(self) -> None:
        """What is held for an actor without record expires: the partition wakes this actor then."""
        oldest = min((ref.time for _, ref in self._serving.held.of(self.actor)), default=None)
        if oldest is not None:
            self._serving.unknown[self.actor] = oldest + UNKNOWN_SECONDS

    async def _consume(self, hot: Hot, item: Item, decision: Decision) -> bool:
        refusal = await self._turner.consume(hot, item, needs_frame=decision.needs_frame)
        if refusal is not None:
            return await self._refuse(hot, [(item, refusal)])
        return True

    async def _refuse(self, hot: Hot, refused: list[tuple[Item, Decision]]) -> bool:
        """Decided on a leader read: the record in memory has to be the newest one before an event is given up."""
        if not await self._turner.is_newest(hot):
            self._turner.forget()
            return True
        for item, _ in refused:
            if _names_the_future(hot, item.event):
                # Told on a leader read: the record, not the message, is what went back (I8).
                await self._turner.quarantine(
                    f"storage went back: a {item.event.kind} names what the record has yet to do"
                )
                return True
        for start in range(0, len(refused), REFUSALS):
            part = refused[start : start + REFUSALS]
            await asyncio.gather(*(self._refuse_one(item, decision) for item, decision in part))
        return True

    async def _refuse_one(self, item: Item, decision: Decision) -> None:
        services = self._serving.services
        for message in decision.answers:
            await answer(services, message)
        await self.mailbox.refuse(item, decision)
        if decision.reply is not None:
            await send_reply(services, decision.reply)

    async def _flush(self, hot: Hot) -> bool:
        """Publish what the record's outbox allows; whether that changed anything. What the broker does not take is tried again later."""
        record, now = hot.record, self._serving.services.monotonic()
        if record is None or len(hot.flushed) >= len(record.envelope.outbox) or now < self._flush_at:
            return False
        before = len(hot.flushed)
        if await flush(self._serving.services, record, hot.flushed):
            self._flush_pause, self._flush_at = AGAIN_SECONDS[0], 0.0
            self._turner.flushed(hot)
            return True
        self._flush_at = self._serving.services.monotonic() + self._flush_pause
        self._flush_pause = min(2 * self._flush_pause, AGAIN_SECONDS[1])
        return len(hot.flushed) > before

    def _move(self, items: list[Item], *, at_once: bool) -> bool:
        """Give what is overdue to the mover. False: its end will wake this loop."""
        now = self._serving.services.monotonic()
        overdue = tuple(self.mailbox.overdue(items, now, at_once=at_once))
        loose = [item.arrived for item in items if item.held_seq is None and item.phase is Phase.WAITING]
        self._move_at = min(loose) + MOVE_AFTER_SECONDS if loose and not overdue else 0.0
        if overdue:
            self._serving.mover.submit(
                Parcel(self.actor, overdue, self.mailbox.moved, self._mailbox_full, self.wake)
            )
        return False

    def _mailbox_full(self, item: Item) -> None:
        self.mailbox.full(item)
        self.wake()


def _names_the_future(hot: Hot, event: Event) -> bool:
    """Whether an internal message names an operation of this run that its record has not begun."""
    record, number = hot.record, event.body.get("n" if event.kind == "timer" else "op")
    return (
        record is not None
        and not record.index.status.ended
        and record.envelope.hold is None
        and event.kind in ("timer", "done", "child-done", "refused")
        and event.body.get("run") == record.index.run
        and isinstance(number, int)
        and number >= record.envelope.next_op
    )


class _Decided:
    """Verdicts on all events of one pass."""

    __slots__ = ("consumed", "first", "refused", "waiting")

    def __init__(self) -> None:
        self.first: tuple[Item, Decision] | None = None
        self.consumed: list[Item] = []
        self.refused: list[tuple[Item, Decision]] = []
        self.waiting: list[Item] = []

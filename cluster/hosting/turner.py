"""Turns of one actor: what its owner may do with its record, each a decision of the engine that is committed and carried out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from sojourn.actors.branches import Branches
from sojourn.actors.engine import EventRefused
from sojourn.actors.events import Decision, Event, GoesOn, LocalEvent, RunStep, StepDone, Turn, Verdict
from sojourn.actors.joining import AT_ONCE
from sojourn.cluster.deployments.pins import REFUSED_BY
from sojourn.cluster.mail.mailbox import Mailbox
from sojourn.cluster.mail.mailroom import Item
from sojourn.cluster.steps.local_steps import RunningCall, operation_key
from sojourn.codecs.errors import PinNotSatisfied
from sojourn.codecs.record import ErrorInfo, Origin, Outcome, Record

from .committer import Committer
from .hot_cache import Hot
from .known_record import KnownRecord
from .pace import Pace

if TYPE_CHECKING:
    from .serving import Serving

ALONE_AT: Final = 3
"""Counted attempts after which an actor runs user code alone (I7)."""


class Turner:
    """Of one actor, used by its host's loop only, one call at a time."""

    def __init__(
        self,
        serving: Serving,
        actor: str,
        mailbox: Mailbox,
        known: KnownRecord,
        results: Collection[tuple[RunningCall, StepDone]],
    ) -> None:
        """`results`: outcomes of attempts that wait here for their commit."""
        self._serving = serving
        self._actor = actor
        self._known = known
        self._results = results
        self._committer = Committer(serving, actor, mailbox, known)
        self._pace = Pace(serving.services.limits.transitions_per_second)

    async def first_things(self, hot: Hot) -> bool:
        """After a load, before anything else: storage that went back, a pin that is satisfied again, calls that nobody runs."""
        if not self._known.cold or hot.record is None:
            return False
        record = hot.record
        went_back = await self._serving.floors.storage_went_back(record.envelope.consumed)
        hold = record.envelope.hold
        if went_back and not (hold is not None and hold.kind == "quarantined"):
            await self._hold(hot, "quarantined", f"storage went back: {went_back}")
            self._known.cold = False
            return True
        if hold is not None and hold.kind == "pin" and await self._find_code(hot, record):
            return True
        self._known.cold = False
        return await self._take_calls(hot)

    async def _find_code(self, hot: Hot, record: Record) -> bool:
        """An actor is held because its code is not here: is it now, or at a deployment that lives again?"""
        services = self._serving.services
        if not services.pins.missing(record):
            await self._committer.commit(
                hot, services.engine.unhold(record, services.clock.now(), self._committer.facts(hot))
            )
            return True
        if label := services.pins.elsewhere(record):
            await self._put_on_lane(hot, label)
            return True
        self._serving.pinned.add(self._actor)
        return False

    async def _put_on_lane(self, hot: Hot, label: str) -> None:
        """From now on a node of that deployment runs the actor; what is hot here of it is no more."""
        services, record = self._serving.services, hot.record
        assert record is not None, "only a record can be put on a lane"
        hot.discard()
        turn = services.engine.lane(record, label, services.clock.now(), self._committer.facts(hot))
        await self._committer.commit(hot, turn)
        services.meter.count("lanes_begun", lane=label)
        services.fault("lane_committed", self._actor)

    async def end_lane(self, hot: Hot) -> None:
        """Take the actor off its lane: the deployment has no nodes, and that needs no pin. Raises `Overtaken`."""
        services, record = self._serving.services, hot.record
        assert record is not None, "only a record can be on a lane"
        services.meter.count("lanes_ended", lane=record.index.lane)
        await self._committer.commit(
            hot, services.engine.lane(record, "", services.clock.now(), self._committer.facts(hot))
        )
        self._known.forget()  # what it owes is to be found out anew

    async def _take_calls(self, hot: Hot) -> bool:
        """Start, adopt or take over the pending calls of a record that was loaded. Whether anything was committed."""
        services, record = self._serving.services, hot.record
        self._known.foreign = False
        if record is None or record.index.status.ended:
            return False
        orphaned: list[RunStep] = []
        mine: list[RunStep] = []
        for run in services.engine.pending_steps(record, services.clock.now()):
            key = operation_key(self._actor, record.index.run, run.call.op)
            if services.steps.adopt(key, run.call.attempt, self._serving.hosts.step_ended):
                continue
            if any(ran.key == key and done.attempt == run.call.attempt for ran, done in self._results):
                continue
            if run.call.runner == services.runner:
                mine.append(run)
            elif services.lives(run.call.runner):
                self._known.foreign = True
            else:
                orphaned.append(run)
        if record.envelope.hold is not None or not (mine or orphaned):
            return False
        if services.pins.missing(record) and not await self._restore(hot):
            return True
        if await self._suspected(hot):
            self._known.cold = True
            return True
        if orphaned:
            ops = [run.call.op for run in orphaned]
            turn = services.engine.take_over(record, ops, services.clock.now(), self._committer.facts(hot))
            await self._committer.commit(hot, turn)
            services.fault("takeover_committed", self._actor)
        for run in (*mine, *orphaned):
            self._committer.start_step(hot, run)
        return bool(orphaned)

    async def consume(
        self, hot: Hot, item: Item, *, needs_frame: bool, more: Sequence[Item] = ()
    ) -> Decision | None:
        """Take the event by a commit, and those of `more` that join it. A decision comes back when it cannot be taken
        after all. Raises `Overtaken`.
        """
        event = item.event
        if needs_frame or event.kind == "start":
            if await self._suspected(hot):
                return None
            if hot.record is not None and needs_frame and not await self._restore(hot):
                return None
        ends: tuple[Origin, ...] = ()
        if event.kind == "start" and hot.record is not None and hot.record.index.status.ended:
            # Read before the run begins: what the earlier one did not consume is never the new one's (PROTOCOL 6).
            ends = await self._serving.floors.ends()
        try:
            turn = self._admission(hot, event, ends) or await self._turn(
                hot, event, ends, [item.event for item in more]
            )
        except EventRefused as refused:
            return Decision(Verdict.DEAD, refused.reason, refused.reply, answers=refused.answers)
        await self._committer.commit(hot, turn)
        self._measure(event, item)
        return None

    def _admission(self, hot: Hot, event: Event, ends: tuple[Origin, ...]) -> Turn | None:
        """A start that is stored before its code runs: the actor begins on another deployment, and goes on its lane; or the
        attempt needs a record to be counted in after a takeover (I7).
        """
        serving, services = self._serving, self._serving.services
        if event.kind != "start" or not (hot.record is None or hot.record.index.status.ended):
            return None
        label = services.pins.for_start(event)
        if label != services.deployment:
            now, facts = services.clock.now(), self._committer.facts(hot, ends)
            return services.engine.admit(hot.record, event, now, facts, deployment=label)
        if not serving.counted or event.body.get("delay"):
            return None
        facts = self._committer.facts(hot, ends)
        turn = services.engine.admit(hot.record, event, services.clock.now(), facts)
        serving.counted -= 1
        self._known.suspect = True
        return turn

    async def local(self, hot: Hot, event: LocalEvent, more: Sequence[LocalEvent] = ()) -> bool:
        """Take what this owner knows itself: a step's end, or that something may go on; and those of `more` that join
        it. Raises `Overtaken`.

        False: the actor is run elsewhere now, and the event is theirs to hear.
        """
        record = hot.record
        if record is None:
            return True  # its run is over and its record gone
        if isinstance(event, StepDone):
            self._serving.services.fault("step_result", self._actor)
            if not any(c.op == event.op and c.attempt == event.attempt for c in record.envelope.calls):
                return True
            if self._serving.slow.follows(record, event.op):
                event = msgspec.structs.replace(event, record_first=True)
        if self._serving.services.engine.needs_frame(record, event) or _starts(record, event):
            if await self._suspected(hot):
                record = hot.record
            if record is not None and record.envelope.hold is None and not await self._restore(hot):
                record = hot.record
        if record is not None and record.index.lane != self._serving.lane:
            return False
        if record is None or (not isinstance(event, StepDone) and record.envelope.hold is not None):
            return True
        await self._committer.commit(hot, await self._turn(hot, event, more=more))
        return True

    async def go_on(self, hot: Hot) -> bool:
        """Let a branch go on that waits for nothing outside any more. Whether one did."""
        if hot.record is None:
            return False
        ready = self._serving.services.engine.continuations(hot.record, frozenset(hot.flushed))
        if not ready:
            return False
        if hot.given_up:
            ready = [self._given_up(one) if one.op in hot.given_up else one for one in ready]
        await self.local(hot, ready[0], ready[1:AT_ONCE])
        return True

    @staticmethod
    def _given_up(one: GoesOn) -> GoesOn:
        return msgspec.structs.replace(one, error=Outcome("error", error=ErrorInfo("MailboxFull", "")))

    async def seal(self, hot: Hot) -> bool:
        """Seal an ended actor that nobody waits for. Whether it was."""
        services, record = self._serving.services, hot.record
        if record is None or not services.engine.wants_seal(record, frozenset(hot.flushed)):
            return False
        services.fault("before_seal", self._actor)
        await self._committer.commit(
            hot, services.engine.seal(record, services.clock.now(), self._committer.facts(hot))
        )
        services.fault("after_seal", self._actor)
        return True

    def is_clean(self, hot: Hot) -> bool:
        """Whether what the record consumed may be acknowledged."""
        return hot.record is not None and self._serving.services.engine.is_clean(
            hot.record, frozenset(hot.flushed)
        )

    async def quarantine(self, reason: str) -> bool:
        """Hold the actor with its last good record; whether it was. Raises `Overtaken`, `HigherEpoch`, `BrokerError`."""
        hot = await self._known.loaded()
        if hot.record is None or hot.record.envelope.hold is not None or hot.record.index.status.ended:
            return False
        await self._hold(hot, "quarantined", reason)
        return True

    async def _suspected(self, hot: Hot) -> bool:
        """Count an attempt before user code runs, where that is due. True: the record changed, decide anew."""
        services, record = self._serving.services, hot.record
        while services.alone.blocks(self._actor):
            await services.alone.wait_free()
        if not self._known.suspect or record is None or services.pins.missing(record):
            return False  # code that is not here kills nobody here
        if record.envelope.attempts.count + 1 >= ALONE_AT:
            # Before it is counted: whoever only waits for its turn must not be accused of the death of the one that has it.
            await services.alone.acquire(self._actor)
        turn = services.engine.attempt(record, services.clock.now(), self._committer.facts(hot))
        await self._committer.commit(hot, turn)
        self._known.suspect = False
        services.fault("attempt_committed", self._actor)
        return True

    async def _restore(self, hot: Hot) -> bool:
        """Have live coroutines. False: the pin is not satisfied here, and the actor is held for that (I11)."""
        services, record = self._serving.services, hot.record
        if hot.live is not None or record is None:
            return True
        reason = services.pins.refuses(record)
        if not reason:
            try:
                hot.live = services.engine.restore(record)
            except PinNotSatisfied as missing:
                reason = "; ".join(missing.reasons)[:2_000]
            else:
                return True
        services.meter.count("pin_refused", workflow=record.index.workflow)
        if self._serving.lane:
            # Its registration promised too much. The owner looks for another deployment, or holds the actor.
            await self._hold(hot, "pin", reason, by=f"{REFUSED_BY}{self._serving.lane}")
        elif label := services.pins.elsewhere(record):
            await self._put_on_lane(hot, label)
        else:
            await self._hold(hot, "pin", reason)
        return False

    async def _hold(self, hot: Hot, kind: str, reason: str, *, by: str = "") -> None:
        services, record = self._serving.services, hot.record
        assert record is not None, "only a record can be held"
        turn = services.engine.hold(
            record, kind, reason, services.clock.now(), self._committer.facts(hot), by=by
        )
        hot.discard()
        await self._committer.commit(hot, turn)

    def _joining(
        self, hot: Hot, event: Event | LocalEvent, more: Sequence[Event | LocalEvent]
    ) -> Sequence[Event | LocalEvent]:
        """Those of `more` that are taken in one turn with the event."""
        record, engine = hot.record, self._serving.services.engine
        if not more or record is None or hot.live is None or not engine.joins(record, event):
            return ()
        follows = self._serving.slow.follows
        return [
            other
            for other in more
            if engine.joins(record, other) and not (isinstance(other, StepDone) and follows(record, other.op))
        ]

    async def _turn(
        self,
        hot: Hot,
        event: Event | LocalEvent,
        ends: tuple[Origin, ...] = (),
        more: Sequence[Event | LocalEvent] = (),
    ) -> Turn:
        services = self._serving.services
        pause = self._pace.pause(services.monotonic())
        if pause > 0:
            await self._pace.wait(pause)
        if hot.record is not None:
            await self._committer.pruning.look(hot.record)
        joining = self._joining(hot, event, more)
        live = hot.live if isinstance(hot.live, Branches) else None
        # Until the commit is done the live coroutines are ahead of the record: nobody may find them in the cache.
        hot.live = None
        began = services.monotonic()
        try:
            turn = services.engine.turn(
                hot.record, live, event, services.clock.now(), self._committer.facts(hot, ends), joining
            )
            if turn.ran and not joining and not isinstance(event, Event) and hot.record is not None:
                self._serving.slow.took(hot.record, event.op, services.monotonic() - began)
            return turn
        except EventRefused:
            hot.live = live
            raise
        except BaseException:
            if live is not None:
                live.discard()
            raise

    def _measure(self, event: Event, item: Item) -> None:
        services = self._serving.services
        if not event.held:
            late = max(0.0, services.clock.now() - event.time)
            services.meter.observe("wake_to_resume_seconds", late, kind=event.kind)


def _starts(record: Record, event: LocalEvent) -> bool:
    """Whether the event lets the workflow's function begin."""
    return any(wait.kind == "start" and wait.op == event.op for wait in record.envelope.waits)

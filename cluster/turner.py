"""Turns of one actor: load its record, let the engine decide the next one, commit it, carry out its effects.

What is hot is true until a commit shows otherwise. It is dropped, in silence, when a commit turns out to be another's, and read again from
the leader when something is to be decided without a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
from sojourn.actors.branches import Branches
from sojourn.actors.current import CurrentActor
from sojourn.actors.engine import EventRefused
from sojourn.actors.events import (
    CancelStep,
    Decision,
    Event,
    Facts,
    LocalEvent,
    Reply,
    RunStep,
    StepDone,
    Turn,
    Verdict,
)
from sojourn.codecs.errors import PinNotSatisfied
from sojourn.codecs.record import Origin, Record

from .commits import HigherEpoch, commit, read_record
from .hot_cache import Hot
from .mailbox import Mailbox
from .mailroom import Item
from .outbox import send_reply
from .pace import Pace
from .pins import REFUSED_BY
from .steps import Listener, operation_key

if TYPE_CHECKING:
    from .serving import Serving

ALONE_AT: Final = 3
"""Counted attempts after which an actor runs user code alone (I7)."""
PRUNED_AT_ONCE: Final = 64
"""On a lane, how many origins a consumed set gains between two looks at their copies."""
MANY_CONSUMED: Final = 256
"""Origins in a consumed set at which the sources are read before the next commit (4.4)."""


class Turner:
    """The record of one actor, and the only one in this process who changes it. Used by its host's loop only, one call at a time."""

    def __init__(
        self,
        serving: Serving,
        actor: str,
        mailbox: Mailbox,
        step_ended: Listener,
        in_hand: Callable[[str, int], bool],
    ) -> None:
        """`in_hand` tells whether the outcome of an attempt (operation id, number) waits here for its commit."""
        self._serving = serving
        self._actor = actor
        self._mailbox = mailbox
        self._step_ended = step_ended
        self._in_hand = in_hand
        self._hot: Hot | None = None
        self._committed = ""
        """Id of the last commit made here."""
        self._flushed = False
        """Whether that commit's whole outbox is known flushed."""
        self._suspect = False
        """An attempt has to be counted before user code runs."""
        self._cold = False
        """Loaded, and not looked at yet."""
        self._foreign = False
        """A pending call is run by a node that may live."""
        self._gone: frozenset[Origin] = frozenset()
        """On a lane: consumed origins of which no copy was found anywhere."""
        self._prune_at = PRUNED_AT_ONCE
        self._pace = Pace(serving.services.limits.transitions_per_second)
        self.unreadable = False
        """A record is stored that cannot be opened here."""

    # ---- the record

    @property
    def hot(self) -> Hot | None:
        """What `loaded` gave, while the loop does not rest."""
        return self._hot

    @property
    def is_cold(self) -> bool:
        """Whether `first_things` are to be done."""
        return self._cold

    async def loaded(self) -> Hot:
        """What is known of the actor, from the cache or from the leader. Raises `BrokerError`, `HigherEpoch`."""
        if self._hot is not None:
            return self._hot
        services = self._serving.services
        cached = services.hot_cache.get(self._actor)
        if cached is not None:
            cached.busy = True
            self._hot = cached
            return cached
        async with self._serving.loads:
            self._hot = await self._load()
        return self._hot

    async def _load(self) -> Hot:
        serving, services = self._serving, self._serving.services
        found = await read_record(services, self._actor)
        self._mailbox.reread()
        self.unreadable = found.unreadable is not None
        if found.unreadable is not None:
            services.log.error("%s: its record cannot be opened: %s", self._actor, found.unreadable.error)
        record = found.record
        hot = Hot(record, found.revision, serving.p, busy=True)
        if record is None:
            return hot
        serving.unknown.pop(self._actor, None)
        envelope = record.envelope
        self._check_epoch(record)
        if record.index.lane != serving.lane:
            self._suspect = False
            return hot  # on a lane, or not on this one: nothing is decided about what it owes
        mine = envelope.commit == self._committed
        if envelope.outbox and ((mine and self._flushed) or not await self._lease_stored(envelope.lease)):
            hot.flushed.update(entry.n for entry in envelope.outbox)
        if not mine and not record.index.status.ended:
            self._suspect = self._is_suspect(record)
        self._cold = True
        return hot

    async def _lease_stored(self, lease: Origin | None) -> bool:
        """Whether a copy of the lease is stored: then the outbox of its commit may not be flushed (4.7)."""
        if lease is None:
            return False
        if self._mailbox.has(lease):
            return True
        return await self._serving.floors.stored(lease)

    def _is_suspect(self, record: Record) -> bool:
        """Whether this resumption must be counted: the last one may have killed its node (I7)."""
        if record.envelope.attempts.count > 0:
            return True
        lease, serving = record.envelope.lease, self._serving
        # Nobody died over what the owner has just put on a lane that is not taken over from a dead node.
        handed_over = serving.lane and not serving.taken_over and not record.envelope.lane_epoch
        if lease is not None and self._mailbox.has(lease) and not handed_over:
            return True
        if self._serving.counted > 0:
            self._serving.counted -= 1
            return True
        return False

    async def is_newest(self, hot: Hot) -> bool:
        """Whether the leader's record is the one in memory. Raises `BrokerError`, `HigherEpoch`."""
        found = await read_record(self._serving.services, self._actor)
        if found.record is not None:
            self._check_epoch(found.record)
        return found.revision == hot.revision

    def _check_epoch(self, record: Record) -> None:
        """Whoever reads a record that a later owner committed is none any more. Raises `HigherEpoch`.

        A lane's epochs count by themselves, and only while the record is on that lane; the owner's epoch stays in the
        record through every commit of a lane node, so that a former owner meets it there (PROTOCOL 8).
        """
        serving, envelope = self._serving, record.envelope
        if not serving.lane and envelope.epoch > serving.epoch:
            raise HigherEpoch(envelope.epoch)
        if serving.lane and record.index.lane == serving.lane and envelope.lane_epoch > serving.epoch:
            raise HigherEpoch(envelope.lane_epoch)

    def is_away(self, hot: Hot) -> bool:
        """Whether this is the partition's owner and a lane node runs the actor."""
        return not self._serving.lane and hot.record is not None and hot.record.index.lane != ""

    def is_elsewhere(self, hot: Hot) -> bool:
        """Whether this is a lane node and the actor is not on its lane (any more)."""
        serving = self._serving
        return serving.lane != "" and (hot.record is None or hot.record.index.lane != serving.lane)

    def is_unknown(self) -> bool:
        """Whether the actor has no record, as far as is known."""
        return self._hot is not None and self._hot.record is None and not self.unreadable

    def forget(self) -> None:
        """Drop what is hot, in silence: it may not be true any more, or is not ours."""
        hot, self._hot = self._hot, None
        services = self._serving.services
        services.hot_cache.drop(self._actor)
        if hot is not None:
            hot.discard()
        services.alone.release(self._actor)

    def rest(self) -> None:
        """The loop pauses: from now on the cache may evict the actor."""
        hot, self._hot = self._hot, None
        if hot is None:
            return
        hot.busy = False
        if hot.record is None or self.unreadable or self.is_away(hot) or self.is_elsewhere(hot):
            self._serving.services.hot_cache.drop(self._actor)  # what another writes is not known for long
            hot.discard()
        else:
            self._serving.services.hot_cache.keep(self._actor, hot, self._serving.services.monotonic())
        if not self.owes_work():
            self._serving.services.alone.release(self._actor)

    def park(self) -> None:
        """Its host goes: what is not going to be needed soon does not stay in the cache for the idle time either.

        Without this, a burst of workflows that sleep for long would fill the cache, and what such a peak
        leaves behind in the allocator stays with the process (measured: 15 MiB after 4,000 starts).
        """
        services = self._serving.services
        hot = services.hot_cache.get(self._actor)
        if hot is not None and hot.record is not None:
            soon = services.clock.now() + services.hot_cache.idle_seconds
            if _is_quiet(hot.record, soon):
                services.hot_cache.drop(self._actor)

    def owes_work(self) -> bool:
        """Whether a step of this actor runs here, or its outbox is not flushed: then its host stays."""
        return self._serving.services.steps.runs(self._actor) or self._foreign or not self._settled()

    def _settled(self) -> bool:
        hot = self._hot or self._serving.services.hot_cache.get(self._actor)
        return hot is None or hot.record is None or len(hot.flushed) >= len(hot.record.envelope.outbox)

    # ---- turns

    async def first_things(self, hot: Hot) -> bool:
        """After a load, before anything else: storage that went back, a pin that is satisfied again, calls that nobody runs."""
        if not self._cold or hot.record is None:
            return False
        record = hot.record
        went_back = await self._serving.floors.storage_went_back(record.envelope.consumed)
        hold = record.envelope.hold
        if went_back and not (hold is not None and hold.kind == "quarantined"):
            await self._hold(hot, "quarantined", f"storage went back: {went_back}")
            self._cold = False
            return True
        if hold is not None and hold.kind == "pin" and await self._find_code(hot, record):
            return True
        self._cold = False
        return await self._take_calls(hot)

    async def _find_code(self, hot: Hot, record: Record) -> bool:
        """An actor is held because its code is not here: is it now, or at a deployment that lives again?"""
        services = self._serving.services
        if not services.pins.missing(record):
            await self._commit(hot, services.engine.unhold(record, services.clock.now(), self._facts(hot)))
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
        turn = services.engine.lane(record, label, services.clock.now(), self._facts(hot))
        await self._commit(hot, turn)
        services.meter.count("lanes_begun", lane=label)
        services.fault("lane_committed", self._actor)

    async def end_lane(self, hot: Hot) -> None:
        """Take the actor off its lane: the deployment has no nodes, and that needs no pin. Raises `Overtaken`."""
        services, record = self._serving.services, hot.record
        assert record is not None, "only a record can be on a lane"
        services.meter.count("lanes_ended", lane=record.index.lane)
        await self._commit(hot, services.engine.lane(record, "", services.clock.now(), self._facts(hot)))
        self.forget()  # what it owes is to be found out anew

    async def _take_calls(self, hot: Hot) -> bool:
        """Start, adopt or take over the pending calls of a record that was loaded. Whether anything was committed."""
        services, record = self._serving.services, hot.record
        self._foreign = False
        if record is None or record.index.status.ended:
            return False
        orphaned: list[RunStep] = []
        mine: list[RunStep] = []
        for run in services.engine.pending_steps(record, services.clock.now()):
            key = operation_key(self._actor, record.index.run, run.call.op)
            if services.steps.adopt(key, run.call.attempt, self._step_ended):
                continue
            if self._in_hand(key, run.call.attempt):
                continue
            if run.call.runner == services.runner:
                mine.append(run)
            elif services.lives(run.call.runner):
                self._foreign = True
            else:
                orphaned.append(run)
        if record.envelope.hold is not None or not (mine or orphaned):
            return False
        if services.pins.missing(record) and not await self._restore(hot):
            return True
        if await self._suspected(hot):
            self._cold = True
            return True
        if orphaned:
            ops = [run.call.op for run in orphaned]
            turn = services.engine.take_over(record, ops, services.clock.now(), self._facts(hot))
            await self._commit(hot, turn)
            services.fault("takeover_committed", self._actor)
        for run in (*mine, *orphaned):
            self._start_step(hot, run)
        return bool(orphaned)

    async def consume(self, hot: Hot, item: Item, *, needs_frame: bool) -> Decision | None:
        """Take the event by a commit. A decision comes back when it cannot be taken after all. Raises `Overtaken`."""
        event = item.event
        if needs_frame or event.kind == "start":
            if await self._suspected(hot):
                return None
            if hot.record is not None and needs_frame and not await self._restore(hot):
                return None
        try:
            turn = self._admission(hot, event) or await self._turn(hot, event)
        except EventRefused as refused:
            return Decision(Verdict.DEAD, refused.reason, refused.reply, answers=refused.answers)
        await self._commit(hot, turn)
        self._measure(event, item)
        return None

    def _admission(self, hot: Hot, event: Event) -> Turn | None:
        """A start that is stored before its code runs: the actor begins on another deployment, and goes on its lane; or the
        attempt needs a record to be counted in after a takeover (I7).
        """
        serving, services = self._serving, self._serving.services
        if event.kind != "start" or not (hot.record is None or hot.record.index.status.ended):
            return None
        label = services.pins.for_start(event)
        if label != services.deployment:
            now = services.clock.now()
            return services.engine.admit(hot.record, event, now, self._facts(hot), deployment=label)
        if not serving.counted or event.body.get("delay"):
            return None
        turn = services.engine.admit(hot.record, event, services.clock.now(), self._facts(hot))
        serving.counted -= 1
        self._suspect = True
        return turn

    async def local(self, hot: Hot, event: LocalEvent) -> bool:
        """Take what this owner knows itself: a step's end, or that something may go on. Raises `Overtaken`.

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
                event = replace(event, record_first=True)
        if self._serving.services.engine.needs_frame(record, event) or _starts(record, event):
            if await self._suspected(hot):
                record = hot.record
            if record is not None and record.envelope.hold is None and not await self._restore(hot):
                record = hot.record
        if record is not None and record.index.lane != self._serving.lane:
            return False
        if record is None or (not isinstance(event, StepDone) and record.envelope.hold is not None):
            return True
        await self._commit(hot, await self._turn(hot, event))
        return True

    async def go_on(self, hot: Hot) -> bool:
        """Let a branch go on that waits for nothing outside any more. Whether one did."""
        if hot.record is None:
            return False
        ready = self._serving.services.engine.continuations(hot.record, frozenset(hot.flushed))
        if not ready:
            return False
        await self.local(hot, ready[0])
        return True

    async def seal(self, hot: Hot) -> bool:
        """Seal an ended actor that nobody waits for. Whether it was."""
        services, record = self._serving.services, hot.record
        if record is None or not services.engine.wants_seal(record, frozenset(hot.flushed)):
            return False
        services.fault("before_seal", self._actor)
        await self._commit(hot, services.engine.seal(record, services.clock.now(), self._facts(hot)))
        services.fault("after_seal", self._actor)
        return True

    def is_clean(self, hot: Hot) -> bool:
        """Whether what the record consumed may be acknowledged."""
        return hot.record is not None and self._serving.services.engine.is_clean(
            hot.record, frozenset(hot.flushed)
        )

    def flushed(self, hot: Hot) -> None:
        """The whole outbox of the record is flushed."""
        self._flushed = hot.record is not None and hot.record.envelope.commit == self._committed

    async def quarantine(self, reason: str) -> bool:
        """Hold the actor with its last good record; whether it was. Raises `Overtaken`, `HigherEpoch`, `BrokerError`."""
        hot = await self.loaded()
        if hot.record is None or hot.record.envelope.hold is not None or hot.record.index.status.ended:
            return False
        await self._hold(hot, "quarantined", reason)
        return True

    def look_again(self) -> None:
        """What is decided after a load is to be decided again: a lease ended, or other code is here."""
        self._cold = True

    # ---- parts of a turn

    async def _suspected(self, hot: Hot) -> bool:
        """Count an attempt before user code runs, where that is due. True: the record changed, decide anew."""
        services, record = self._serving.services, hot.record
        while services.alone.blocks(self._actor):
            await services.alone.wait_free()
        if not self._suspect or record is None or services.pins.missing(record):
            return False  # code that is not here kills nobody here
        if record.envelope.attempts.count + 1 >= ALONE_AT:
            # Before it is counted: whoever only waits for its turn must not be accused of the death of the one that has it.
            await services.alone.acquire(self._actor)
        turn = services.engine.attempt(record, services.clock.now(), self._facts(hot))
        await self._commit(hot, turn)
        self._suspect = False
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
        if kind == "quarantined":
            services.meter.count("quarantined", workflow=record.index.workflow)
        turn = services.engine.hold(record, kind, reason, services.clock.now(), self._facts(hot), by=by)
        hot.discard()
        await self._commit(hot, turn)

    async def _turn(self, hot: Hot, event: Event | LocalEvent) -> Turn:
        services = self._serving.services
        pause = self._pace.pause(services.monotonic())
        if pause > 0:
            await self._pace.wait(pause)
        if hot.record is not None and self._serving.lane:
            if len(hot.record.envelope.consumed) >= self._prune_at:
                await self._prune_on_lane(hot.record)
        elif hot.record is not None and len(hot.record.envelope.consumed) >= MANY_CONSUMED:
            await self._prune(hot.record)
        live = hot.live if isinstance(hot.live, Branches) else None
        # Until the commit is done the live coroutines are ahead of the record: nobody may find them in the cache.
        hot.live = None
        began = services.monotonic()
        try:
            turn = services.engine.turn(hot.record, live, event, services.clock.now(), self._facts(hot))
            if turn.ran and not isinstance(event, Event) and hot.record is not None:
                self._serving.slow.took(hot.record, event.op, services.monotonic() - began)
            return turn
        except EventRefused:
            hot.live = live
            raise
        except BaseException:
            if live is not None:
                live.discard()
            raise

    async def _commit(self, hot: Hot, turn: Turn) -> None:
        """Store the turn's record; then, and only then, let its effects happen (I2)."""
        turn = self._given_back(turn)
        serving, services, record = self._serving, self._serving.services, turn.record
        ended = record.index.status.ended
        ttl = self._retention(record) if record.index.sealed else None
        began = services.monotonic()
        try:
            if turn.ran:
                services.fault("before_user_commit", self._actor)
            revision = await commit(services, self._actor, record, hot.revision, ttl=ttl)
        except BaseException:
            if turn.live is not None:
                turn.live.discard()
            raise
        before = hot.record
        gone = before.envelope.consumed - record.envelope.consumed if before is not None else ()
        hot.record, hot.revision = record, revision
        self._foreign = self._foreign and bool(record.envelope.calls)
        if before is not None and before.envelope.hold is not None and record.envelope.hold is None:
            self._cold = True
        if turn.live is not None or turn.ran or ended:
            hot.live = turn.live
        hot.flushed = set()
        self._committed, self._flushed = record.envelope.commit, not record.envelope.outbox
        self._mailbox.drop_gone(gone)
        serving.unknown.pop(self._actor, None)
        if record.index.hold == "pin" and not serving.lane:
            serving.pinned.add(self._actor)
        else:
            serving.pinned.discard(self._actor)
        services.marks.committed(serving.p, self._actor, revision, record.index.transition)
        services.meter.count("commits", workflow=record.index.workflow)
        services.meter.observe("commit_seconds", services.monotonic() - began)
        services.hot_cache.keep(self._actor, hot, services.monotonic())
        if turn.ran:
            self._suspect = False
            services.alone.release(self._actor)
            services.meter.count("resumes", workflow=record.index.workflow)
            services.meter.observe("frame_bytes", len(record.frame))
        if ended and not record.index.sealed:
            services.meter.count("ended", workflow=record.index.workflow, status=str(record.index.status))
            services.fault("after_terminal_commit", self._actor)
        if record.index.lane != serving.lane:
            self._let_go(hot)
        await self._carry_out(hot, turn)

    def _given_back(self, turn: Turn) -> Turn:
        """On a lane: give the actor back with this commit, if its partition's owner can run what it has become.

        Only when its code ran: what was on the lane for a reason then has gone on. Not while a step runs: the owner
        would wait for its outcome by way of `done`. And not while it is held: the operator's word comes the way the
        hold went.
        """
        record, serving = turn.record, self._serving
        if not serving.lane or not turn.ran or not record.index.lane:
            return turn
        if record.envelope.calls or record.envelope.hold is not None:
            return turn
        if not serving.services.pins.home_can(serving.p, record):
            return turn
        serving.services.meter.count("lane_returns", lane=serving.lane)
        index = msgspec.structs.replace(record.index, lane="")
        return replace(turn, record=msgspec.structs.replace(record, index=index))

    def _let_go(self, hot: Hot) -> None:
        """This commit handed the actor over: nothing of it stays hot here, and what it owes is flushed there."""
        hot.discard()
        self._serving.services.hot_cache.drop(self._actor)
        self._serving.services.alone.release(self._actor)

    def _retention(self, record: Record) -> int:
        """Seconds for which the sealed record is kept."""
        services = self._serving.services
        workflow = services.registry.workflows.get(record.index.workflow)
        kept = workflow.retention if workflow is not None and workflow.retention is not None else None
        return max(1, round(services.limits.retention_seconds if kept is None else kept))

    async def _carry_out(self, hot: Hot, turn: Turn) -> None:
        for effect in turn.effects:
            match effect:
                case RunStep():
                    self._start_step(hot, effect)
                case CancelStep(op):
                    key = operation_key(self._actor, turn.record.index.run, op)
                    self._serving.services.steps.cancel(self._serving.services, key)
                case Reply():
                    await send_reply(self._serving.services, effect)

    def _start_step(self, hot: Hot, run: RunStep) -> None:
        services, record = self._serving.services, hot.record
        assert record is not None, "a step belongs to a record"
        index = record.index
        actor = CurrentActor(index.actor, index.run, index.workflow, index.deployment, services.clock.now())
        services.steps.start(
            services, self._serving.group, actor, run.call, self._step_ended, delay=run.delay
        )

    def _facts(self, hot: Hot) -> Facts:
        serving, services, record = self._serving, self._serving.services, hot.record
        gone: frozenset[Origin] = frozenset()
        if serving.lane:
            assert record is not None, "only a record is on a lane"
            return Facts(
                epoch=record.envelope.epoch,
                node=services.runner,
                deployment=services.deployment,
                commit=services.ids(),
                flushed=frozenset(hot.flushed),
                gone=self._gone,
                lane_epoch=serving.epoch,
            )
        if record is not None and record.envelope.consumed:
            gone = frozenset(
                origin
                for origin in record.envelope.consumed
                if serving.floors.may_leave(origin) and not serving.held.has(self._actor, origin)
            )
        return Facts(
            epoch=serving.epoch,
            node=services.runner,
            deployment=services.deployment,
            commit=services.ids(),
            flushed=frozenset(hot.flushed),
            gone=gone,
        )

    async def _prune(self, record: Record) -> None:
        """The consumed set is large: find out what is gone, one by one where the floors do not tell."""
        floors = self._serving.floors
        await floors.refresh()
        for origin in sorted(record.envelope.consumed):
            if not self._mailbox.has(origin) and not floors.is_gone(origin):
                await floors.stored(origin)
        await floors.prove()

    async def _prune_on_lane(self, record: Record) -> None:
        """The same on a lane, where acknowledgements happen elsewhere, and so do moves.

        The owner may move an event once more as long as its source is stored, so the copies are looked at after the sources.
        """
        serving, consumed = self._serving, record.envelope.consumed
        floors = serving.floors
        await floors.storage_went_back(consumed)  # notes how far the streams are
        for stream in ("mail", "ctl", "wake"):
            floors.touch(stream)
        await floors.refresh()
        above = [origin for origin in sorted(consumed) if not floors.is_gone(origin)]
        for start in range(0, len(above), PRUNED_AT_ONCE):
            await asyncio.gather(*(floors.stored(origin) for origin in above[start : start + PRUNED_AT_ONCE]))
        gone = [origin for origin in consumed if floors.is_gone(origin)]
        await serving.list_held(self._actor)
        self._gone = frozenset(origin for origin in gone if not serving.held.has(self._actor, origin))
        self._prune_at = len(consumed) - len(self._gone) + PRUNED_AT_ONCE

    def _measure(self, event: Event, item: Item) -> None:
        services = self._serving.services
        if not event.held:
            late = max(0.0, services.clock.now() - event.time)
            services.meter.observe("wake_to_resume_seconds", late, kind=event.kind)


def _is_quiet(record: Record, until: float) -> bool:
    """Whether nothing but an outside event can make the actor go on before `until` (broker time)."""
    if record.index.status.ended:
        return record.index.sealed
    waits = record.envelope.waits
    return bool(waits) and all(
        wait.kind in ("sleep", "timeout", "branches") and (wait.until is None or wait.until > until)
        for wait in waits
    )


def _starts(record: Record, event: LocalEvent) -> bool:
    """Whether the event lets the workflow's function begin."""
    return any(wait.kind == "start" and wait.op == event.op for wait in record.envelope.waits)

"""Commits of one actor: the record a turn made is stored, and then, and only then, its effects happen (I2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sojourn.actors.current import CurrentActor
from sojourn.actors.events import CancelStep, Facts, Reply, RunStep, Turn, Warn
from sojourn.cluster.mail.mailbox import Mailbox
from sojourn.cluster.mail.pruning import Pruning
from sojourn.cluster.steps.local_steps import operation_key
from sojourn.codecs.record import Origin, Record

from .commits import commit
from .hot_cache import Hot
from .known_record import KnownRecord
from .outbox import send_reply

if TYPE_CHECKING:
    from .serving import Serving


class Committer:
    """The only one in this process who changes the record. Used by its host's loop only, one call at a time."""

    def __init__(self, serving: Serving, actor: str, mailbox: Mailbox, known: KnownRecord) -> None:
        self._serving = serving
        self._actor = actor
        self._mailbox = mailbox
        self._known = known
        self.pruning = Pruning(serving, actor, mailbox)

    async def commit(self, hot: Hot, turn: Turn) -> None:
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
        self._known.foreign = self._known.foreign and any(not call.queue for call in record.envelope.calls)
        if before is not None and before.envelope.hold is not None and record.envelope.hold is None:
            self._known.cold = True
        if turn.live is not None or turn.ran or ended:
            hot.live = turn.live
        hot.flushed, hot.given_up = set(), set()
        self._known.committed, self._known.all_flushed = record.envelope.commit, not record.envelope.outbox
        self._mailbox.drop_gone(gone)
        serving.unknown.pop(self._actor, None)
        if record.index.hold == "pin" and not serving.lane:
            serving.pinned.add(self._actor)
        else:
            serving.pinned.discard(self._actor)
        serving.note_hold(self._actor, record)
        if record.index.hold == "quarantined" and (before is None or before.index.hold != "quarantined"):
            services.meter.count("quarantined", workflow=record.index.workflow)
            services.defects.say(services.log, services.monotonic(), record)
        services.marks.committed(serving.p, self._actor, revision, record.index.transition)
        services.meter.count("commits", workflow=record.index.workflow)
        services.meter.observe("commit_seconds", services.monotonic() - began)
        services.hot_cache.keep(self._actor, hot, services.monotonic())
        if turn.ran:
            self._known.suspect = False
            services.alone.release(self._actor)
            services.meter.count("resumes", workflow=record.index.workflow)
            services.meter.observe("frame_bytes", len(record.frame))
        if ended and not _had_ended(before, record):
            services.meter.count("ended", workflow=record.index.workflow, status=str(record.index.status))
            services.fault("after_terminal_commit", self._actor)
        if record.index.lane != serving.lane:
            self._let_go(hot)
        await self._carry_out(hot, turn)

    def _given_back(self, turn: Turn) -> Turn:
        """On a lane: give the actor back with this commit, if its partition's owner can run what it has become.

        Only when its code ran: what was on the lane for a reason then has gone on. Not while a step runs here: the
        owner would wait for its outcome by way of `done`. And not while it is held: the operator's word comes the way the
        hold went.
        """
        record, serving = turn.record, self._serving
        if not serving.lane or not turn.ran or not record.index.lane:
            return turn
        running = any(not call.queue for call in record.envelope.calls)
        if running or record.envelope.hold is not None:
            return turn
        if not serving.services.pins.home_can(serving.p, record):
            return turn
        serving.services.meter.count("lane_returns", lane=serving.lane)
        index = msgspec.structs.replace(record.index, lane="")
        return msgspec.structs.replace(turn, record=msgspec.structs.replace(record, index=index))

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
                    self.start_step(hot, effect)
                case CancelStep(op):
                    key = operation_key(self._actor, turn.record.index.run, op)
                    self._serving.services.steps.cancel(self._serving.services, key)
                case Reply():
                    await send_reply(self._serving.services, effect)
                case Warn(text):
                    about = {"workflow": turn.record.index.workflow, "run": turn.record.index.run}
                    self._serving.services.log.warning("%s: %s", self._actor, text, extra=about)

    def start_step(self, hot: Hot, run: RunStep) -> None:
        """Run an attempt of a step whose call is committed and names this node."""
        services, record = self._serving.services, hot.record
        assert record is not None, "a step belongs to a record"
        index = record.index
        actor = CurrentActor(index.actor, index.run, index.workflow, index.deployment, services.clock.now())
        services.steps.start(
            services, self._serving.group, actor, run.call, self._serving.hosts.step_ended, delay=run.delay
        )

    def facts(self, hot: Hot, ends: tuple[Origin, ...] = ()) -> Facts:
        """What the engine needs to know about the one who will commit. `ends`: see `Facts`."""
        serving, services, record = self._serving, self._serving.services, hot.record
        assert record is not None or not serving.lane, "only a record is on a lane"
        return Facts(
            epoch=record.envelope.epoch if record is not None and serving.lane else serving.epoch,
            node=services.runner,
            deployment=services.deployment,
            commit=services.ids(),
            flushed=frozenset(hot.flushed),
            gone=self.pruning.gone(record) if record is not None else frozenset(),
            lane_epoch=serving.epoch if serving.lane else 0,
            ends=ends,
        )


def _had_ended(before: Record | None, record: Record) -> bool:
    """Whether this run had ended with the record before."""
    return before is not None and before.index.status.ended and before.index.run == record.index.run

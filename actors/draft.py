"""The next record while a turn is being decided: what the handlers change, and how it becomes a `Record`.

A draft is made from the committed record and thrown away when the turn is abandoned, so nothing of an abandoned turn
can leak.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from sojourn.codecs.record import (
    Attempts,
    Cancelling,
    Child,
    Ending,
    Envelope,
    Hold,
    Index,
    Move,
    Operation,
    Origin,
    OutboxEntry,
    Outcome,
    PendingCall,
    QueuedCall,
    Record,
    Seen,
    SourceLine,
    Status,
    Wait,
)

from .errors import LimitExceeded
from .events import CancelStep, Effect, Event, Facts
from .limits import Limits
from .states import checked, status_of

ITINERARY = 64
OPERATIONS = 64
SEEN_SECONDS = 86_400.0
"""How long the mark of a sender that is heard of no more is kept (I3)."""
_REPLACE = msgspec.structs.replace


class Draft:
    """A record in the making. Attributes are the envelope's and index's fields that a turn may change."""

    def __init__(self, record: Record, now: float, facts: Facts, limits: Limits) -> None:
        envelope = record.envelope
        self.base = record
        self.facts = facts
        self.limits = limits
        self.now = round(max(now, envelope.now), 3)
        self.status: Status | None = None
        """Set when the actor ends."""
        self.stage = record.index.stage
        self.tags = record.index.tags
        self.steps = record.index.steps
        self.ran = False
        self.frame = record.frame
        self.pin = record.index.pin
        self.pinned_to = record.index.pinned_to
        self.lane = record.index.lane
        self.next_op = envelope.next_op
        self.waits = {wait.op: wait for wait in envelope.waits}
        self.calls = {call.op: call for call in envelope.calls}
        self.results = dict(envelope.results)
        self.outbox = [entry for entry in envelope.outbox if entry.n not in facts.flushed]
        self._carried = len(self.outbox)
        self.consumed = envelope.consumed - facts.gone if facts.gone else envelope.consumed
        self.seen = envelope.seen
        self.lease = envelope.lease
        self.children = envelope.children
        self.args = envelope.args
        self.state = envelope.state
        self.outcome = envelope.outcome
        self.ending: Ending | None = envelope.ending
        self.cancelling: Cancelling | None = envelope.cancelling
        self.hold: Hold | None = envelope.hold
        self.attempts = envelope.attempts
        self.sealed = record.index.sealed
        self.operations = list(record.index.operations)
        self.effects: list[Effect] = []

    # numbers, events

    def take_op(self) -> int:
        """The next operation number; never reused in one run."""
        op = self.next_op
        self.next_op += 1
        return op

    def consume(self, event: Event) -> None:
        """This commit consumes the event: it enters the consumed set, becomes the lease, and moves its sender's mark
        (I3, 4.8)."""
        self.consumed = self.consumed | {event.origin}
        self.lease = event.origin
        key = seen_key(event)
        if key is not None and event.sender is not None:
            fresh = {k: mark for k, mark in self.seen.items() if self.now - mark.at < SEEN_SECONDS}
            fresh[key] = Seen(event.sender.op, self.now)
            self.seen = fresh

    # waits and timers

    def wait(self, wait: Wait) -> None:
        """A branch waits from now on; a timer that ends the wait is armed. Raises `LimitExceeded`: then nothing waits."""
        if wait.timer is not None and wait.until is not None:
            self.arm(wait.timer, wait.until)
        self.waits[wait.op] = wait

    def arm(self, timer: int, at: float) -> None:
        """Arm a durable timer. Raises `LimitExceeded` when it is further away than the sleep limit."""
        if at - self.now > self.limits.sleep_seconds:
            raise LimitExceeded("sleep_seconds", value=at - self.now, allowed=self.limits.sleep_seconds)
        self._send(OutboxEntry(n=timer, kind="arm", target=self.base.index.actor, timer=timer, at=at))

    def disarm(self, timer: int | None) -> None:
        """Disarm a timer; one that this very turn armed was never armed."""
        if timer is None:
            return
        fresh = [e for e in self.outbox[self._carried :] if not (e.kind == "arm" and e.timer == timer)]
        if len(fresh) < len(self.outbox) - self._carried:
            self.outbox[self._carried :] = fresh
        else:
            self._send(
                OutboxEntry(n=self.take_op(), kind="disarm", target=self.base.index.actor, timer=timer)
            )

    def settle(self, op: int, *, fired: int | None = None) -> Wait | None:
        """A wait is over: its timer is disarmed, unless it is the one that fired; its step, if it still runs, is
        told."""
        wait = self.waits.pop(op, None)
        if wait is None:
            return None
        if wait.timer is not None and wait.timer != fired:
            self.disarm(wait.timer)
        call = self.calls.pop(op, None)
        if call is not None:
            self._disarm_call(call, fired)
            self.drop_task(op)
            self.effects = [e for e in self.effects if getattr(getattr(e, "call", None), "op", None) != op]
            self.effects.append(CancelStep(op))
            self.note(op, outcome="cancelled")
        self.results.pop(op, None)
        return wait

    def _disarm_call(self, call: PendingCall, fired: int | None = None) -> None:
        for timer in (call.retry_timer, call.deadline_timer):
            if timer is not None and timer != fired:
                self.disarm(timer)

    def call_over(self, call: PendingCall) -> None:
        """A step has its result: it is pending no more, nor is any timer or task of it."""
        self.calls.pop(call.op, None)
        self._disarm_call(call)
        self.drop_task(call.op)

    def drop_task(self, op: int) -> None:
        """A task of this operation that is not known to be published is not wanted any more."""
        unwanted = [at for at, e in enumerate(self.outbox) if e.kind == "task" and e.op == op]
        for at in reversed(unwanted):
            del self.outbox[at]
            self._carried -= at < self._carried

    def undo(self, op: int) -> None:
        """Take back a wait that this turn began: nothing of it was committed, so nothing of it may happen."""
        self.settle(op)
        self.outbox[self._carried :] = [e for e in self.outbox[self._carried :] if e.n != op]
        self.children = {name: child for name, child in self.children.items() if child.op != op}
        self.effects = [e for e in self.effects if not (isinstance(e, CancelStep) and e.op == op)]

    # messages, children, operations

    def send(self, entry: OutboxEntry) -> None:
        """Add an effect that happens once this commit is acknowledged (I2)."""
        self._send(entry)

    def _send(self, entry: OutboxEntry) -> None:
        self.outbox.append(entry)

    def set_child(self, child: Child) -> None:
        """Add or change a child."""
        if self.children is self.base.envelope.children:
            self.children = dict(self.children)
        self.children[child.id] = child

    def add_call(self, call: PendingCall) -> None:
        """A local step is pending; it may run once this is committed."""
        self.calls[call.op] = call

    def begin(self, op: int, kind: str, name: str) -> None:
        """Note an operation for `describe`."""
        self.operations.append(Operation(op, kind, name, 1, "", self.now, None))
        del self.operations[:-OPERATIONS]

    def note(self, op: int, *, outcome: str, attempts: int | None = None) -> None:
        """Note how an operation went; forgotten when it is older than the last 64."""
        for at in range(len(self.operations) - 1, -1, -1):
            old = self.operations[at]
            if old.op == op:
                self.operations[at] = Operation(
                    op,
                    old.kind,
                    old.name,
                    attempts or old.attempts,
                    outcome,
                    old.started,
                    self.now if outcome else None,
                )
                return

    # the result

    def finish(self) -> Record:
        """The record that this turn commits."""
        base, facts = self.base, self.facts
        waits = tuple(self.waits[op] for op in sorted(self.waits))
        envelope = Envelope(
            commit=facts.commit,
            previous=base.envelope.commit,
            epoch=facts.epoch,
            lane_epoch=facts.lane_epoch,
            next_op=self.next_op,
            waits=waits,
            calls=tuple(self.calls[op] for op in sorted(self.calls)),
            results=self.results,
            outbox=tuple(self.outbox),
            consumed=self.consumed,
            seen=self.seen,
            lease=self.lease,
            children=self.children,
            parent=base.envelope.parent,
            request=base.envelope.request,
            ends=base.envelope.ends,
            args=self.args,
            state=self.state,
            outcome=self.outcome,
            ending=self.ending,
            cancelling=self.cancelling,
            hold=self.hold,
            attempts=Attempts() if self.ran else self.attempts,
            now=self.now,
        )
        status = self.status or (base.index.status if base.index.status.ended else status_of(envelope))
        before = base.index.status if base.index.transition else None
        if status.ended and not self.outbox and not self.lane and base.envelope.parent is None:
            self.sealed = True  # nothing is owed to anyone: a seal of its own would say no more
        return Record(self._index(envelope, checked(before, status)), envelope, self.frame)

    def _index(self, envelope: Envelope, status: Status) -> Index:
        old, node = self.base.index, self.facts.node.split("/", 1)[0]
        transition = old.transition + 1
        itinerary = old.itinerary
        if self.ran and (not itinerary or itinerary[-1].node != node):
            itinerary = (*itinerary, Move(transition, node, self.now))[-ITINERARY:]
        return _REPLACE(
            old,
            status=status,
            transition=transition,
            updated=self.now,
            deployment=self.facts.deployment if self.ran else old.deployment,
            stage=self.stage,
            wait=sentence(envelope, status),
            stacks=stacks(envelope),
            hold=envelope.hold.kind if envelope.hold else "",
            hold_reason=envelope.hold.reason if envelope.hold else "",
            pin=self.pin,
            pinned_to=self.pinned_to,
            # Only the partition's owner flushes, seals and sweeps what has ended.
            lane="" if status.ended else self.lane,
            children=sum(child.status != "ended" for child in envelope.children.values()),
            tags=self.tags,
            steps=self.steps,
            resumes=old.resumes + (1 if self.ran else 0),
            frame_bytes=len(self.frame),
            node=node,
            itinerary=itinerary,
            operations=tuple(self.operations),
            sealed=self.sealed,
            queued=tuple(
                QueuedCall(call.op, call.attempt, call.queue, call.step, call.first_started)
                for call in envelope.calls
                if call.queue
            ),
        )


def seen_key(event: Event) -> str | None:
    """The stream of operations an internal event belongs to, per (sender, run, channel); None when its kind needs no
    mark."""
    if event.sender is None or event.kind not in ("mail", "start", "cancel", "terminate"):
        return None
    return f"{event.sender.actor}/{event.sender.run}/{event.channel if event.kind == 'mail' else '.' + event.kind}"


def stacks(envelope: Envelope) -> tuple[tuple[SourceLine, ...], ...]:
    """Per waiting branch, the chain of awaits."""
    return tuple(wait.stack for wait in envelope.waits if wait.kind != "timeout" and wait.stack)


def sentence(envelope: Envelope, status: Status) -> str:
    """What an actor waits for, in words."""
    if status.ended:
        return ""
    parts = [_words(wait, envelope) for wait in envelope.waits if wait.kind not in ("timeout", "branches")]
    if not parts and envelope.ending is not None:
        waiting = sum(
            child.status != "ended" and child.policy == "cancel" for child in envelope.children.values()
        )
        parts = [f"the end of {waiting} children"]
    shown = ", ".join(parts[:3])
    return f"{shown} and {len(parts) - 3} more" if len(parts) > 3 else shown


def _words(wait: Wait, envelope: Envelope) -> str:
    until = (
        f" until {datetime.fromtimestamp(wait.until, UTC).isoformat(timespec='seconds')}"
        if wait.until
        else ""
    )
    match wait.kind:
        case "receive":
            return f"receive {' or '.join(wait.channels)}{until}"
        case "sleep" | "start":
            return f"{wait.kind}{until}"
        case "call":
            call = next((call for call in envelope.calls if call.op == wait.op), None)
            attempt = f" (attempt {call.attempt})" if call is not None and call.attempt > 1 else ""
            queue = f" in queue {call.queue}" if call is not None and call.queue else ""
            return f"step {wait.name}{queue}{attempt}"
        case "join":
            return f"child {wait.name}"
        case kind:
            return f"{kind} {wait.name}".rstrip()


def outcome_words(outcome: Outcome) -> str:
    """An outcome in a word, for the list of operations."""
    return "ok" if outcome.kind == "value" else outcome.kind


def origin_words(origin: Origin) -> str:
    """An origin for logs."""
    return f"{origin.stream}:{origin.seq}"

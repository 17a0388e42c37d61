"""What to do with an event, before any commit: a pure function of (record, event).

Order of the questions: was this very event consumed (the exact set, I3), was its sender heard beyond it (seen
marks), is it late, does it
speak of another run; only then what its kind means for the actor's state. "No effect" and "dead" are final, so the
owner asks again with a
record read from the leader before it acts on them (PROTOCOL 4.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sojourn.codecs import data
from sojourn.codecs.errors import PayloadError
from sojourn.codecs.record import Child, Envelope, Hold, PendingCall, Record, Status

from . import queued
from .draft import seen_key
from .events import Decision, Event, Message, Reply, Verdict
from .limits import Limits
from .registry import Registry
from .states import HOLD_ACCEPTS

_JSON = data.Type(Any)
_CONSUME = Decision(Verdict.CONSUME)
_RUN = Decision(Verdict.CONSUME, needs_frame=True)
_WAIT = Decision(Verdict.WAIT)
_CONSUMED = Decision(Verdict.CONSUMED)
UNDELIVERED = "undelivered"
"""Outcome of an operation that sent mail which its receiver could not take."""


def decide(
    record: Record | None, event: Event, registry: Registry, limits: Limits, deployment: str = ""
) -> Decision:
    """The verdict on an event for this actor. `deployment`: label of the code in `registry`."""
    if record is not None and event.origin in record.envelope.consumed:
        return _CONSUMED
    if record is not None and _heard_beyond(record.envelope, event):
        return _no_effect("seen before")
    if is_late(event):
        return _no_effect("stored after its sender had given it up")
    if event.kind == "mail":
        return _mail(record, event, registry, limits, deployment)
    if record is None:
        return _unknown_actor(event)
    if event.kind != "start" and _other_run(record, event):
        return _answered(event, record)
    if record.index.status.ended:
        return _ended(record, event)
    hold = record.envelope.hold
    if hold is not None and event.kind not in HOLD_ACCEPTS[hold.kind]:
        return _while_held(record, event, hold)
    return _LIVE[event.kind](record, event)


def is_late(event: Event) -> bool:
    """Whether an internal message was stored after the time its sender gave it (PROTOCOL 4.7)."""
    not_after = event.body.get("not_after")
    return isinstance(not_after, int | float) and event.time > not_after


def _heard_beyond(envelope: Envelope, event: Event) -> bool:
    key = seen_key(event)
    if key is None or event.sender is None:
        return False
    mark = envelope.seen.get(key)
    return mark is not None and event.sender.op <= mark.op


def _no_effect(reason: str, reply: Reply | None = None) -> Decision:
    return Decision(Verdict.NO_EFFECT, reason, reply)


def _reply(event: Event, record: Record | None, *, error: str = "", message: str = "") -> Reply | None:
    if not event.reply:
        return None
    facts: dict[str, object] = {"ok": not error, "actor": event.actor}
    if record is not None:
        facts |= {
            "run": record.index.run,
            "status": str(record.index.status),
            "workflow": record.index.workflow,
        }
    if error:
        facts |= {"error": error, "message": message}
    return Reply(event.reply, facts)


# mail


def _mail(
    record: Record | None, event: Event, registry: Registry, limits: Limits, deployment: str
) -> Decision:
    if len(event.payload) > limits.payload_bytes:
        return Decision(
            Verdict.DEAD,
            f"payload: expected at most {limits.payload_bytes} bytes, received {len(event.payload)}",
        )
    try:
        _JSON.decode(event.payload)
    except PayloadError as wrong:
        return Decision(Verdict.DEAD, f"payload: {wrong}")
    if record is None:
        return _WAIT
    if record.index.status.ended:
        return Decision(Verdict.DEAD, f"the actor has ended ({record.index.status})")
    if any(event.origin.is_up_to(end) for end in record.envelope.ends):
        # A letter for it may be written already, by an owner that died before it acknowledged the mail.
        return Decision(Verdict.DEAD, "sent to an earlier run")
    # Another version of the workflow may have other channels: only the one it last ran knows.
    known_here = not deployment or record.index.deployment == deployment
    workflow = registry.workflows.get(record.index.workflow) if known_here else None
    if workflow is not None and workflow.channels is not None and event.channel not in workflow.channels:
        known = ", ".join(sorted(workflow.channels)) or "none"
        return Decision(
            Verdict.DEAD, f"no such channel: `{event.channel}`; workflow {workflow.name} has {known}"
        )
    if record.envelope.hold is not None:
        return _WAIT
    if any(wait.kind == "receive" and event.channel in wait.channels for wait in record.envelope.waits):
        return _RUN
    return _WAIT


# actors without a record


def _unknown_actor(event: Event) -> Decision:
    match event.kind:
        case "start":
            return _CONSUME
        case "cancel" | "terminate" if event.sender is not None:
            return _CONSUME  # a late start must find that it was cancelled (PROTOCOL 6)
        case "child-done":
            return _orphan(event)
        case _:
            return _no_effect(
                "no such actor",
                _reply(event, None, error="no such actor", message="never started, or past its retention"),
            )


def _orphan(event: Event) -> Decision:
    """The parent is gone or has heard of this end before: the child may be sealed."""
    body = {"run": event.body.get("child_run"), "by": event.actor}
    return Decision(
        Verdict.NO_EFFECT,
        "nobody waits for this child",
        answers=(Message("seal", str(event.body.get("child")), body),),
    )


def _other_run(record: Record, event: Event) -> bool:
    run = event.body.get("run")
    return isinstance(run, str) and run != record.index.run


def _answered(event: Event, record: Record) -> Decision:
    """An event that speaks of a run which is over. Who asked for an answer is told."""
    if event.kind == "child-done":
        return _orphan(event)
    message = f"this run of {event.actor} is over; the present one is {record.index.run}"
    return _no_effect("of another run", _reply(event, record, error="another run", message=message))


# ended actors


def _ended(record: Record, event: Event) -> Decision:
    match event.kind:
        case "start":
            return _start_again(record, event)
        case "child-done":
            return _orphan(event)
        case "seal":
            return _no_effect("sealed before") if record.index.sealed else _CONSUME
        case "cancel" | "terminate" | "pause" | "resume" | "release":
            message = f"{event.actor} has ended ({record.index.status})"
            return _no_effect("the actor has ended", _reply(event, record, error="ended", message=message))
        case _:
            return _no_effect("the actor has ended")


def _start_again(record: Record, event: Event) -> Decision:
    """A start for an id that has a record: the same request again, or the policy decides."""
    envelope, index = record.envelope, record.index
    parent = event.sender
    if parent is not None and envelope.parent is not None:
        own = envelope.parent
        if (own.id, own.run, own.op) == (parent.actor, parent.run, parent.op):
            return _no_effect("started before")
    if parent is not None:
        why = f"the id belongs to another actor ({index.workflow}, {index.status})"
        body = {"child": event.actor, "child_run": "", "op": parent.op, "run": parent.run, "why": why}
        return Decision(Verdict.NO_EFFECT, why, answers=(Message("refused", parent.actor, body),))
    policy = event.body.get("if_exists", "reject")
    if event.body.get("request") == envelope.request or policy == "join":
        return _no_effect("started before", _reply(event, record))
    if policy == "restart" and index.status.ended:
        # Its children have ended and nothing of the old run may be lost: the outbox is flushed and the record sealed
        # first.
        return _CONSUME if index.sealed else _WAIT
    if policy == "restart":
        return Decision(Verdict.CONSUME, "restart")
    message = f"{event.actor} exists ({index.workflow}, {index.status})"
    return _no_effect("the id exists", _reply(event, record, error="already started", message=message))


# live actors


def _timer(record: Record, event: Event) -> Decision:
    timer, envelope = event.body.get("n"), record.envelope
    for wait in envelope.waits:
        if wait.timer == timer:
            return _RUN
    for call in envelope.calls:
        if call.retry_timer == timer:
            return _CONSUME
        if call.deadline_timer == timer:
            return _RUN
    if timer is not None and timer in grace_timers(envelope):
        return _CONSUME
    return _no_effect("disarmed")


def grace_timers(envelope: Envelope) -> tuple[int, ...]:
    """Timers that end the grace period."""
    timers = (
        envelope.cancelling.grace_timer if envelope.cancelling else None,
        envelope.ending.grace_timer if envelope.ending else None,
    )
    return tuple(timer for timer in timers if timer is not None)


def _cancel(record: Record, event: Event) -> Decision:
    if record.envelope.cancelling is not None or record.envelope.ending is not None:
        return _no_effect("cancelled before", _reply(event, record))
    return _RUN if record.frame else _CONSUME


def _done(record: Record, event: Event) -> Decision:
    for call in record.envelope.calls:
        if call.op == event.body.get("op"):
            return _result_of_worker(call, event) if call.queue else _result_of_node(event)
    return _no_effect("the operation is over")


def _result_of_node(event: Event) -> Decision:
    if "token" in event.body:
        return Decision(Verdict.DEAD, "a worker's result of a step that is not queued")
    return _RUN


def _result_of_worker(call: PendingCall, event: Event) -> Decision:
    if reason := queued.refusal(call, event.body):
        return Decision(Verdict.DEAD, reason)
    if "again" in event.body:
        return _RUN if queued.is_last_straw(call, event.body) else _CONSUME
    if not queued.counts(call, queued.done_of(event.body, len(event.payload))):
        return _no_effect("an earlier attempt failed, and the next one is under way")
    return _RUN


def _child_done(record: Record, event: Event) -> Decision:
    child = record.envelope.children.get(str(event.body.get("child")))
    if child is None or child.status == "ended" or child.op != event.body.get("op"):
        return _orphan(event)
    return Decision(Verdict.CONSUME, needs_frame=_joined(record.envelope, child))


def _refused(record: Record, event: Event) -> Decision:
    child = record.envelope.children.get(str(event.body.get("child")))
    if child is None or child.status == "ended" or child.op != event.body.get("op"):
        return _no_effect("not waited for")
    return Decision(Verdict.CONSUME, needs_frame=_joined(record.envelope, child))


def _undelivered(record: Record, event: Event) -> Decision:
    for one in record.index.operations:
        if one.op == event.body.get("op") and one.kind == "send" and one.outcome != UNDELIVERED:
            return _CONSUME
    return _no_effect("not among the last operations")


def _joined(envelope: Envelope, child: Child) -> bool:
    return any(wait.kind == "join" and wait.name == child.id for wait in envelope.waits)


def _while_held(record: Record, event: Event, hold: Hold) -> Decision:
    """What a hold does not accept waits until it is over, except what speaks of holds itself: answered now, for whoever
    asked cannot tell a wait from an actor that nobody owns, and a repeated `pause` must not come into force after its `resume`.
    """
    match event.kind:
        case "start":
            return _start_again(record, event)
        case "pause" if hold.kind == "paused":
            return _no_effect("paused before", _reply(event, record))
        case "cancel" if record.envelope.cancelling is not None or record.envelope.ending is not None:
            return _no_effect("cancelled before", _reply(event, record))
        case "cancel":  # kept, and in force once its code is there
            return Decision(Verdict.WAIT, reply=_reply(event, record))
        case "pause" | "resume" | "release":
            message = f"{event.actor} is {_HOLDS[hold.kind]}"
            return _no_effect("held otherwise", _reply(event, record, error="held", message=message))
        case _:
            return _WAIT


_HOLDS = {
    "paused": "paused, not quarantined: `resume` lets it go on",
    "quarantined": "quarantined, not paused: its code does not run until `release`",
    "pin": "held because no living node has its code: it goes on when one does",
}


def _pause(record: Record, event: Event) -> Decision:
    return _CONSUME


def _unhold(record: Record, event: Event) -> Decision:
    hold: Hold | None = record.envelope.hold
    if hold is None:
        message = f"{event.actor} is not held ({record.index.status})"
        return _no_effect("not held", _reply(event, record, error="not held", message=message))
    return _CONSUME


def _nothing(record: Record, event: Event) -> Decision:
    return _no_effect("")


_LIVE: dict[str, Callable[[Record, Event], Decision]] = {
    "start": _start_again,
    "cancel": _cancel,
    "terminate": lambda record, event: _CONSUME,
    "pause": _pause,
    "resume": _unhold,
    "release": _unhold,
    "spawned": _nothing,
    "refused": _refused,
    "undelivered": _undelivered,
    "done": _done,
    "timer": _timer,
    "child-done": _child_done,
    "seal": _nothing,
    "nudge": _nothing,
}

_KIND_RANK = {
    "start": 0,
    "cancel": 0,
    "terminate": 0,
    "pause": 0,
    "resume": 0,
    "release": 0,
    "spawned": 0,
    "refused": 0,
    "undelivered": 0,
    "done": 1,
    "timer": 2,
    "child-done": 3,
    "seal": 3,
    "nudge": 4,
    "mail": 5,
}


def rank(event: Event) -> tuple[int, str, int, int]:
    """Sort key for PROTOCOL 4.1: control, done, timer, child-done, then mail; within one stream by sequence, held or
    not."""
    kind, origin = _KIND_RANK.get(event.kind, 9), event.origin
    return kind, origin.stream, origin.created, origin.seq


def is_terminal(record: Record) -> bool:
    """Whether the actor has ended."""
    status: Status = record.index.status
    return status.ended

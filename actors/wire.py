"""Internal messages between JSON on the wire and values: what arrives becomes an `Event`, an outbox entry becomes a
`Publish`.

Trust is told by subject, never by header or body (PROTOCOL 1): `mail` is from outside whatever it says, `send` and
`done` are from nodes. A
control message says who its parent is; that claim is believed only with a mark that nodes alone can make. What does
not fit is `Malformed`,
with a reason that quotes no payload.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import orjson
from sojourn.broker import timers
from sojourn.broker.seam import Headers, Publish
from sojourn.broker.subjects import Ctl, Done, Held, Mail, Send, Subjects, Wake, actor_id, channel_name, token
from sojourn.codecs.data import UNDECODABLE
from sojourn.codecs.errors import RecordError
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Index, Origin, OutboxEntry, Outcome, PendingCall

from . import task
from .events import Event, EventKind, Message, Sender

Addressed = Mail | Ctl | Done | Send | Wake | Held
_KINDS: frozenset[str] = frozenset(get_args(EventKind))
_CTL = frozenset(
    ("start", "cancel", "terminate", "pause", "resume", "release", "spawned", "refused", "undelivered")
)
_WAKE = frozenset(("timer", "child-done", "seal", "nudge"))
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_USERS_VALUES = frozenset(("args", "payload", "outcome"))
_WRONG_RESULT = {
    "shape": "expected run, op, attempt, token, mark and outcome",
    "mark": "its mark is not of this operation and attempt",
    "outcome": "its outcome is none",
}
LIFE = 60.0
"""Seconds for which an internal message that is not a schedule may be stored after it was sent (PROTOCOL 4.7)."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that is no event: dead letter with this reason."""

    reason: str


def source_of(parsed: Addressed) -> tuple[str, str]:
    """Under which kind and name an event is held: (`mail`, channel), (`ctl`, verb), ..."""
    match parsed:
        case Mail(channel=channel):
            return "mail", channel
        case Send(channel=channel):
            return "send", channel
        case Ctl(verb=verb):
            return "ctl", verb
        case Done(op=op):
            return "done", op
        case Wake(kind=kind):
            return "wake", kind
        case Held(kind=kind, name=name):
            return kind, name


def parse_event(
    parsed: Addressed,
    origin: Origin,
    *,
    time: float,
    headers: Headers,
    payload: bytes,
    keyring: Keyring,
    inbox_prefix: str,
) -> Event | Malformed:
    """The event that a stored message, or its held copy, is. `time` is when it was first stored."""
    source, name = source_of(parsed)
    actor, held = str(parsed.actor), isinstance(parsed, Held)
    if source == "mail":
        return Event("mail", actor, origin, time, channel=name, payload=payload, held=held)
    if source == "wake" and name == "timer":
        fired = timers.fired(headers)
        if fired is None:
            return Malformed("a timer that does not say which")
        return Event("timer", actor, origin, time, body={"run": fired.run, "n": fired.n}, held=held)
    if source == "done" and payload[:1] == b"{":
        found = task.parse_result(payload, actor=actor, op=name, keyring=keyring)
        if isinstance(found, str):
            return Malformed(f"result of a queued step: {_WRONG_RESULT[found]}")
        return Event("done", actor, origin, time, body=found, held=held)
    if source == "done":
        try:
            payload = keyring.open_bytes("done", (actor, name), payload)
        except RecordError as broken:
            return Malformed(f"outcome of a step: {broken}")
    body = _object(payload)
    if body is None:
        return Malformed(f"{source} `{name}`: expected a JSON object")
    if source == "send":
        return _sent(actor, name, origin, time, body, held)
    if source == "done":
        return Event("done", actor, origin, time, body=body, held=held)
    if (source == "ctl" and name not in _CTL) or (source == "wake" and name not in _WAKE):
        return Malformed(f"no such {source} message: `{name[:40]}`")
    return _control(actor, name, origin, time, body, held, keyring, inbox_prefix)


def _object(payload: bytes) -> dict[str, Any] | None:
    """The members of a JSON object; users' values stay bytes (a large integer would not survive being decoded
    without its type)."""
    if not payload:
        return {}
    try:
        members = _MEMBERS.decode(payload)
        return {
            k: value if k in _USERS_VALUES else orjson.loads(bytes(value)) for k, value in members.items()
        }
    except UNDECODABLE:
        return None


def _sender(claim: object) -> Sender | None:
    if not isinstance(claim, dict):
        return None
    actor, run, op = claim.get("id"), claim.get("run"), claim.get("op")
    if not (isinstance(actor, str) and isinstance(run, str) and isinstance(op, int)):
        return None
    transition = claim.get("transition")
    return Sender(actor, run, op, transition if isinstance(transition, int) else 0)


def _sent(
    actor: str, channel: str, origin: Origin, time: float, body: dict[str, Any], held: bool
) -> Event | Malformed:
    sender = _sender({**body, "id": body.get("from")})
    if sender is None or "payload" not in body:
        return Malformed("mail between actors: expected from, run, op and payload")
    facts = {"not_after": body.get("not_after")}
    payload = bytes(body["payload"])
    return Event(
        "mail", actor, origin, time, channel=channel, payload=payload, body=facts, sender=sender, held=held
    )


def _control(
    actor: str,
    verb: str,
    origin: Origin,
    time: float,
    body: dict[str, Any],
    held: bool,
    keyring: Keyring,
    inbox_prefix: str,
) -> Event | Malformed:
    sender = None
    claim = body.get("parent")
    if claim is not None:
        sender = _sender(claim)
        if sender is None or not keyring.verify_mac(
            str(claim.get("mac")), "parent", *_marked(verb, actor, sender)
        ):
            return Malformed(f"{verb}: the mark of its parent does not hold")
    reply = body.get("reply")
    if not (isinstance(reply, str) and reply.startswith(inbox_prefix) and _plain(reply)):
        reply = ""
    kind: Any = verb
    return Event(kind, actor, origin, time, body=body, sender=sender, reply=reply, held=held)


def _plain(subject: str) -> bool:
    """Whether a reply subject names exactly one subject."""
    return len(subject) <= 256 and not any(character in subject for character in "*> \t\r\n\0")


def _marked(verb: str, target: str, sender: Sender) -> tuple[str, ...]:
    return verb, target, sender.actor, sender.run, str(sender.op)


# the way out


def outbox_publish(
    entry: OutboxEntry,
    index: Index,
    calls: Iterable[PendingCall] = (),
    *,
    revision: int = 0,
    subjects: Subjects,
    keyring: Keyring,
    now: float,
) -> Publish:
    """The message that an outbox entry of this actor stands for. `calls` are those of its record, which has this `revision`: a
    task is made from one. `now` is broker time; internal messages are void after `LIFE`."""
    if entry.kind == "task":
        call = next(call for call in calls if call.op == entry.op)
        return task.task_publish(call, index, revision=revision, subjects=subjects, keyring=keyring)
    target, actor, run = actor_id(entry.target), actor_id(index.actor), token(index.run)
    sender = Sender(index.actor, index.run, entry.n, index.transition)
    if entry.kind == "arm":
        assert entry.timer is not None, "an arm entry names its timer"
        assert entry.at is not None, "an arm entry names its time"
        return timers.arm(subjects, actor, run, entry.timer, at=entry.at)
    if entry.kind == "disarm":
        assert entry.timer is not None, "a disarm entry names its timer"
        return timers.disarm(subjects, actor, run, entry.timer)
    if entry.kind == "send":
        return Publish(subjects.send(target, channel_name(entry.channel)), _mail_body(entry, sender, now))
    body: dict[str, Any] = dict(_MEMBERS.decode(entry.body)) if bytes(entry.body) != b"null" else {}
    body |= {"transition": index.transition, "not_after": now + LIFE}
    match entry.kind:
        case "start" | "cancel" | "terminate":
            mark = keyring.mac("parent", *_marked(entry.kind, entry.target, sender))
            body["parent"] = {
                "id": sender.actor,
                "run": sender.run,
                "op": sender.op,
                "transition": sender.transition,
                "mac": mark,
            }
            body |= {"request": f"{index.actor}/{index.run}/{entry.n}", "by": index.actor}
            return Publish(subjects.ctl(target, token(entry.kind)), msgspec.json.encode(body))
        case "child-done":
            body |= {"child": index.actor, "child_run": index.run}
            return Publish(subjects.wake(target, token("child-done")), msgspec.json.encode(body))
        case "seal":
            body |= {"by": index.actor}
            return Publish(subjects.wake(target, token("seal")), msgspec.json.encode(body))
        case kind:
            return Publish(subjects.ctl(target, token(kind)), msgspec.json.encode(body))


def _mail_body(entry: OutboxEntry, sender: Sender, now: float) -> bytes:
    head = {
        "from": sender.actor,
        "run": sender.run,
        "op": sender.op,
        "transition": sender.transition,
        "not_after": now + LIFE,
        "payload": orjson.Fragment(bytes(entry.body)),
    }
    return orjson.dumps(head)


def undelivered(event: Event, reason: str) -> Message | None:
    """What the sender of mail that is dead is told; None for mail from outside, and for what is no mail."""
    sender = event.sender
    if event.kind != "mail" or sender is None:
        return None
    body = {"run": sender.run, "op": sender.op, "actor": event.actor, "channel": event.channel, "why": reason}
    return Message("undelivered", sender.actor, body)


def message_publish(message: Message, *, subjects: Subjects, now: float) -> Publish:
    """An answer to an event that changed no record."""
    target = actor_id(message.target)
    body = msgspec.json.encode({**message.body, "not_after": now + LIFE})
    if message.kind == "seal":
        return Publish(subjects.wake(target, token("seal")), body)
    return Publish(subjects.ctl(target, token(message.kind)), body)


def done_publish(
    actor: str,
    run: str,
    op: int,
    attempt: int,
    outcome: Outcome,
    *,
    retryable: bool = True,
    subjects: Subjects,
    keyring: Keyring,
) -> Publish:
    """The outcome of a step whose actor moved away while it ran, sealed as a record is (PROTOCOL 3)."""
    body = msgspec.json.encode(
        {"run": run, "op": op, "attempt": attempt, "outcome": outcome, "retryable": retryable}
    )
    sealed = keyring.seal_bytes("done", (actor, str(op)), body)
    return Publish(subjects.done(actor_id(actor), token(str(op))), sealed)

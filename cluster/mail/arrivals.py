"""From stored messages to events: the first act on a message is to parse its subject into checked types (PROTOCOL 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from sojourn.actors.events import Event
from sojourn.actors.wire import Malformed, parse_event
from sojourn.broker.held import COPY_ROOM, HeldEvent
from sojourn.broker.seam import Stored
from sojourn.broker.subjects import ChannelName, Ctl, Done, Mail, Send, Token, Wake
from sojourn.codecs.record import Origin

from .mailroom import Arrival

if TYPE_CHECKING:
    from sojourn.cluster.hosting.services import PartitionServices


@dataclass(frozen=True, slots=True)
class Unparsable:
    """A message that is no event: dead letter by its sequence, with this reason."""

    reason: str


def arrival(
    stored: Stored, origin: Origin, services: PartitionServices
) -> tuple[Event, Arrival] | Unparsable:
    """The event in a delivered message. One that could not be moved is none: it would keep all others of its partition from that."""
    size, most = len(stored.payload), services.broker.max_message - COPY_ROOM
    if size > most:
        return Unparsable(f"too large: {size} bytes, and {most} can be held")
    parsed = services.subjects.parse(stored.subject)
    if not isinstance(parsed, Mail | Ctl | Done | Send | Wake):
        return Unparsable("malformed subject")
    return _event(stored, parsed, origin, services)


def held_arrival(held: HeldEvent, services: PartitionServices) -> tuple[Event, Arrival, Stored] | Unparsable:
    """The event in a held copy, with the message as it was first stored."""
    parsed = _held_parsed(held)
    stored = Stored(
        held.origin.stream, held.origin.seq, _subject(parsed, services), held.payload, held.headers, held.time
    )
    found = _event(stored, parsed, held.origin, services)
    if isinstance(found, Unparsable):
        return found
    return msgspec.structs.replace(found[0], held=True), parsed, stored


def _event(
    stored: Stored, parsed: Arrival, origin: Origin, services: PartitionServices
) -> tuple[Event, Arrival] | Unparsable:
    try:
        event = parse_event(
            parsed,
            origin,
            time=stored.time,
            headers=stored.headers,
            payload=stored.payload,
            keyring=services.keyring,
            inbox_prefix=services.inbox_prefix,
        )
    except Exception as broken:
        # Nothing that anybody may send is known to come here. If something does, it must not stop the partition: the pull
        # would break off, and again at each redelivery.
        services.log.exception(
            "a message of %s cannot be read (%s %s)", parsed.actor, origin.stream, origin.seq
        )
        return Unparsable(f"cannot be read: {type(broken).__name__}")
    if isinstance(event, Malformed):
        return Unparsable(event.reason)
    return event, parsed


def _held_parsed(held: HeldEvent) -> Arrival:
    p, actor = held.partition, held.actor
    match held.kind:
        case "mail":
            return Mail(p, actor, ChannelName(held.name))
        case "send":
            return Send(p, actor, ChannelName(held.name))
        case "ctl":
            return Ctl(p, actor, Token(held.name))
        case "done":
            return Done(p, actor, Token(held.name))
        case kind:
            return Wake(p, actor, Token(kind))


def _subject(parsed: Arrival, services: PartitionServices) -> str:
    subjects = services.subjects
    match parsed:
        case Mail(_, actor, channel):
            return subjects.mail(actor, channel)
        case Send(_, actor, channel):
            return subjects.send(actor, channel)
        case Ctl(_, actor, verb):
            return subjects.ctl(actor, verb)
        case Done(_, actor, op):
            return subjects.done(actor, op)
        case Wake(_, actor, kind):
            return subjects.wake(actor, kind)

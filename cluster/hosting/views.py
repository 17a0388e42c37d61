"""What operators see of actors: why one is not running, what is suspended where, whether something will wake each.

Views read, from any replica, what owners wrote; no decision of the protocol rests on them. The census and the list need index
facts only, so they work with no code and no key; `details` is made by an actor's owner; `check` opens records and so needs the key.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from sojourn.actors.answers import Details, Running, Unread
from sojourn.broker.frames import FrameStore
from sojourn.broker.subjects import actor_id, token
from sojourn.cluster.steps.local_steps import operation_key
from sojourn.codecs import frames
from sojourn.codecs.durations import format_duration
from sojourn.codecs.errors import RecordError
from sojourn.codecs.record import Index, Origin, PendingCall, Record
from sojourn.codecs.seal import open_record

if TYPE_CHECKING:
    from sojourn.broker.seam import Broker, ConsumerState
    from sojourn.broker.subjects import Subjects
    from sojourn.cluster.mail.mailroom import HeldOf, Item
    from sojourn.codecs.keyring import Keyring

    from .hot_cache import Live
    from .services import PartitionServices

MAX_CHILDREN = 100
MAX_VARIABLES = 50
MAX_ERROR = 2_000
"""Characters of the error that ended an actor."""
CHECKED_AT_ONCE = 64
"""Records of which `check` asks the broker at a time; it holds no more of them."""
MAX_CHANNELS = 100
"""Channels with unread mail that an answer names, the fullest: whoever may send can make any number of them."""


# ---- one actor, by its owner


def details(
    services: PartitionServices,
    record: Record,
    live: Live | None,
    items: Sequence[Item],
    held: HeldOf,
    queues: Mapping[str, ConsumerState | None] | None = None,
) -> Details:
    """What only the owner knows of an actor. `queues`: the state of those in which steps of it wait."""
    envelope = record.envelope
    ended = record.index.status.ended
    missing = () if ended else services.pins.missing(record)
    elsewhere = record.index.lane or (services.pins.elsewhere(record) if missing else "")
    children = [child.id for child in envelope.children.values() if child.status != "ended"]
    error = envelope.outcome.error if envelope.outcome is not None else None
    sizes: Mapping[str, int] = frames.variable_sizes(live) if live is not None else {}
    return Details(
        hot=live is not None,
        running=tuple(
            _running(services, record, call, (queues or {}).get(call.queue)) for call in envelope.calls
        ),
        unread=_unread(record, items, held),
        missing=missing,
        elsewhere=(elsewhere,) if elsewhere else (),
        variables=dict(sorted(sizes.items(), key=lambda pair: -pair[1])[:MAX_VARIABLES]),
        outbox=len(envelope.outbox),
        children=tuple(children[:MAX_CHILDREN]),
        error=(f"{error.type}: {error.message}" if error.message else error.type)[:MAX_ERROR]
        if error is not None
        else "",
        traceback=envelope.hold.traceback
        if envelope.hold is not None
        else (error.traceback if error else ""),
        asked_by=_asked_by(record),
        sentence=sentence(record.index, services.clock.now(), missing=len(missing), elsewhere=elsewhere),
    )


def _asked_by(record: Record) -> str:
    hold, cancelling = record.envelope.hold, record.envelope.cancelling
    if hold is not None and hold.kind == "paused":
        return hold.by
    return cancelling.by if cancelling is not None else ""


def _running(
    services: PartitionServices, record: Record, call: PendingCall, queue: ConsumerState | None
) -> Running:
    key = operation_key(record.index.actor, record.index.run, call.op)
    attempt = services.step_runner.attempt(key) if call.runner == services.runner else None
    options: Any = orjson.loads(bytes(call.options))
    step = services.registry.steps.get(call.step)
    return Running(
        step=call.step,
        op=call.op,
        attempt=call.attempt,
        attempts=options.get("attempts", step.retry.attempts if step is not None else call.attempt),
        runner=call.runner,
        seconds=attempt.seconds if attempt is not None else None,
        next_retry=call.retry_at,
        stuck=attempt.stuck if attempt is not None else False,
        where=attempt.where if attempt is not None else "",
        heartbeat=attempt.heartbeat if attempt is not None else None,
        heartbeat_age=attempt.heartbeat_age if attempt is not None else None,
        queue=call.queue,
        since=call.first_started if call.queue else None,
        at_work=queue.unacknowledged if queue is not None else 0,
        free=queue.requests if queue is not None else 0,
        waiting=queue.waiting if queue is not None else 0,
        last_error=f"{call.last_error.type}: {call.last_error.message}" if call.last_error else "",
    )


def _unread(record: Record, items: Iterable[Item], held: HeldOf) -> tuple[Unread, ...]:
    times: dict[str, dict[Origin, float]] = {}
    for origin, ref in held:
        if ref.is_mail and origin not in record.envelope.consumed:
            times.setdefault(ref.name, {})[origin] = ref.time
    for item in items:
        if item.event.kind == "mail" and item.origin not in record.envelope.consumed:
            times.setdefault(item.event.channel, {})[item.origin] = item.event.time
    fullest = sorted(times.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:MAX_CHANNELS]
    return tuple(Unread(channel, len(found), min(found.values())) for channel, found in sorted(fullest))


def sentence(index: Index, now: float, *, missing: int = 0, elsewhere: str = "") -> str:
    """Why an actor is not running, in one sentence. `elsewhere`: the deployment whose nodes run it, not its owner."""
    since = format_duration(max(0.0, round(now - index.updated)))
    if index.status.ended:
        return f"It has ended as {index.status}, {since} ago."
    if index.hold == "paused":
        return f"It is paused{_because(index.hold_reason)}; `resume` lets it go on."
    if index.hold == "quarantined":
        return f"It is in quarantine{_because(index.hold_reason)}; `release` tries again from its last good record."
    there = f"; nodes of deployment {elsewhere} run it" if elsewhere else ""
    if index.hold == "pin" or (missing and not elsewhere):
        return f"Its code is not here{_because(index.hold_reason)}; it goes on when a node with that code owns it."
    if index.wait:
        return f"It waits for {index.wait}, since {since}{there}."
    return f"It is {index.status}, since {since}{there}."


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


# ---- all actors


def list_indexes(broker: Broker, subjects: Subjects) -> AsyncIterator[Index]:
    """The index of every record, unauthenticated, for lists; no key needed."""
    return FrameStore(broker, subjects).newest_indexes()


# ---- check (I11)


@dataclass(frozen=True, slots=True)
class Finding:
    """A record that nothing will ever wake, or that cannot be read."""

    actor: str
    problem: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` saw."""

    records: int
    ended: int
    waiting: Mapping[str, int]
    """Records by what will bring their owner to them."""
    findings: tuple[Finding, ...] = field(default=())


async def check(
    broker: Broker, subjects: Subjects, keyring: Keyring, seen: Callable[[int], None] = lambda number: None
) -> CheckReport:
    """Verify I11 over all records: each that has not ended has something that will bring its owner to it. `seen` is told of each.

    A moving system is read while it moves, so a finding is looked at twice, from the leader, before it counts.
    """
    waiting: Counter[str] = Counter()
    records = ended = 0
    suspects: list[str] = []
    part: list[tuple[str, bytes]] = []

    async def judge_part() -> None:
        nonlocal ended
        verdicts = await asyncio.gather(*(_judge(broker, subjects, keyring, *one) for one in part))
        for (actor, _), found in zip(part, verdicts, strict=True):
            if found == "ended":
                ended += 1
            elif found:
                waiting[found] += 1
            else:
                suspects.append(actor)
        part.clear()

    async for each, record in FrameStore(broker, subjects).newest():
        records += 1
        seen(1)
        part.append((each, record.data))
        if len(part) == CHECKED_AT_ONCE:
            await judge_part()
    await judge_part()
    findings = []
    for actor in suspects:
        stored = await broker.read_last(subjects.frames_stream, subjects.frame(actor_id(actor)))
        if stored is None or not stored.payload:
            continue
        found = await _judge(broker, subjects, keyring, actor, stored.payload)
        if found:
            waiting[found] += 1
        else:
            findings.append(Finding(actor, _problem(subjects, keyring, actor, stored.payload)))
    return CheckReport(records, ended, dict(waiting), tuple(findings))


async def _judge(broker: Broker, subjects: Subjects, keyring: Keyring, actor: str, data: bytes) -> str:
    """What will bring the owner to this record; "ended", or "" when nothing will."""
    try:
        record = open_record(data, keyring, namespace=subjects.namespace, actor=actor)
    except RecordError:
        return ""
    envelope = record.envelope
    if record.index.status.ended and (record.index.sealed or envelope.parent is not None):
        return "ended"
    if envelope.lease is not None and await _stored(broker, subjects, envelope.lease):
        return "unacknowledged lease"
    held = await broker.read_next(subjects.held_stream, subjects.held_of(actor_id(actor)), 1)
    if held is not None:
        return "held event"
    for wait in envelope.waits:
        if wait.timer is not None and await _armed(broker, subjects, record, wait.timer):
            return "armed timer"
    for call in envelope.calls:
        for timer in (call.retry_timer, call.deadline_timer):
            if timer is not None and await _armed(broker, subjects, record, timer):
                return "armed timer"
    for kind in ("receive", "join"):
        if any(wait.kind == kind for wait in envelope.waits):
            return kind
    for wake in ("timer", "child-done", "nudge", "seal"):
        subject = subjects.wake(actor_id(actor), token(wake))
        if await broker.read_last(subjects.wake_stream, subject) is not None:
            return "wake-up stored"
    return ""


async def _stored(broker: Broker, subjects: Subjects, origin: Origin) -> bool:
    streams = {"mail": subjects.mail_stream, "ctl": subjects.ctl_stream, "wake": subjects.wake_stream}
    return await broker.read(streams[origin.stream], origin.seq) is not None


async def _armed(broker: Broker, subjects: Subjects, record: Record, timer: int) -> bool:
    subject = subjects.timer(actor_id(record.index.actor), token(record.index.run), timer)
    return await broker.read_last(subjects.wake_stream, subject) is not None


def _problem(subjects: Subjects, keyring: Keyring, actor: str, data: bytes) -> str:
    try:
        index = open_record(data, keyring, namespace=subjects.namespace, actor=actor).index
    except RecordError as error:
        return f"its record cannot be opened, so nothing is known of it: {error}"
    return f"{index.status}, waits for {index.wait or 'nothing'}, and nothing will wake it"

"""Flushing: the effects that a committed record allows, published in operation order per target (PROTOCOL 4.7).

Each entry is acknowledged before the next to the same target is sent, so a receiver that keeps the highest operation of a sender never
drops one. Different targets do not wait for each other. An entry of unknown outcome is sent again; what the receiver gets twice it tells
apart by the operation number, a timer that is armed twice is one schedule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import orjson
from sojourn.actors.events import Message, Reply
from sojourn.actors.wire import LIFE, message_publish, outbox_publish
from sojourn.broker.errors import BrokerError, MailboxFull, Refused
from sojourn.codecs.record import OutboxEntry, Record

if TYPE_CHECKING:
    from .hot_cache import Hot
    from .services import PartitionServices

AT_ONCE: Final = 64
"""Targets of one actor that are published to at the same time."""
_LASTING: Final = frozenset(("arm", "disarm", "task"))
"""What is good however late it is stored: schedules, and tasks, whose worker asks the record first."""


def lines(record: Record, flushed: Container[int]) -> list[list[OutboxEntry]]:
    """What is not flushed yet, a line for each target."""
    found: dict[tuple[str, int], list[OutboxEntry]] = {}
    for entry in record.envelope.outbox:
        if entry.n not in flushed:
            found.setdefault(_target(entry), []).append(entry)
    return list(found.values())


async def flush(
    services: PartitionServices, hot: Hot, record: Record, wanted: Sequence[Sequence[OutboxEntry]]
) -> bool:
    """Publish these lines, noting each number in `hot` once it is acknowledged. False: something of them is left for a later attempt, or
    is given up: mail for which there was no room until its time was over.
    """
    services.fault("before_flush", record.index.actor)
    queue = iter(wanted)

    async def carry() -> bool:
        done = [await _flush_line(services, hot, record, line) for line in queue]
        return all(done)

    carriers = min(AT_ONCE, len(wanted))
    if carriers == 1:
        return await carry()
    return all(await asyncio.gather(*(carry() for _ in range(carriers))))


def _target(entry: OutboxEntry) -> tuple[str, int]:
    """What an entry is published to: each timer is a subject of its own."""
    if entry.kind in ("arm", "disarm") and entry.timer is not None:
        return entry.target, entry.timer
    return entry.target, -1


async def _flush_line(
    services: PartitionServices, hot: Hot, record: Record, entries: Iterable[OutboxEntry]
) -> bool:
    flushed, given_up = hot.flushed, hot.given_up
    for entry in entries:
        if not services.may_act():
            return False
        try:
            in_time = await _flush_entry(services, record, hot.revision, entry)
        except Refused as refusal:
            if _is_over(entry, refusal, services.clock.now()):
                services.meter.count("sends_given_up")
                given_up.add(entry.n)
                flushed.add(entry.n)
                continue
            services.meter.count("flush_refused", kind=entry.kind)
            services.log.warning(
                "%s: %s to %s is not taken yet: %s", record.index.actor, entry.kind, entry.target, refusal
            )
            return False
        except BrokerError:
            return False
        if not in_time:
            return False
        flushed.add(entry.n)
        services.fault("between_flushes", record.index.actor)
    return not given_up


def _is_over(entry: OutboxEntry, refusal: Refused, now: float) -> bool:
    """Whether it is mail that no room was found for within its sender's time. What keeps the protocol going is never given up."""
    return (
        entry.kind == "send" and isinstance(refusal, MailboxFull) and entry.at is not None and now >= entry.at
    )


async def _flush_entry(
    services: PartitionServices, record: Record, revision: int, entry: OutboxEntry
) -> bool:
    """Publish one entry; False when it was stored so late that its receiver may take it for given up."""
    now = services.clock.now()
    message = outbox_publish(
        entry,
        record.index,
        record.envelope.calls,
        revision=revision,
        subjects=services.subjects,
        keyring=services.keyring,
        now=now,
    )
    await services.broker.publish(message)
    return entry.kind in _LASTING or services.clock.now() <= now + LIFE


async def answer(services: PartitionServices, message: Message) -> None:
    """Publish an answer to an event that changes no record, before the event is acknowledged. Raises `BrokerError`."""
    await services.broker.publish(
        message_publish(message, subjects=services.subjects, now=services.clock.now())
    )


async def send_reply(services: PartitionServices, reply: Reply) -> None:
    """Answer whoever asked, at best effort: one that is lost is asked for again."""
    try:
        await services.broker.send(reply.inbox, orjson.dumps(dict(reply.body), default=str))
    except BrokerError as error:
        services.log.info("a reply to %s was not sent: %s", reply.inbox, error)

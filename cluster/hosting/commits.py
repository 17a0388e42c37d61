"""Reading and committing records: leader reads, compare-and-swap puts, and what to do when a put's outcome is unknown (PROTOCOL 4.6).

A put that times out may be stored, may not be stored, or may be stored later. The owner reads from the leader until the record shows which:
its own commit id (stored), the old revision (send the very same bytes again: a late copy of the first put is then refused by its own
expectation), or another's commit. In the last case nothing in memory about the actor is true any more: `Overtaken`.

A record older than the one that the commit was to follow is none of these: the server that answered was paused, and takes itself for the
leader still. It refuses the commit, too, since it has not heard of that revision.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sojourn.broker.absence import state_reaching
from sojourn.broker.errors import BrokerError, OutcomeUnknown, Refused, WrongLastSequence
from sojourn.broker.index_headers import index_headers
from sojourn.broker.subjects import ActorId
from sojourn.codecs.errors import RecordError
from sojourn.codecs.record import Record
from sojourn.codecs.seal import open_record, seal_record

if TYPE_CHECKING:
    from .services import PartitionServices

REFUSED_SECONDS: Final = (0.2, 5.0)
"""First and longest pause when the broker refuses to store a record: nothing is lost, the actor waits."""
MESSAGE_TOO_LARGE: Final = 10054
"""JetStream's error code, also ours for what is over the server's max_payload."""
AGAIN_SECONDS: Final = (0.02, 2.0)
"""First and longest pause before a put is sent again that certainly was not stored. A server with a full disk says at once that it cannot
do it now, and would be asked a thousand times a second by each actor."""


class Overtaken(Exception):
    """The record holds another's commit. Drop what is hot in silence, and load anew."""


class RecordTooLarge(Exception):
    """The broker takes no message of that size, today or later: the turn that made the record cannot be committed."""


class HigherEpoch(Exception):
    """The record was committed under a higher epoch than ours: leave the partition."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that is stored but cannot be opened here: its seal is broken, its key missing, its version newer."""

    error: RecordError


@dataclass(frozen=True, slots=True)
class Loaded:
    """A leader read. `revision` is what the next put must expect; 0 with `record` None when nothing was ever stored."""

    record: Record | None
    revision: int
    unreadable: Unreadable | None = None


async def read_record(services: PartitionServices, actor: str, *, least: int = 0) -> Loaded:
    """The newest record of an actor, from the leader. `least`: a revision that it has had; a leader that has not come so far is given time
    (`broker.absence`). Raises `BrokerError`.
    """
    stored = await services.frames.read(ActorId(actor))
    if (stored.revision if stored is not None else 0) < least:
        stream = services.subjects.frames_stream
        await state_reaching(services.broker, stream, least, patience=services.patience)
        stored = await services.frames.read(ActorId(actor))
    if stored is None:
        return Loaded(None, 0)
    if not stored.data:
        return Loaded(None, stored.revision)  # the marker of an expired record
    try:
        record = open_record(
            stored.data, services.keyring, namespace=services.subjects.namespace, actor=actor
        )
    except RecordError as error:
        return Loaded(None, stored.revision, Unreadable(error))
    return Loaded(record, stored.revision)


async def commit(
    services: PartitionServices, actor: str, record: Record, expect: int, *, ttl: int | None = None
) -> int:
    """Store the record; the new revision. Waits for permission to act before each attempt. Raises `Overtaken`,
    `RecordTooLarge`.
    """
    data = seal_record(record, services.keyring, namespace=services.subjects.namespace)
    headers = index_headers(record.index)
    key = ActorId(actor)
    pause, again = REFUSED_SECONDS[0], AGAIN_SECONDS[0]
    while True:
        if not services.may_act():
            await services.wait_may_act()
        services.fault("before_commit", actor)
        try:
            revision = await services.frames.put(
                key, data, expect=expect, headers=headers, ttl=ttl, rollup=ttl is not None
            )
        except (WrongLastSequence, OutcomeUnknown):
            services.meter.count("commit_conflicts")
            settled = await _settle(services, actor, record.envelope.commit, expect)
            if settled is None:
                await asyncio.sleep(again)
                again = min(2 * again, AGAIN_SECONDS[1])
                continue
            revision = settled
        except Refused as refusal:
            if refusal.code == MESSAGE_TOO_LARGE:
                raise RecordTooLarge(
                    f"{len(data)} bytes with all that it owes and keeps: {refusal}"
                ) from refusal
            services.log.error("the record of %s is not stored, trying again: %s", actor, refusal)
            await asyncio.sleep(pause)
            pause = min(2 * pause, REFUSED_SECONDS[1])
            continue
        services.fault("after_commit", actor)
        return revision


async def _settle(services: PartitionServices, actor: str, commit_id: str, expect: int) -> int | None:
    """The revision under which our commit is stored, or None when it is not (send again). Raises `Overtaken`."""
    pause = 0.05
    while True:
        try:
            found = await read_record(services, actor, least=expect)
        except BrokerError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)
            continue
        if found.record is not None and found.record.envelope.commit == commit_id:
            return found.revision
        if found.revision == expect:
            return None
        raise Overtaken(actor)

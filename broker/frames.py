"""The record of each actor, in a real KV bucket: `$KV.sj_<ns>_frames.<actor>`, so stock tools can read it.

A commit is one compare-and-swap put: one request, one answer. Reads go to the stream's leader; a direct
get may show an older record than the one that was acknowledged (R3), and every rule of the protocol that
decides on a record asks the leader.

An unknown outcome is settled by reading (PROTOCOL 4.6), and the result is a value, so that the caller's
decision is one `match`:

- `STORED`: the record shows this commit, as current or as previous; go on from its revision;
- `OLD`: the record is as it was; send the same commit again;
- `OTHERS`: somebody else committed; drop the hot coroutine silently and load anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum

from sojourn.broker.index_headers import IndexFacts, parse_index_headers
from sojourn.broker.seam import Broker, Headers, Publish, Stored
from sojourn.broker.subjects import ActorId, Frame, Subjects, Token
from sojourn.codecs.errors import RecordError
from sojourn.codecs.record import Index
from sojourn.codecs.seal import read_index

COMMIT_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it is stored. `revision` is what the next commit must expect; `time` is the broker's, Unix
    seconds.

    `data` is empty when a stock tool deleted the key: no record, but a revision to expect.
    """

    data: bytes
    revision: int
    time: float
    headers: Headers


class Settlement(Enum):
    """What a leader read says about a commit of unknown outcome."""

    STORED = "stored"
    OLD = "old"
    OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Settled:
    """`revision` is the record's present one (0: none); `record` is what the read found."""

    settlement: Settlement
    revision: int
    record: StoredRecord | None


class FrameStore:
    """Records of one namespace over one connection."""

    def __init__(self, broker: Broker, subjects: Subjects) -> None:
        self._broker = broker
        self._subjects = subjects

    def __repr__(self) -> str:
        return f"<FrameStore {self._subjects.frames_bucket}>"

    async def read(self, actor: ActorId) -> StoredRecord | None:
        """The actor's record from the leader, or None. Raises `OutcomeUnknown`, `StreamNotFound`."""
        stored = await self._broker.read_last(self._subjects.frames_stream, self._subjects.frame(actor))
        return _record(stored) if stored is not None else None

    async def put(
        self,
        actor: ActorId,
        data: bytes,
        *,
        expect: int,
        headers: Headers | None = None,
        ttl: int | None = None,
        rollup: bool = False,
        timeout: float = COMMIT_TIMEOUT_SECONDS,
    ) -> int:
        """Commit: store the record if its revision is `expect` (0: no record yet); its new revision.

        `ttl` (whole seconds) and `rollup` are for the seal of an ended actor: older revisions go, and the
        record itself after that time. Raises `WrongLastSequence`, `Refused`, `OutcomeUnknown` (then
        `settle`).
        """
        message = Publish(
            self._subjects.frame(actor), data, headers or {}, expect_last=expect, ttl=ttl, rollup=rollup
        )
        return (await self._broker.publish(message, timeout=timeout)).seq

    async def settle(self, actor: ActorId, *, expect: int, is_mine: Callable[[bytes], bool]) -> Settled:
        """One leader read after an unknown outcome. `is_mine` tells whether a record shows the commit in
        question.

        Raises `OutcomeUnknown` when the read itself has no answer: repeat it while the lease lives.
        """
        record = await self.read(actor)
        revision = record.revision if record is not None else 0
        if revision == expect:
            return Settled(Settlement.OLD, revision, record)
        mine = record is not None and bool(record.data) and is_mine(record.data)
        return Settled(Settlement.STORED if mine else Settlement.OTHERS, revision, record)

    # parts beside the record: results of `map`, children
    async def read_part(self, actor: ActorId, kind: Token, chunk: int) -> StoredRecord | None:
        """One part from the leader, or None."""
        subject = self._subjects.frame_part(actor, kind, chunk)
        stored = await self._broker.read_last(self._subjects.frames_stream, subject)
        return _record(stored) if stored is not None else None

    async def put_part(
        self,
        actor: ActorId,
        kind: Token,
        chunk: int,
        data: bytes,
        *,
        expect: int,
        ttl: int | None = None,
    ) -> int:
        """Store one part by compare-and-swap; its new revision. Raises as `put`."""
        subject = self._subjects.frame_part(actor, kind, chunk)
        message = Publish(subject, data, expect_last=expect, ttl=ttl, rollup=ttl is not None)
        return (await self._broker.publish(message)).seq

    # views
    async def scan_indexes(self) -> AsyncIterator[tuple[IndexFacts, int]]:
        """Index facts and revision of every record, out of headers, from any replica: for views, not for
        decisions.

        With a history above 1 older revisions come too; the highest revision of an actor is its newest.
        """
        stream, records = self._subjects.frames_stream, self._subjects.frames_filter
        async for stored in self._broker.scan(stream, records):
            facts = parse_index_headers(stored.headers)
            if facts is not None:
                yield facts, stored.seq

    def scan(self) -> AsyncIterator[tuple[ActorId, StoredRecord]]:
        """Every record with its data, from any replica: for views, not for decisions."""
        return self._records()

    async def sample(self, count: int, *, newest: bool) -> AsyncIterator[tuple[ActorId, StoredRecord]]:
        """At most so many of the records that were stored first, or last, from any replica. The record that was stored last of all may
        be all that is found of the newest, where others of its kind replaced former ones.
        """
        first = 1
        if newest:
            info = await self._broker.stream_info(self._subjects.frames_stream)
            first = max(1, info.last_seq - count)
        async for found in self._records(from_seq=first, limit=count):
            yield found

    async def newest(self) -> AsyncIterator[tuple[ActorId, StoredRecord]]:
        """Each actor's newest record, once, from any replica: for views, not for decisions. It remembers 64 bytes of each actor.

        Of a bucket that keeps former revisions it takes two scans to know which is the newest. (Actors are remembered by a hash of
        64 bits: of a million, two are taken for one with a chance of one in 30 millions.)
        """
        newest: dict[int, int] = {}
        config = await self._broker.stream_config(self._subjects.frames_stream)
        if config is not None and config.max_msgs_per_subject != 1:
            async for actor, record in self.scan():
                newest[hash(actor)] = record.revision
        seen: set[int] = set()
        async for actor, record in self.scan():
            number = hash(actor)
            if number not in seen and record.revision >= newest.get(number, 0):
                seen.add(number)
                yield actor, record

    async def newest_indexes(self) -> AsyncIterator[Index]:
        """The index of each actor's newest record, unauthenticated; no key needed. What says it is of another actor than
        its key is none.
        """
        async for actor, record in self.newest():
            try:
                index = read_index(record.data)
            except RecordError:
                continue
            if index.actor == actor:
                yield index

    async def _records(
        self, *, from_seq: int = 1, limit: int | None = None
    ) -> AsyncIterator[tuple[ActorId, StoredRecord]]:
        stream, records = self._subjects.frames_stream, self._subjects.frames_filter
        async for stored in self._broker.scan(stream, records, from_seq=from_seq, limit=limit):
            parsed = self._subjects.parse(stored.subject)
            if isinstance(parsed, Frame) and stored.payload:
                yield parsed.actor, _record(stored)


def _record(stored: Stored) -> StoredRecord:
    return StoredRecord(stored.payload, stored.seq, stored.time, stored.headers)

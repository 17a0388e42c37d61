"""Events that were accepted and are not consumed yet, one place per partition, guarded by a fence (PROTOCOL
3, 4.2).

`held.<p>.fence` is a rolled-up message that names the owner's epoch. Every write under `held.<p>.>`
expects the last sequence there and ends with a new fence, in one atomic batch. So:

- the last message under `held.<p>.>` is always the fence; consuming (deleting) events does not change
  that;
- a batch that arrives late, or comes from a former owner, expects a sequence that is gone and is refused
  whole;
- a batch of unknown outcome is settled by repeating it: it is stored by either try, once, or refused, and
  then the fence says whether ours is there (its id) or a later owner's (its epoch).

Only the first message of a batch carries the expectation: the server checks a batch against the state
before it and stores all or nothing (tried on 2.15.1, R1 and R3; repeating it on every message is accepted
too and tells nothing more).

A fence can always be written, even when HELD is full to the byte: the fence that ends a batch is larger than
the fence an attach writes, and rolling up the former one freed its room.

One `HeldStore` serves a node. It keeps the last fence per partition, and moves of one partition run one
after another.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import orjson
from sojourn.broker.absence import PATIENCE_SECONDS, read_surely
from sojourn.broker.errors import (
    FencedOff,
    MailboxFull,
    MoveUnsettled,
    OutcomeUnknown,
    WrongLastSequence,
)
from sojourn.broker.seam import HEADER_NAME, Ack, Broker, Headers, Publish, Stored
from sojourn.broker.subjects import (
    ActorId,
    Ctl,
    Done,
    Fence,
    Held,
    Mail,
    Send,
    Subjects,
    Token,
    Wake,
)
from sojourn.codecs.record import Origin

MAX_MOVE = 199
"""Events in one atomic batch; with the fence 200 (25,000 moves/s on R1 at that size; the server allows
1,000).
"""
ATTACH_FENCE_BYTES, BATCH_FENCE_BYTES = 384, 512
UNKNOWN_TRIES = 3
UNKNOWN_PAUSE_SECONDS = 0.1
FENCE_TRIES = 10
_READS_IN_FLIGHT = 64

CARRIED_BYTES = 16 * 1024
"""A sender's headers, as they would be written again (what was no UTF-8 is longer then)."""
COPY_ROOM = 64 * 1024
"""What a copy of an event may have beside its payload: those headers, where it comes from, why it is dead."""

_NUMBER = re.compile(r"[0-9]{1,19}")

ORIGIN, ORIGIN_TIME = "Sj-Origin", "Sj-Origin-Time"

Event: TypeAlias = Mail | Ctl | Done | Send | Wake


@dataclass(frozen=True, slots=True)
class Move:
    """An event to be moved: what its subject says, the message itself, its origin."""

    event: Event
    stored: Stored
    origin: Origin


@dataclass(frozen=True, slots=True)
class HeldEvent:
    """An event in HELD.

    `time` is the origin's, Unix seconds; `name` is the channel, verb, operation, or `wake`.
    """

    seq: int
    partition: int
    actor: ActorId
    kind: str
    name: str
    origin: Origin
    time: float
    payload: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class Moved:
    """Stored. `seqs` has the place in HELD of each event, or None for one that HELD refused as full."""

    seqs: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class MoveRefused:
    """Nothing was stored: something else changed the partition. `epoch` is the fence's; list again, then move
    again.

    A fence of a higher epoch is not this answer but `FencedOff`.
    """

    epoch: int | None


@dataclass(frozen=True, slots=True)
class _Batch:
    """One batch under way; kept until settled, so that a repetition is the same to the byte."""

    messages: tuple[Publish, ...]
    batch_id: str
    origins: tuple[Origin, ...]


def carried_headers(headers: Headers) -> dict[str, str]:
    """A message's own headers, fit to be stored in another stream.

    Everything that means something to the server goes (HELD allows roll-up and batches, MAIL does not),
    and so does what this layer writes itself: a sender must not be able to set it. What is no name cannot be
    written again (a bare connection can send anything), and of more than `CARRIED_BYTES` none is: what is stored again has to fit.
    """
    carried = {
        name: value
        for name, value in headers.items()
        if HEADER_NAME.fullmatch(name)
        and not name.lower().startswith(("nats-", "sj-origin", "kv-operation"))
        and name not in ("Status", "Description")
    }
    size = sum(len(name) + len(value.encode()) for name, value in carried.items())
    return carried if size <= CARRIED_BYTES else {}


def held_kind(event: Event) -> tuple[Token, Token]:
    """Kind and name under which an event is held."""
    match event:
        case Mail(_, _, channel):
            return Token("mail"), Token(channel)
        case Send(_, _, channel):
            return Token("send"), Token(channel)
        case Ctl(_, _, verb):
            return Token("ctl"), verb
        case Done(_, _, op):
            return Token("done"), op
        case Wake(_, _, kind):
            return kind, Token("wake")


class HeldStore:
    """Held events of the partitions this node owns, over one connection."""

    def __init__(
        self,
        broker: Broker,
        subjects: Subjects,
        *,
        node: str = "",
        new_id: Callable[[], str] = lambda: secrets.token_hex(12),
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._patience = patience
        self._broker = broker
        self._subjects = subjects
        self._stream = subjects.held_stream
        self._node = node
        self._new_id = new_id
        self._pause = pause
        self._fences: dict[int, tuple[int, int]] = {}  # partition -> (epoch, sequence of the fence)
        self._unsettled: dict[int, _Batch] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    def __repr__(self) -> str:
        return f"<HeldStore {self._stream} fences={len(self._fences)} unsettled={len(self._unsettled)}>"

    # the fence
    async def fence(self, partition: int, epoch: int) -> int:
        """Write this epoch's fence; its sequence. Step three of an attach.

        Raises `FencedOff` when a higher epoch's fence is there, `OutcomeUnknown` (call again), `MailboxFull`.
        """
        async with self._lock(partition):
            self._unsettled.pop(partition, None)
            tail = 0
            for _ in range(FENCE_TRIES):
                last = await self._read_fence(partition)
                found = _fence_epoch(last)
                if found is not None and found > epoch:
                    raise FencedOff(partition, epoch, found)
                expect = last.seq if last is not None else tail
                message = self._fence_message(partition, epoch, self._new_id(), expect)
                try:
                    ack = await self._broker.publish(message)
                except WrongLastSequence as error:
                    # A batch of the former owner came in between: look again. `actual` helps where the fence
                    # is missing altogether (removed by hand).
                    tail = error.actual or 0
                    continue
                self._fences[partition] = (epoch, ack.seq)
                return ack.seq
            raise OutcomeUnknown("fence", self._subjects.held_fence(partition), "others keep writing there")

    async def is_last_fence(self, partition: int, epoch: int) -> bool:
        """Whether no later owner than this epoch's has written its fence (leader read). Raises `OutcomeUnknown`."""
        found = _fence_epoch(await self._read_fence(partition))
        return found is None or found <= epoch

    def forget(self, partition: int) -> None:
        """The partition is no longer this node's."""
        self._fences.pop(partition, None)
        self._unsettled.pop(partition, None)
        self._locks.pop(partition, None)

    # reading
    async def list(self, partition: int) -> Sequence[HeldEvent]:
        """All held events of the partition, in order, complete up to this owner's fence.

        They are read from any replica, but up to the fence, which was stored after all of them; a replica
        that has not come so far is asked again, then the leader. An event that was just deleted may still
        show: `stored_among` tells. Raises `OutcomeUnknown` when the leader is behind that fence.
        """
        _, fence_seq = self._fences[partition]
        pattern = self._subjects.held_filter(partition)
        events: MutableSequence[HeldEvent] = []
        async for stored in self._broker.scan(self._stream, pattern):
            if stored.seq == fence_seq:
                return events
            self._collect(stored, events)
        seq = events[-1].seq + 1 if events else 1
        while seq <= fence_seq:
            found = await self._broker.read_next(self._stream, pattern, seq)
            if found is None:
                raise self._is_behind("list", pattern, fence_seq)
            self._collect(found, events)
            seq = found.seq + 1
        return events

    async def look(self, partition: int) -> Sequence[HeldEvent]:
        """The held events of a partition that somebody else owns, in order: all that were stored before the call, and
        perhaps later ones.

        The owner's fence, read from the leader first, tells how far a replica must have come.
        """
        fence = await self._read_fence(partition)
        if fence is None:
            return []  # never attached, so nothing was ever moved
        pattern = self._subjects.held_filter(partition)
        events: MutableSequence[HeldEvent] = []
        last = 0
        async for stored in self._broker.scan(self._stream, pattern):
            last = stored.seq
            self._collect(stored, events)
        if last < fence.seq:  # a replica that lags behind: the rest comes from the leader
            while (found := await self._broker.read_next(self._stream, pattern, last + 1)) is not None:
                last = found.seq
                self._collect(found, events)
            if last < fence.seq:
                raise self._is_behind("look", pattern, fence.seq)
        return events

    def _is_behind(self, operation: str, pattern: str, fence_seq: int) -> OutcomeUnknown:
        """The leader does not have the last fence: what else it does not have is not known."""
        return OutcomeUnknown(operation, pattern, f"the leader is behind the fence at {fence_seq}")

    async def page(self, partition: int, seq: int, limit: int) -> tuple[Sequence[HeldEvent], int]:
        """Up to `limit` messages of the partition from this sequence on, from any replica, and where to go on (1 at the end)."""
        events: MutableSequence[HeldEvent] = []
        count, last = 0, 0
        pattern = self._subjects.held_filter(partition)
        async for stored in self._broker.scan(self._stream, pattern, from_seq=seq, limit=limit):
            count, last = count + 1, stored.seq
            self._collect(stored, events)
        return events, last + 1 if count >= limit else 1

    async def of_actor(self, actor: ActorId, *, after: int = 0) -> Sequence[HeldEvent]:
        """The held events of one actor with a higher sequence than `after`, in order, each read from the leader."""
        pattern, seq = self._subjects.held_of(actor), after + 1
        events: MutableSequence[HeldEvent] = []
        while (stored := await self._broker.read_next(self._stream, pattern, seq)) is not None:
            self._collect(stored, events)
            seq = stored.seq + 1
        return events

    async def event(self, seq: int) -> HeldEvent | None:
        """The held event with this sequence, read from the leader, or None when it is not stored any more."""
        stored = await read_surely(self._broker, self._stream, seq, patience=self._patience)
        if stored is None:
            return None
        found: list[HeldEvent] = []
        self._collect(stored, found)
        return found[0] if found else None

    async def stored(self, seq: int) -> bool:
        """Whether this held event is still stored, asked from the leader."""
        return await read_surely(self._broker, self._stream, seq, patience=self._patience) is not None

    async def stored_among(self, seqs: Iterable[int]) -> frozenset[int]:
        """Which of these are still stored, asked from the leader, `_READS_IN_FLIGHT` at a time."""
        wanted = list(seqs)
        found: set[int] = set()
        for start in range(0, len(wanted), _READS_IN_FLIGHT):
            part = wanted[start : start + _READS_IN_FLIGHT]
            answers = await asyncio.gather(*(self.stored(seq) for seq in part))
            found.update(seq for seq, there in zip(part, answers, strict=True) if there)
        return frozenset(found)

    # writing
    async def move(
        self, partition: int, moves: Sequence[Move], *, epoch: int | None = None
    ) -> Moved | MoveRefused:
        """Store events of one partition, in the given order, all at once. `epoch`: under which the caller serves the partition; None: the
        one of the last fence written here.

        Raises `MoveUnsettled` when the outcome stays unknown after `UNKNOWN_TRIES`: call again *with the
        same events* before anything else. Raises `FencedOff` when a later owner has been here: step down; also when that was this
        node's own new attach, whose list of HELD would lack what is stored now.
        When one subject is full the others are stored without it.
        """
        if not 1 <= len(moves) <= MAX_MOVE:
            raise ValueError(f"expected 1 to {MAX_MOVE} events to move, received {len(moves)}")
        async with self._lock(partition):
            fenced = self._fences[partition][0]
            if epoch is not None and fenced != epoch:
                raise FencedOff(partition, epoch, fenced)
            try:
                return await self._move(partition, moves)
            except MailboxFull:
                return await self._move_by_subject(partition, moves)

    async def delete(self, seq: int) -> bool:
        """Delete a consumed event; False when it was not there. Raises `OutcomeUnknown` (call again)."""
        return await self._broker.delete(self._stream, seq)

    async def _move(self, partition: int, moves: Sequence[Move]) -> Moved | MoveRefused:
        epoch, expect = self._fences[partition]
        batch = self._unsettled.get(partition)
        if batch is None:
            batch = self._batch(partition, epoch, expect, moves)
        elif batch.origins != tuple(move.origin for move in moves):
            raise ValueError(
                f"a move of other events of partition {partition} is unsettled: repeat that one first"
            )
        try:
            ack = await self._settle(partition, batch)
        except WrongLastSequence:
            return await self._after_refusal(partition, epoch, batch)
        return self._stored(partition, epoch, ack.seq, len(moves))

    async def _settle(self, partition: int, batch: _Batch) -> Ack:
        """Repeat the same batch until its outcome is known."""
        reason = ""
        for tries in range(UNKNOWN_TRIES):
            await self._pause(tries * UNKNOWN_PAUSE_SECONDS)
            try:
                ack = await self._broker.publish_batch(batch.messages)
            except OutcomeUnknown as error:
                self._unsettled[partition] = batch
                reason = error.reason
            except WrongLastSequence as error:
                if error.actual is not None:
                    raise
                # R3: another write under the filter is in flight, perhaps our own earlier try (code 10164)
                self._unsettled[partition] = batch
                reason = str(error)
            except MailboxFull:
                self._unsettled.pop(partition, None)
                raise
            else:
                self._unsettled.pop(partition, None)
                return ack
        raise MoveUnsettled(partition, reason)

    async def _after_refusal(self, partition: int, epoch: int, batch: _Batch) -> Moved | MoveRefused:
        """Another write is there: our own earlier try, or somebody else's."""
        self._unsettled[partition] = batch
        try:
            last = await self._read_fence(partition)
        except OutcomeUnknown as error:
            raise MoveUnsettled(partition, error.reason) from error
        found = _fence_epoch(last)
        if last is not None and _fence_id(last) == batch.batch_id:
            self._unsettled.pop(partition, None)
            return self._stored(partition, epoch, last.seq, len(batch.messages) - 1)
        self._unsettled.pop(partition, None)
        if found is not None and found > epoch:
            raise FencedOff(partition, epoch, found)
        return MoveRefused(found)

    def _stored(self, partition: int, epoch: int, fence_seq: int, count: int) -> Moved:
        self._fences[partition] = (epoch, fence_seq)
        return Moved(tuple(range(fence_seq - count, fence_seq)))

    async def _move_by_subject(self, partition: int, moves: Sequence[Move]) -> Moved | MoveRefused:
        """Something in the batch is full; the server does not say which subject, so each goes by itself."""
        seqs: list[int | None] = [None] * len(moves)
        by_subject: dict[str, list[int]] = {}
        for place, move in enumerate(moves):
            by_subject.setdefault(self._subject(move), []).append(place)
        for places in by_subject.values():
            try:
                result = await self._move(partition, [moves[place] for place in places])
            except MailboxFull:
                continue
            if isinstance(result, MoveRefused):
                return result
            for place, seq in zip(places, result.seqs, strict=True):
                seqs[place] = seq
        return Moved(tuple(seqs))

    # messages
    def _batch(self, partition: int, epoch: int, expect: int, moves: Sequence[Move]) -> _Batch:
        batch_id = self._new_id()
        events = [
            Publish(self._subject(move), move.stored.payload, _held_headers(move))
            if place
            else Publish(
                self._subject(move),
                move.stored.payload,
                _held_headers(move),
                expect_last=expect,
                expect_filter=self._subjects.held_filter(partition),
            )
            for place, move in enumerate(moves)
        ]
        fence = self._fence_message(partition, epoch, batch_id, None)
        return _Batch((*events, fence), batch_id, tuple(move.origin for move in moves))

    def _fence_message(self, partition: int, epoch: int, batch_id: str, expect: int | None) -> Publish:
        """`expect` is given at an attach; in a batch the first event carries the expectation."""
        body = orjson.dumps({"epoch": epoch, "id": batch_id, "node": self._node[:128]})
        return Publish(
            self._subjects.held_fence(partition),
            body.ljust(ATTACH_FENCE_BYTES if expect is not None else BATCH_FENCE_BYTES),
            expect_last=expect,
            expect_filter=None if expect is None else self._subjects.held_filter(partition),
            rollup=True,
        )

    def _subject(self, move: Move) -> str:
        return self._subjects.held(move.event.actor, *held_kind(move.event))

    async def _read_fence(self, partition: int) -> Stored | None:
        return await self._broker.read_last(self._stream, self._subjects.held_fence(partition))

    def _collect(self, stored: Stored, events: MutableSequence[HeldEvent]) -> None:
        parsed = self._subjects.parse(stored.subject)
        origin = _origin(stored.headers.get(ORIGIN, ""))
        if isinstance(parsed, Fence) or not isinstance(parsed, Held) or origin is None:
            return
        events.append(
            HeldEvent(
                seq=stored.seq,
                partition=parsed.partition,
                actor=parsed.actor,
                kind=parsed.kind,
                name=parsed.name,
                origin=origin,
                time=_origin_time(stored),
                payload=stored.payload,
                headers=carried_headers(stored.headers),
            )
        )

    def _lock(self, partition: int) -> asyncio.Lock:
        return self._locks.setdefault(partition, asyncio.Lock())


def _held_headers(move: Move) -> dict[str, str]:
    origin = move.origin
    return {
        **carried_headers(move.stored.headers),
        ORIGIN: f"{origin.stream}.{origin.created}.{origin.seq}",
        ORIGIN_TIME: f"{move.stored.time:.6f}",
    }


def _origin(text: str) -> Origin | None:
    match text.split("."):
        case ["mail" | "ctl" | "wake" as stream, created, seq] if all(map(_NUMBER.fullmatch, (created, seq))):
            return Origin(stream, int(created), int(seq))
    return None


def _origin_time(stored: Stored) -> float:
    """When the event was first stored; where that is not to be read, when its copy was."""
    try:
        time = float(stored.headers[ORIGIN_TIME])
    except (KeyError, ValueError):
        return stored.time
    return time if math.isfinite(time) else stored.time


def _fence_body(stored: Stored) -> dict[str, object]:
    try:
        body = orjson.loads(stored.payload)
    except ValueError:  # not ours: it says nothing, and must not keep every node from attaching
        return {}
    return body if isinstance(body, dict) else {}


def _fence_epoch(stored: Stored | None) -> int | None:
    if stored is None:
        return None
    epoch = _fence_body(stored).get("epoch")
    return epoch if isinstance(epoch, int) else None


def _fence_id(stored: Stored) -> str:
    return str(_fence_body(stored).get("id", ""))

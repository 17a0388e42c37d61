"""`mark.<p>`: what was last acknowledged, so that storage that went back is noticed (I8).

After a restore from an old backup, or the loss of the newer replicas, everything at the broker is consistent
and old: records, mail, timers. Going on would run steps again whose results were recorded. So an owner notes,
every 5 s when something changed and at hand-over, the highest revision and the streams' last sequences it has
seen; who attaches compares. The mark lies in another stream (the cluster bucket), which is the point: a
stream restored alone is caught always, and a whole account restored at once when any node that lived through
it is still there.

A partition whose storage went back is not served: the node logs it, `/readyz` names it, and it is looked at
again each time membership passes by. `sojourn restore accept` deletes the mark after an operator has decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
from sojourn.broker.absence import PATIENCE_SECONDS, state_reaching
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.errors import BrokerError
from sojourn.broker.seam import Broker
from sojourn.broker.subjects import Subjects
from sojourn.codecs.data import UNDECODABLE
from sojourn.codecs.errors import SojournError

MARK_SECONDS = 5.0
_KEY = "mark"


class StreamMark(msgspec.Struct, frozen=True, array_like=True):
    """How far one stream was seen to be."""

    created: int
    """Creation time, Unix nanoseconds."""
    last_seq: int


class Mark(msgspec.Struct, frozen=True):
    """The value of `mark.<p>`."""

    actor: str
    """Whose commit was the last one acknowledged."""
    revision: int
    """The highest revision among acknowledged commits of the partition."""
    transition: int
    at: float
    """Broker time of the writing."""
    node: str
    streams: dict[str, StreamMark]
    """By short name: "frames", "mail", "ctl", "wake", "held"."""


class StorageWentBack(SojournError):
    """The broker's storage is older than what was acknowledged before (I8)."""

    def __init__(self, partition: int, stream: str, expected: str, received: str) -> None:
        """`stream`: its short name."""
        super().__init__(partition, stream, expected, received)
        self.partition = partition
        self.stream = stream
        self.expected = expected
        self.received = received

    def __str__(self) -> str:
        """What was seen, what is there, and what to do."""
        return (
            f"storage went back: partition {self.partition} had seen stream {self.stream} {self.expected}, "
            f"found {self.received}; it is not served. Restore newer data, or accept the loss with "
            "`sojourn restore accept`"
        )


@dataclass(frozen=True, slots=True)
class _Commit:
    actor: str
    revision: int
    transition: int


class Memory:
    """How far this process has seen the streams, over all its lives. When a reading falls behind that,
    what was seen is kept in `before`, and goes into the marks of the partitions that are checked from then
    on: so that other nodes learn of it, and one acceptance by an operator settles it.
    """

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._seen: dict[str, StreamMark] = {}
        self._told: set[int] = set()
        self.before: dict[str, StreamMark] = {}

    def __repr__(self) -> str:
        """Whether storage went back under this process."""
        return f"<Memory {'went back' if self.before else 'in order'} {self._seen}>"

    def snapshot(self) -> dict[str, StreamMark]:
        """What has been seen so far: taken before a reading, compared with what it finds."""
        return dict(self._seen)

    def note(self, snapshot: Mapping[str, StreamMark], found: Mapping[str, StreamMark]) -> None:
        """A reading that began after `snapshot` found this."""
        if any(_is_behind(found[short], seen) for short, seen in snapshot.items()):
            if snapshot != self.before:  # else: a second reading that was under way
                self.before, self._told = dict(snapshot), set()
                self._seen = dict(found)
            return
        for short, stream in found.items():
            seen = self._seen.get(short)
            if seen is None or not _is_behind(stream, seen):
                self._seen[short] = stream

    def owes(self, p: int) -> bool:
        """Whether the partition's mark does not say yet what went back."""
        return bool(self.before) and p not in self._told

    def told(self, p: int) -> None:
        """The partition's mark says it."""
        self._told.add(p)


class Marks:
    """Collects acknowledged commits, writes `mark.<p>`, and compares. Engine loop only."""

    def __init__(
        self,
        broker: Broker,
        subjects: Subjects,
        *,
        node: str,
        broker_now: Callable[[], float],
        memory: Memory | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`broker_now`: the broker's clock, Unix seconds. `memory`: one per process. `patience`: see `broker.absence`."""
        self._patience = patience
        self._broker = broker
        self._keys = ClusterKeys(broker, subjects)
        self._names = {
            "frames": subjects.frames_stream,
            "mail": subjects.mail_stream,
            "ctl": subjects.ctl_stream,
            "wake": subjects.wake_stream,
            "held": subjects.held_stream,
        }
        self._node = node
        self._broker_now = broker_now
        self._memory = memory or Memory()
        self._newest: dict[int, _Commit] = {}
        self._changed: set[int] = set()
        self._reading: asyncio.Task[Mapping[str, StreamMark]] | None = None
        self.created: dict[str, int] = {}
        """By short name, creation time of the streams as last read; the `created` of an `Origin`."""

    def __repr__(self) -> str:
        """How many partitions have unwritten marks."""
        return f"<Marks changed={len(self._changed)}>"

    def committed(self, p: int, actor: str, revision: int, transition: int) -> None:
        """A commit was acknowledged. Of the partition's commits the one with the highest revision is kept."""
        newest = self._newest.get(p)
        if newest is None or revision > newest.revision:
            self._newest[p] = _Commit(actor, revision, transition)
            self._changed.add(p)

    async def write(self, p: int) -> None:
        """Write the partition's mark if it changed. Raises `BrokerError`; the mark is then written next
        time.
        """
        if p in self._changed:
            await self._write(p, await self.streams())

    async def write_all(self) -> None:
        """Write every mark that changed. One that cannot be written now is written next time."""
        changed = tuple(self._changed)
        if not changed:
            return
        try:
            streams = await self.streams()
            await asyncio.gather(*(self._write(p, streams) for p in changed))
        except BrokerError:
            return  # still among the changed

    def forget(self, p: int) -> None:
        """The partition is no longer ours."""
        self._newest.pop(p, None)
        self._changed.discard(p)

    async def check(self, p: int) -> None:
        """Compare the partition's mark, and this process's memory, with the streams.

        Raises `StorageWentBack`, `BrokerError`.
        """
        streams = await self.streams()
        mark = await self._read(p)
        if self._memory.owes(p):
            mark = await self._accuse(p, mark)
            self._memory.told(p)
        if mark is None or _behind(p, mark, streams) is None:
            return
        # The shared reading may have begun before the mark was written: only a fresh one accuses.
        behind = _behind(p, mark, await self._read_streams(mark.streams))
        if behind is not None:
            raise behind

    async def _read(self, p: int) -> Mark | None:
        entry = await self._keys.get(_KEY, p)
        if entry is None:
            return None
        try:
            return msgspec.json.decode(entry.value, type=Mark)
        except UNDECODABLE:
            return None  # not ours: it says nothing

    async def _accuse(self, p: int, found: Mark | None) -> Mark:
        """Write what this process saw into the mark, so that it stays until an operator accepts the loss."""
        mark = Mark(
            actor=found.actor if found is not None else "",
            revision=max(found.revision if found is not None else 0, self._memory.before["frames"].last_seq),
            transition=found.transition if found is not None else 0,
            at=self._broker_now(),
            node=self._node,
            streams=dict(self._memory.before),
        )
        await self._keys.put(_KEY, p, value=msgspec.json.encode(mark))
        return mark

    async def streams(self) -> Mapping[str, StreamMark]:
        """How far the streams are, from their leaders; those who ask at the same time share one reading."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_streams(), name="marks-streams")
        return await asyncio.shield(self._reading)

    async def _read_streams(self, marked: Mapping[str, StreamMark] | None = None) -> Mapping[str, StreamMark]:
        """A fresh reading. A leader that has not come as far as was seen or `marked` is given time (`broker.absence`)."""
        snapshot = self._memory.snapshot()
        seen = {
            short: [m for m in (snapshot.get(short), (marked or {}).get(short)) if m] for short in self._names
        }
        found = await asyncio.gather(*(self._read_stream(short, seen[short]) for short in self._names))
        streams = dict(zip(self._names, found, strict=True))
        self._memory.note(snapshot, streams)
        self.created.update((short, stream.created) for short, stream in streams.items())
        return streams

    async def _read_stream(self, short: str, seen: Iterable[StreamMark]) -> StreamMark:
        info = await self._broker.stream_info(self._names[short])
        least = max((mark.last_seq for mark in seen if mark.created == info.created), default=0)
        if info.last_seq < least:
            info = await state_reaching(self._broker, self._names[short], least, patience=self._patience)
        return StreamMark(info.created, info.last_seq)

    async def _write(self, p: int, streams: Mapping[str, StreamMark]) -> None:
        newest = self._newest.get(p)
        if newest is None:
            return
        mark = Mark(
            actor=newest.actor,
            revision=newest.revision,
            transition=newest.transition,
            at=self._broker_now(),
            node=self._node,
            streams=dict(streams),
        )
        await self._keys.put(_KEY, p, value=msgspec.json.encode(mark))
        if self._newest.get(p) == newest:
            self._changed.discard(p)


async def accept(keys: ClusterKeys) -> tuple[int, ...]:
    """`sojourn restore accept`: forget every mark, so that storage that went back is served again.

    Returns the partitions that had one. Raises `BrokerError`.
    """
    named = (key.partition(".")[2] for key in await keys.list(_KEY))
    marked = sorted(int(p) for p in named if p.isdecimal())
    for p in marked:
        await keys.delete(_KEY, p)
    return tuple(marked)


def _behind(p: int, mark: Mark, streams: Mapping[str, StreamMark]) -> StorageWentBack | None:
    """The first stream that is another one, or shorter, than the mark says."""
    for short, seen in mark.streams.items():
        found = streams.get(short, StreamMark(0, 0))
        if found.created != seen.created:
            return StorageWentBack(p, short, f"created at {seen.created}", f"one created at {found.created}")
        if found.last_seq < seen.last_seq:
            return StorageWentBack(p, short, f"up to {seen.last_seq}", f"it up to {found.last_seq}")
    if streams["frames"].last_seq < mark.revision:
        return StorageWentBack(
            p, "frames", f"up to {mark.revision}", f"it up to {streams['frames'].last_seq}"
        )
    return None


def _is_behind(found: StreamMark, seen: StreamMark) -> bool:
    return found.created != seen.created or found.last_seq < seen.last_seq

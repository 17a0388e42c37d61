"""Actors whose record, and usually live coroutines, are in memory: bounded by count, bytes and idle time.

An entry saves the leader read and the unpickling of the next resumption; it is never needed for correctness, because every commit is a
compare-and-swap on the revision in the entry. Evicting discards the coroutines in silence: no `finally` block runs (I10). An entry
that a turn is using is *busy* and is not evicted; the bounds may be passed by what is busy, which the number of actor loops bounds.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from sojourn.codecs.record import Record


class Live(Protocol):
    """The live coroutines of one actor, as the cache sees them."""

    @property
    def size(self) -> int:
        """Bytes of its frame."""

    def discard(self) -> None:
        """Drop every coroutine without running any of its code."""


@dataclass(slots=True)
class Hot:
    """What the owner knows of one actor between two turns."""

    record: Record | None
    """None: there is no record (yet); `revision` then is what the next put expects."""
    revision: int
    partition: int
    live: Live | None = None
    flushed: set[int] = field(default_factory=set)
    """Numbers of the record's outbox entries that are known flushed, or given up."""
    given_up: set[int] = field(default_factory=set)
    """Those of them whose mail the broker had no room for until its time was over."""
    used: float = 0.0
    busy: bool = False

    def weight(self) -> int:
        """Estimated bytes in memory: the live frame costs about four times its pickled size, an entry itself about 2 KiB."""
        frame = self.live.size if self.live is not None else 0
        return 2048 + 4 * frame

    def discard(self) -> None:
        """Drop the live coroutines in silence."""
        live, self.live = self.live, None
        if live is not None:
            live.discard()


@dataclass(frozen=True, slots=True)
class HotCacheStatistics:
    """Counts since the node started."""

    entries: int
    weight: int
    evicted: int


class HotCache:
    """Entries by actor id, the least recently used first. One per node, shared by its partitions; used on the engine's loop only."""

    def __init__(self, *, max_entries: int, max_bytes: int, idle_seconds: float = 10.0) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._idle_seconds = idle_seconds
        self._entries: OrderedDict[str, Hot] = OrderedDict()
        self._weights: dict[str, int] = {}
        self._weight = 0
        self._partitions: Counter[int] = Counter()
        self._evicted = 0

    def __repr__(self) -> str:
        return f"<HotCache {len(self._entries)}/{self._max_entries} entries, {self._weight}/{self._max_bytes} bytes>"

    def __contains__(self, actor: str) -> bool:
        return actor in self._entries

    @property
    def idle_seconds(self) -> float:
        """How long an entry stays without being used."""
        return self._idle_seconds

    def get(self, actor: str) -> Hot | None:
        """The entry of an actor, or None. Does not count as a use: `keep` does."""
        return self._entries.get(actor)

    def keep(self, actor: str, hot: Hot, now: float) -> None:
        """Put the entry in, or note its use and new weight; evict the oldest that are not busy while a bound is passed."""
        previous = self._entries.get(actor)
        if previous is not None and previous is not hot:
            self.drop(actor)
        hot.used = now
        if actor not in self._entries:
            self._partitions[hot.partition] += 1
        self._entries[actor] = hot
        self._entries.move_to_end(actor)
        weight = hot.weight()
        self._weight += weight - self._weights.get(actor, 0)
        self._weights[actor] = weight
        if self._weight > self._max_bytes or len(self._entries) > self._max_entries:
            self._shrink()

    def drop(self, actor: str) -> None:
        """Forget an actor in silence. Does nothing when it is not there."""
        hot = self._entries.pop(actor, None)
        if hot is not None:
            self._weight -= self._weights.pop(actor)
            self._partitions[hot.partition] -= 1
            hot.discard()

    def drop_partition(self, p: int) -> None:
        """Forget every actor of a partition in silence."""
        for actor in [actor for actor, hot in self._entries.items() if hot.partition == p]:
            self.drop(actor)

    def count(self, p: int) -> int:
        """How many actors of a partition are here."""
        return self._partitions[p]

    def evict_idle(self, now: float) -> int:
        """Evict what has not been used for the idle time; how many those were. Called about once a second."""
        idle = []
        for actor, hot in self._entries.items():
            if now - hot.used < self._idle_seconds:
                break
            if not hot.busy:
                idle.append(actor)
        for actor in idle:
            self.drop(actor)
        self._evicted += len(idle)
        return len(idle)

    def statistics(self) -> HotCacheStatistics:
        """A frozen snapshot."""
        return HotCacheStatistics(len(self._entries), self._weight, self._evicted)

    def _shrink(self) -> None:
        """Looks no further than it has to: with the cache full this runs at every use (copying ten thousand entries each time took
        a third of a node that starts workflows without pause).
        """
        weight, count = self._weight, len(self._entries)
        victims = []
        for actor, hot in self._entries.items():
            if weight <= self._max_bytes and count <= self._max_entries:
                break
            if not hot.busy:
                victims.append(actor)
                weight -= self._weights[actor]
                count -= 1
        for actor in victims:
            self.drop(actor)
        self._evicted += len(victims)

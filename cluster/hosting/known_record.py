"""What the owner of an actor knows of its record: from the cache, or from the leader, and whether that is enough to act on.

What is hot is true until a commit shows otherwise. It is dropped, in silence, when a commit turns out to be another's, and read again from
the leader when something is to be decided without a commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.cluster.mail.mailbox import Mailbox
from sojourn.codecs.record import Origin, Record

from .commits import HigherEpoch, read_record
from .hot_cache import Hot

if TYPE_CHECKING:
    from .serving import Serving


class KnownRecord:
    """The record of one actor in memory, while its loop works and while it rests. Used by its host's loop only, one call at a time."""

    def __init__(self, serving: Serving, actor: str, mailbox: Mailbox) -> None:
        self._serving = serving
        self._actor = actor
        self._mailbox = mailbox
        self.hot: Hot | None = None
        """What `loaded` gave, while the loop does not rest."""
        self.committed = ""
        """Id of the last commit made here."""
        self.all_flushed = False
        """Whether that commit's whole outbox is known flushed."""
        self.suspect = False
        """An attempt has to be counted before user code runs."""
        self.cold = False
        """Loaded, and not looked at yet."""
        self.foreign = False
        """A pending call is run by a node that may live."""
        self.unreadable = False
        """A record is stored that cannot be opened here."""
        self._least = 0
        """A revision that the record has had: what is older is not the leader's word."""

    def __repr__(self) -> str:
        state = "unread" if self.hot is None else f"at revision {self.hot.revision}"
        return f"<KnownRecord {self._actor} {state}{', cold' if self.cold else ''}{', suspect' if self.suspect else ''}>"

    async def loaded(self) -> Hot:
        """What is known of the actor, from the cache or from the leader. Raises `BrokerError`, `HigherEpoch`."""
        if self.hot is not None:
            return self.hot
        services = self._serving.services
        cached = services.hot_cache.get(self._actor)
        if cached is not None:
            cached.busy = True
            self.hot = cached
            return cached
        async with self._serving.loads:
            self.hot = await self._load()
        return self.hot

    async def _load(self) -> Hot:
        serving, services = self._serving, self._serving.services
        found = await read_record(services, self._actor, least=self._least)
        self._mailbox.reread()
        self.unreadable = found.unreadable is not None
        if found.unreadable is not None:
            services.log.error("%s: its record cannot be opened: %s", self._actor, found.unreadable.error)
        record = found.record
        self.foreign = False  # until its calls are looked at, if they are this owner's to look at
        hot = Hot(record, found.revision, serving.p, busy=True)
        if record is None:
            return hot
        serving.unknown.pop(self._actor, None)
        envelope = record.envelope
        self._check_epoch(record)
        serving.note_hold(self._actor, record)
        if record.index.lane != serving.lane:
            self.suspect = False
            return hot  # on a lane, or not on this one: nothing is decided about what it owes
        mine = envelope.commit == self.committed
        if envelope.outbox and ((mine and self.all_flushed) or not await self._lease_stored(envelope.lease)):
            hot.flushed.update(entry.n for entry in envelope.outbox)
        if not mine and not record.index.status.ended:
            self.suspect = self._is_suspect(record)
        self.cold = True
        return hot

    async def _lease_stored(self, lease: Origin | None) -> bool:
        """Whether a copy of the lease is stored: then the outbox of its commit may not be flushed (4.7)."""
        if lease is None:
            return False
        if self._mailbox.has(lease) or await self._serving.floors.stored(lease):
            return True
        if not self._serving.lane:
            return False
        # The owner of the partition may have moved it just now: what is in HELD is looked at after the source.
        await self._serving.list_held(self._actor)
        return self._serving.held.has(self._actor, lease)

    def _is_suspect(self, record: Record) -> bool:
        """Whether this resumption must be counted: the last one may have killed its node (I7)."""
        if record.envelope.attempts.count > 0:
            return True
        lease, serving = record.envelope.lease, self._serving
        # Nobody died over what the owner has just put on a lane that is not taken over from a dead node.
        handed_over = serving.lane and not serving.taken_over and not record.envelope.lane_epoch
        if lease is not None and self._mailbox.has(lease) and not handed_over:
            return True
        if self._serving.counted > 0:
            self._serving.counted -= 1
            return True
        return False

    def look_again(self) -> None:
        """What is decided after a load is to be decided again: a lease ended, or other code is here."""
        self.cold = True

    def flushed(self, hot: Hot) -> None:
        """The whole outbox of the record is flushed."""
        self.all_flushed = hot.record is not None and hot.record.envelope.commit == self.committed

    async def is_newest(self, hot: Hot) -> bool:
        """Whether the leader's record is the one in memory. Raises `BrokerError`, `HigherEpoch`."""
        found = await read_record(self._serving.services, self._actor, least=hot.revision)
        if found.record is not None:
            self._check_epoch(found.record)
        return found.revision == hot.revision

    def _check_epoch(self, record: Record) -> None:
        """Whoever reads a record that a later owner committed is none any more. Raises `HigherEpoch`.

        A lane's epochs count by themselves, and only while the record is on that lane; the owner's epoch stays in the
        record through every commit of a lane node, so that a former owner meets it there (PROTOCOL 8).
        """
        serving, envelope = self._serving, record.envelope
        if not serving.lane and envelope.epoch > serving.epoch:
            raise HigherEpoch(envelope.epoch)
        if serving.lane and record.index.lane == serving.lane and envelope.lane_epoch > serving.epoch:
            raise HigherEpoch(envelope.lane_epoch)

    def is_away(self, hot: Hot) -> bool:
        """Whether this is the partition's owner and a lane node runs the actor."""
        return not self._serving.lane and hot.record is not None and hot.record.index.lane != ""

    def is_elsewhere(self, hot: Hot) -> bool:
        """Whether this is a lane node and the actor is not on its lane (any more)."""
        serving = self._serving
        return serving.lane != "" and (hot.record is None or hot.record.index.lane != serving.lane)

    def forget(self) -> None:
        """Drop what is hot, in silence: it may not be true any more, or is not ours."""
        hot, self.hot = self.hot, None
        services = self._serving.services
        services.hot_cache.drop(self._actor)
        if hot is not None:
            self._least = max(self._least, hot.revision)
            hot.discard()
        services.alone.release(self._actor)

    def rest(self) -> None:
        """The loop pauses: from now on the cache may evict the actor."""
        hot, self.hot = self.hot, None
        if hot is None:
            return
        hot.busy = False
        if hot.record is None or self.unreadable or self.is_away(hot) or self.is_elsewhere(hot):
            self._serving.services.hot_cache.drop(self._actor)  # what another writes is not known for long
            hot.discard()
        else:
            self._serving.services.hot_cache.keep(self._actor, hot, self._serving.services.monotonic())
        if not self.owes_work():
            self._serving.services.alone.release(self._actor)

    def park(self) -> None:
        """Its host goes: what is not going to be needed soon does not stay in the cache for the idle time either.

        Without this, a burst of workflows that sleep for long would fill the cache, and what such a peak
        leaves behind in the allocator stays with the process (measured: 15 MiB after 4,000 starts).
        """
        services = self._serving.services
        hot = services.hot_cache.get(self._actor)
        if hot is not None and hot.record is not None:
            soon = services.clock.now() + services.hot_cache.idle_seconds
            if _is_quiet(hot.record, soon):
                services.hot_cache.drop(self._actor)

    def owes_work(self) -> bool:
        """Whether a step of this actor runs here, or its outbox is not flushed: then its host stays."""
        return self._serving.services.steps.runs(self._actor) or self.foreign or not self._settled()

    def _settled(self) -> bool:
        hot = self.hot or self._serving.services.hot_cache.get(self._actor)
        return hot is None or hot.record is None or len(hot.flushed) >= len(hot.record.envelope.outbox)


def _is_quiet(record: Record, until: float) -> bool:
    """Whether nothing but an outside event can make the actor go on before `until` (broker time)."""
    if record.index.status.ended:
        return record.index.sealed
    waits = record.envelope.waits
    return bool(waits) and all(
        wait.kind in ("sleep", "timeout", "branches") and (wait.until is None or wait.until > until)
        for wait in waits
    )

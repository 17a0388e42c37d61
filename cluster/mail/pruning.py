"""Taking origins out of an actor's consumed set: which of them nothing is stored of any more (PROTOCOL 4.4)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sojourn.codecs.record import Origin, Record

from .mailbox import Mailbox

if TYPE_CHECKING:
    from sojourn.cluster.hosting.serving import Serving

PRUNED_AT_ONCE: Final = 64
"""On a lane, how many origins a consumed set gains between two looks at their copies."""
MANY_CONSUMED: Final = 256
"""Origins in a consumed set at which the sources are read before the next commit (4.4)."""


class Pruning:
    """Of one actor, here. Used by its host's loop only."""

    def __init__(self, serving: Serving, actor: str, mailbox: Mailbox) -> None:
        self._serving = serving
        self._actor = actor
        self._mailbox = mailbox
        self._gone: frozenset[Origin] = frozenset()
        """On a lane: consumed origins of which no copy was found anywhere."""
        self._due_at = PRUNED_AT_ONCE

    def gone(self, record: Record) -> frozenset[Origin]:
        """The origins that may leave the record's consumed set with its next commit, as far as is known."""
        serving = self._serving
        if serving.lane:
            return self._gone
        if not record.envelope.consumed:
            return frozenset()
        return frozenset(
            origin
            for origin in record.envelope.consumed
            if serving.floors.may_leave(origin) and not serving.held.has(self._actor, origin)
        )

    async def look(self, record: Record) -> None:
        """Where the consumed set has become large, find out what is gone. Raises `BrokerError`."""
        if self._serving.lane:
            if len(record.envelope.consumed) >= self._due_at:
                await self._on_lane(record)
        elif len(record.envelope.consumed) >= MANY_CONSUMED:
            await self._at_home(record)

    async def _at_home(self, record: Record) -> None:
        """The consumed set is large: find out what is gone, one by one where the floors do not tell."""
        floors = self._serving.floors
        await floors.refresh()
        for origin in sorted(record.envelope.consumed):
            if not self._mailbox.has(origin) and not floors.is_gone(origin):
                await floors.stored(origin)
        await floors.prove()

    async def _on_lane(self, record: Record) -> None:
        """The same on a lane, where acknowledgements happen elsewhere, and so do moves.

        The owner may move an event once more as long as its source is stored, so the copies are looked at after the sources.
        """
        serving, consumed = self._serving, record.envelope.consumed
        floors = serving.floors
        await floors.storage_went_back(consumed)  # notes how far the streams are
        for stream in ("mail", "ctl", "wake"):
            floors.touch(stream)
        await floors.refresh()
        above = [origin for origin in sorted(consumed) if not floors.is_gone(origin)]
        for start in range(0, len(above), PRUNED_AT_ONCE):
            await asyncio.gather(*(floors.stored(origin) for origin in above[start : start + PRUNED_AT_ONCE]))
        gone = [origin for origin in consumed if floors.is_gone(origin)]
        await serving.list_held(self._actor)
        self._gone = frozenset(origin for origin in gone if not serving.held.has(self._actor, origin))
        self._due_at = len(consumed) - len(self._gone) + PRUNED_AT_ONCE

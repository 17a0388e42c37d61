"""Moving events to HELD: the batches of one partition, one after another, each settled before the next (PROTOCOL 4.2).

A batch expects the last sequence under `held.<p>.>` and ends with a new fence, so nothing late and nothing of a former owner is stored
(`broker.held`). Until a batch is settled its items are `MOVING`: their actor consumes no mail, and they are neither acknowledged nor
dead-lettered. An item that HELD refuses as full goes to the dead letters as `mailbox full`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sojourn.broker.errors import BrokerClosed, BrokerError, FencedOff, MoveUnsettled
from sojourn.broker.held import MAX_MOVE, Move, Moved, MoveRefused, held_kind

from .mailroom import HeldRef, Item, Phase

if TYPE_CHECKING:
    from sojourn.cluster.hosting.serving import Serving

AGAIN_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Parcel:
    """Items of one actor that are to be moved, in order, and what to tell it of each."""

    actor: str
    items: tuple[Item, ...]
    stored: Callable[[Item, HeldRef], None]
    refused: Callable[[Item], None]
    """HELD takes no more of this event's channel."""
    settled: Callable[[], None]
    """Every item has been told of."""


class Mover:
    """The one writer of a partition's held events. Used on the engine's loop only."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._parcels: deque[Parcel] = deque()
        self._task: asyncio.Task[None] | None = None
        self._over = False

    def __repr__(self) -> str:
        return f"<Mover of partition {self._serving.p}: {len(self._parcels)} parcels>"

    def tasks(self) -> set[asyncio.Task[None]]:
        """What is under way, to be waited for."""
        return set() if self._task is None else {self._task}

    def submit(self, parcel: Parcel) -> None:
        """Move these items as soon as may be; they are `MOVING` from now on."""
        for item in parcel.items:
            item.phase = Phase.MOVING
        self._parcels.append(parcel)
        self._begin()

    def forget(self) -> None:
        """Give up what is under way: a new attach lists HELD anew, or the partition is lost."""
        self._over = True
        self._parcels.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._parcels:
            batch: list[tuple[Parcel, Item]] = []
            taken: list[Parcel] = []
            while self._parcels and len(batch) + len(self._parcels[0].items) <= MAX_MOVE:
                parcel = self._parcels.popleft()
                taken.append(parcel)
                batch += [(parcel, item) for item in parcel.items]
            if not batch:  # one parcel larger than a batch
                parcel = self._parcels.popleft()
                first, rest = parcel.items[:MAX_MOVE], parcel.items[MAX_MOVE:]
                head = Parcel(parcel.actor, first, parcel.stored, parcel.refused, lambda: None)
                self._parcels.appendleft(
                    Parcel(parcel.actor, rest, parcel.stored, parcel.refused, parcel.settled)
                )
                batch = [(head, item) for item in first]
            seqs = await self._store([item for _, item in batch])
            for (parcel, item), seq in zip(batch, seqs, strict=True):
                if seq is None:
                    parcel.refused(item)
                else:
                    kind, name = held_kind(item.parsed)
                    parcel.stored(item, HeldRef(seq, kind, name, item.stored.time))
            for parcel in taken:
                parcel.settled()

    async def _store(self, items: Sequence[Item]) -> Sequence[int | None]:
        """Repeat the batch until it is settled."""
        services, p, epoch = self._serving.services, self._serving.p, self._serving.epoch
        moves = [Move(item.parsed, item.stored, item.origin) for item in items]
        services.fault("before_move", str(p))
        while True:
            if not services.may_act():
                await services.wait_may_act()
            try:
                result = await services.held.move(p, moves, epoch=epoch)
            except FencedOff:
                raise
            except (MoveUnsettled, BrokerError) as unknown:
                if isinstance(unknown, BrokerClosed):
                    raise
                services.log.warning("moving %d events of partition %d, again: %s", len(moves), p, unknown)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if isinstance(result, Moved):
                services.fault("move_stored", str(p))
                services.meter.count("moved", len(moves))
                return result.seqs
            assert isinstance(result, MoveRefused)
            # Nobody but the owner writes there: another attach, ours or a later owner's, is under way.
            raise FencedOff(p, self._serving.epoch, result.epoch or 0)

    def _begin(self) -> None:
        if self._task is None and not self._over:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._over or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._over = True
            self._serving.lost(f"moving events failed: {error}")
        elif self._parcels:  # submitted after the last look of `_run`
            self._begin()

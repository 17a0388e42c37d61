"""One lane: the actors of a partition that are run here, because their partition's owner lacks their code (PROTOCOL 8).

A lane is served by what serves a partition, with three differences. Nothing is delivered: events are read from HELD, where the
partition's owner puts them, when a nudge says so and once at the attach. Nothing is moved. And the epochs are the lane's: a lane
node's commit keeps the epoch of the partition's owner in the record and adds its own.

An attach needs no consumers and no fence: nobody writes to HELD here, a held event is deleted only once a commit has consumed
it, and commits are compare-and-swap. So it is three steps: swap `lane.<deployment>.<p>`, list HELD, read the owner again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sojourn.cluster.hosting.partition import Partition

from .attach import Attached, Attacher

if TYPE_CHECKING:
    from sojourn.broker.subjects import ActorId
    from sojourn.cluster.hosting.services import PartitionServices


class LanePartition(Partition):
    """See the module. Used on the engine's loop only."""

    def __init__(
        self,
        p: int,
        epoch: int,
        services: PartitionServices,
        *,
        on_lost: Callable[[str], None],
    ) -> None:
        """The lane is that of `services.deployment`."""
        super().__init__(p, epoch, services, on_lost=on_lost, lane=services.deployment)

    async def nudged(self, actor: ActorId) -> bool:
        """Something of the actor is in HELD, or its record was changed by the owner. Returns once that is noted; False: the lane was
        given up meanwhile.

        From then on it needs no nudge: should this node die, whoever attaches the lane lists HELD. Raises `BrokerError`.
        """
        news = await self._serving.list_held(actor)
        if self._serving.over:
            return False  # a successor may have listed HELD before
        self._host(actor).nudged(news=news)
        return True


class LaneAttacher(Attacher):
    """Attaches the lanes of one deployment for one life of the node; its directory is a `LaneDirectory`."""

    async def attach(self, p: int) -> Attached:
        """The three steps. Raises as `Attacher.attach`."""
        former = await self._settled(lambda: self._directory.owner(p))
        await self._check_may_attach(p, former)
        mine = await self._take(p, former)
        self._fault("lane_owner", str(p))
        held = await self._settled(lambda: self._held.look(p))
        self._fault("lane_list", str(p))
        await self._settled(lambda: self.verify(p, mine.epoch))
        before = former.value
        moved = before is None or before.runner != self.runner
        taken_over = moved and before is not None and before.state != "free"
        return Attached(mine.epoch, held, {}, moved=moved, taken_over=taken_over)


class NoMarks:
    """Marks are the partition owner's."""

    def committed(self, p: int, actor: str, revision: int, transition: int) -> None:
        """As `Marks.committed`."""

    async def check(self, p: int) -> None:
        """As `Marks.check`."""

    async def write(self, p: int) -> None:
        """As `Marks.write`."""

    def forget(self, p: int) -> None:
        """As `Marks.forget`."""


class NoMeter:
    """Attaches of lanes are not counted among those of partitions."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """As `Meter.count`."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """As `Meter.observe`."""

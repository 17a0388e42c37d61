"""Telling the lane's owner that events of an actor are in HELD (PROTOCOL 8): by a plain request if it lives, else by a stored nudge.

Whoever owns the partition asks the lane's owner directly, and counts on its answer: it is given when the actor is noted, after
which whoever may succeed that owner lists HELD. That costs one small message for many actors at once, and nothing is stored. Only
when nobody is known to have the lane, or it does not answer, a nudge is stored in the stream for any node of the deployment. A
stored nudge of an actor replaces the one before it, so the stream holds at most one per actor however fast its mail comes:
thousands of them in the window of the consumer that the deployment's nodes share had kept each other from being looked at in time,
and came again and again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sojourn.broker.errors import BrokerError
from sojourn.broker.seam import Publish
from sojourn.broker.subjects import ActorId, Token
from sojourn.cluster.tenure.directory import LaneDirectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.broker.seam import Broker
    from sojourn.broker.subjects import Subjects

    from .services import Meter

KEPT_SECONDS: Final = 3600
"""How long a nudge is stored. One that is lost is made up for by the next look."""
KNOWN_SECONDS: Final = 5.0
"""How long the owner of a lane is taken for known; a wrong one says so at once."""
MAX_ACTORS: Final = 64
"""Told of in one request."""
IN_FLIGHT: Final = 4
"""Requests to one node at a time; what comes meanwhile goes with the next."""
NOTED: Final = b"noted"
LANE: Final = Token("lane")


class _Target:
    """One node that has lanes: who is to be told to it."""

    def __init__(self) -> None:
        self.waiting: dict[ActorId, asyncio.Future[bool]] = {}
        self.in_flight = 0


class Nudges:
    """See the module. One per life of a node; used on the engine's loop only."""

    def __init__(
        self,
        broker: Broker,
        subjects: Subjects,
        *,
        lives: Callable[[str], bool],
        monotonic: Callable[[], float],
        meter: Meter,
    ) -> None:
        """`lives` tells whether the lease of a "<node>/<lease>" may still live."""
        self._broker = broker
        self._subjects = subjects
        self._lives = lives
        self._monotonic = monotonic
        self._meter = meter
        self._owners: dict[tuple[str, int], tuple[str, float]] = {}
        self._targets: dict[str, _Target] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        """How many are waited for."""
        return f"<Nudges waiting={sum(len(target.waiting) for target in self._targets.values())}>"

    async def nudge(self, lane: str, actor: ActorId) -> None:
        """Return when the lane's owner has noted the actor, or a nudge of it is stored. Raises `BrokerError`."""
        p = self._subjects.partition_of(actor)
        if node := await self._owner(lane, p):
            if await self._tell(node, actor):
                self._meter.count("lane_nudges", lane=lane)
                return
            self._owners.pop((lane, p), None)
        await self.store(lane, actor)

    async def store(self, lane: str, actor: ActorId) -> None:
        """Store a nudge in place of the actor's last one. Raises `BrokerError`."""
        subject = self._subjects.lane(Token(lane), actor)
        await self._broker.publish(Publish(subject, ttl=KEPT_SECONDS, rollup=True))
        self._meter.count("lane_nudges", lane=lane)

    async def _owner(self, lane: str, p: int) -> str:
        """The node that has the lane, by the last look at it; empty when nobody is known to."""
        node, at = self._owners.get((lane, p), ("", float("-inf")))
        now = self._monotonic()
        if now - at > KNOWN_SECONDS:
            self._owners = {one: own for one, own in self._owners.items() if now - own[1] <= KNOWN_SECONDS}
            owner = (await LaneDirectory(self._broker, self._subjects, lane).owner(p)).value
            theirs = owner is not None and owner.state != "free" and self._lives(owner.runner)
            node = owner.node if owner is not None and theirs else ""
            if node:
                self._owners[lane, p] = node, now
        return node

    async def _tell(self, node: str, actor: ActorId) -> bool:
        """Whether the node has noted the actor, told in a request that is sent after this call."""
        target = self._targets.setdefault(node, _Target())
        told = target.waiting.get(actor)
        if told is None:
            told = target.waiting[actor] = asyncio.get_running_loop().create_future()
            if target.in_flight < IN_FLIGHT:
                target.in_flight += 1
                task = asyncio.create_task(self._send(node, target), name=f"nudges to {node}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(told)

    async def _send(self, node: str, target: _Target) -> None:
        """One request after another, until nobody waits."""
        try:
            while target.waiting:
                actors = list(target.waiting)[:MAX_ACTORS]
                told = [target.waiting.pop(actor) for actor in actors]
                noted = False
                try:
                    with suppress(BrokerError):
                        subject = self._subjects.probe(Token(node), LANE)
                        answer = await self._broker.request(subject, "\n".join(actors).encode())
                        noted = answer.payload == NOTED
                finally:
                    for one in told:
                        if not one.done():
                            one.set_result(noted)
        finally:
            target.in_flight -= 1
            if not target.in_flight and not target.waiting:
                del self._targets[node]  # nodes come and go for as long as this one lives

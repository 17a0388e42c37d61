"""What the actors of one served partition share: its epoch, its event memory, its pipelines."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from sojourn.broker.subjects import ActorId
from sojourn.cluster.mail.acks import Acknowledger
from sojourn.cluster.mail.floors import Floors
from sojourn.cluster.mail.mailroom import HeldIndex, HeldRef

from .slow_code import SlowCode

if TYPE_CHECKING:
    from sojourn.actors.events import StepDone
    from sojourn.cluster.mail.moves import Mover
    from sojourn.cluster.steps.local_steps import RunningCall
    from sojourn.codecs.record import Record

    from .actor_host import ActorHost
    from .away import Look
    from .services import PartitionServices

LOADS: Final = 128
"""Leader reads of records in flight per partition."""
COUNTED_AFTER_TAKEOVER: Final = 100
"""Actors whose attempt is counted after a takeover by lease end, besides those whose lease was in their record (I7)."""


class Hosts(Protocol):
    """The partition's actors that have something in memory to do, reached by their ids: what an actor consists of holds nothing that
    holds it, so a parked actor leaves nothing to the garbage collector.
    """

    def wake(self, actor: str) -> None:
        """Have its loop look at everything again."""

    def emptied(self, actor: str) -> None:
        """The last event has left its mailbox."""

    def step_ended(self, run: RunningCall, done: StepDone) -> None:
        """A local step of one of them ended."""

    def retire(self, host: ActorHost) -> None:
        """The host has nothing left to do: forget it."""


@dataclass(eq=False)
class Serving:
    """One partition while this node owns it. `over` is set once and for all when it is dropped or released."""

    p: int
    epoch: int
    services: PartitionServices
    floors: Floors
    acks: Acknowledger
    lost: Callable[[str], None]
    """Ask membership to look at `owner.<p>`."""
    hosts: Hosts
    mover: Mover = field(init=False)
    held: HeldIndex = field(default_factory=HeldIndex)
    loads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOADS))
    unknown: dict[str, float] = field(default_factory=dict)
    """Actors without a record that have held mail, with the broker time at which the oldest of it expires."""
    unknown_events: int = 0
    """Held events of those actors, counted about once a second."""
    unacknowledged: int = 0
    """Deliveries in hand."""
    slow: SlowCode = field(default_factory=SlowCode)
    counted: int = 0
    """Attempts that are still to be counted after a takeover."""
    lane: str = ""
    """Set when this is a lane (PROTOCOL 8): the deployment whose actors of the partition are run here; `epoch` is the
    lane's then. Empty: this node owns the partition.
    """
    taken_over: bool = False
    """The former owner's lease ended while it held."""
    away: dict[str, Look] = field(default_factory=dict)
    """Actors on a lane that have held events, each with the time at which it is looked at again."""
    pinned: set[str] = field(default_factory=set)
    """Actors held here because no node has their code."""
    quarantined: dict[str, str] = field(default_factory=dict)
    """Actors in quarantine now, with their workflows: as many as the partition has, and each has an event in HELD (I11), so an
    owner that attaches loads every one of them.
    """
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """In which the loops of its actors run."""
    releasing: bool = False
    over: bool = False

    def note_hold(self, actor: str, record: Record) -> None:
        """What was just loaded or committed says whether the actor is in quarantine. Its owner counts it, not a lane's node."""
        if record.index.hold == "quarantined" and not self.lane:
            self.quarantined[actor] = record.index.workflow
        else:
            self.quarantined.pop(actor, None)

    async def list_held(self, actor: str) -> bool:
        """On a lane: note the actor's events that were moved to HELD since the last look; whether there were any. Raises
        `BrokerError`.
        """
        known = max((ref.seq for _, ref in self.held.of(actor)), default=0)
        found = await self.services.held.of_actor(ActorId(actor), after=known)
        if self.over:
            return False
        for event in found:
            self.held.add(actor, event.origin, HeldRef(event.seq, event.kind, event.name, event.time))
        return bool(found)

    @property
    def group(self) -> int:
        """Under which number `LocalSteps` keeps its steps: a node may own a partition and a lane of it."""
        return -1 - self.p if self.lane else self.p

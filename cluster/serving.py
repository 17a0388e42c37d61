"""What the actors of one served partition share: its epoch, its event memory, its pipelines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .acks import Acknowledger
from .floors import Floors
from .mailroom import HeldIndex
from .slow_code import SlowCode

if TYPE_CHECKING:
    from .actor_host import ActorHost
    from .moves import Mover
    from .services import PartitionServices

LOADS: Final = 128
"""Leader reads of records in flight per partition."""
COUNTED_AFTER_TAKEOVER: Final = 100
"""Actors whose attempt is counted after a takeover by lease end, besides those whose lease was in their record (I7)."""


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
    retire: Callable[[ActorHost], None]
    """The host has nothing left to do: forget it."""
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
    releasing: bool = False
    over: bool = False

    def remember_unknown(self, actor: str, expires: float) -> None:
        """An actor without a record has held mail that expires at this broker time."""
        self.unknown[actor] = min(expires, self.unknown.get(actor, expires))
        self.unknown_events += 1

    def crowded(self) -> bool:
        """Whether over half of the partition's window of unacknowledged deliveries is in use (4.2)."""
        return self.unacknowledged > WINDOW // 2


WINDOW: Final = 10_000
"""`max_ack_pending` of a partition's consumers (PROTOCOL 1)."""

"""What an operator does in a run: releases actors that were quarantined although they did nothing.

An actor is quarantined when five of its counted resumptions in a row ended their node (I7). Where something else kills a node every
few seconds that can happen to an innocent one. Each is looked at as an operator would: the node that it is said to have ended did end, or
lost its lease; then it is released, and has to end as every other.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sojourn.actors.errors import NoAnswer, Refused
from sojourn.broker.errors import BrokerError

if TYPE_CHECKING:
    from sojourn.actors.client import Client

    from .fleet import Fleet
    from .watch import Watch

EVERY_SECONDS: Final = 2.0
_LAST: Final = re.compile(r"counted resumptions each ended their node \(last: ([^/)]+)/")


class Operator:
    """See the module. `run` it as a task."""

    def __init__(self, client: Client, watch: Watch, fleet: Fleet) -> None:
        self._client = client
        self._watch = watch
        self._fleet = fleet
        self.released: list[str] = []

    async def run(self) -> None:
        """Look around until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            held = {actor: r.reason for actor, r in self._watch.newest.items() if r.hold == "quarantined"}
            for actor, reason in held.items():
                if is_innocent(reason, self._ended):
                    try:
                        await self._client.handle(actor).release()
                    except (NoAnswer, Refused, BrokerError):
                        continue  # looked at again
                    self.released.append(actor)

    def _ended(self, node: str) -> bool:
        """Whether that process ended or lost a lease."""
        died = any(life.node == node and life.ended is not None for life in self._fleet.lives)
        return died or any(life.node == node and life.ended is not None for life in self._watch.all_leases())


def is_innocent(reason: str, ended: Callable[[str], bool]) -> bool:
    """Whether the actor was quarantined for the end of a node that the run itself ended."""
    found = _LAST.search(reason)
    return found is not None and ended(found[1])

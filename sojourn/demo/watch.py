"""What the demo sees while it runs: the state of every actor, from the headers that the broker republishes at each commit.

Hints only: the counts on the screen come from here, the verdict does not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from sojourn.broker.index_headers import IndexFacts, parse_index_headers
from sojourn.broker.seam import Broker, Received, Subscription
from sojourn.broker.subjects import ActorId, Subjects


class Watch:
    """Latest facts of each actor, and a way to wait for something to be true of them."""

    def __init__(self, broker: Broker, subjects: Subjects) -> None:
        self._broker = broker
        self._every = subjects.changed(ActorId("*"))
        self._changed = asyncio.Condition()
        self._subscription: Subscription | None = None
        self.facts: dict[str, IndexFacts] = {}

    async def __aenter__(self) -> Watch:
        self._subscription = await self._broker.subscribe(self._every, self._note)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._subscription is not None:
            await self._subscription.stop()

    async def _note(self, message: Received) -> None:
        facts = parse_index_headers(message.headers)
        if facts is None:
            return
        former = self.facts.get(facts.actor)
        if former is None or former.run != facts.run or former.transition < facts.transition:
            self.facts[facts.actor] = facts
            async with self._changed:
                self._changed.notify_all()

    async def until(self, holds: Callable[[dict[str, IndexFacts]], bool], seconds: float) -> bool:
        """Wait until it holds; False when it does not within `seconds`."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: holds(self.facts))
        except TimeoutError:
            return False
        return True

    def stages(self) -> Counter[str]:
        """How many onboardings are where: their stage, or the state they ended in."""
        return Counter(_shown(facts) for facts in self.facts.values() if not facts.parent)


def _shown(facts: IndexFacts) -> str:
    ended = facts.status in ("completed", "rejected", "failed", "cancelled", "terminated")
    return facts.status if ended else facts.stage or "starting"


def waiting_for_approval(facts: dict[str, IndexFacts], actors: Iterable[str]) -> set[str]:
    """Those of the actors that wait for a person's answer now."""
    return {actor for actor in actors if actor in facts and facts[actor].wait.startswith("receive approval")}

"""Held events that their partition's owner does not know of.

The owner keeps an index of what lies in HELD: what it listed at the attach, and what it moved since. A deletion that was confirmed may come
undone when the server that led the stream is lost (tried for acknowledgements, PROTOCOL 4.4; seen in a chaos run for HELD), and whatever
else may once let an entry go missing would leave an event unseen until the next attach. So each owner reads through its
partition's part of HELD, some at a time, and takes up what it did not know: the actor's record says whether that was consumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.broker.held import HeldEvent, HeldStore

    from .mailroom import HeldIndex

EVERY_SECONDS: Final = 15.0
PAGE: Final = 500
"""Held events read at a time: 10,000 of one partition are gone through in five minutes."""


class Strays:
    """The held events of one partition, gone through in a circle."""

    def __init__(self, held: HeldStore, p: int) -> None:
        self._held = held
        self._p = p
        self._next_seq = 1

    def __repr__(self) -> str:
        return f"<Strays of partition {self._p} from {self._next_seq}>"

    async def look(self, index: HeldIndex) -> Sequence[HeldEvent]:
        """Read one page, from any replica; those of it that the index does not have. (One that was deleted just now may be among them.)
        Raises `BrokerError`.
        """
        page, self._next_seq = await self._held.page(self._p, self._next_seq, PAGE)
        return [event for event in page if not index.has(event.actor, event.origin)]

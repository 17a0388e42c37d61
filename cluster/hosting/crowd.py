"""How many actors of this node are at work at a time, so that no more is pulled than it can take up.

A delivered event brings its actor's loop to life, about eight kilobytes until it rests. Each partition's window alone lets ten
thousand in; with 32 partitions a burst of starts would fill a node's memory with loops that wait for their first read. So pulls ask
for no more while the node is full. Only loops at work count, not actors that wait for a step or for mail: every loop comes to rest by
itself, so what is pulled later (a cancel, an awaited result) is never needed for room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FULL: Final = 4_000
"""Loops at work at which pulls ask for no more; until half of them rest."""


class Crowd:
    """The loops at work. One per life of a node; used on the engine's loop only. It is a `Room` of the seam."""

    __slots__ = ("_at_work", "_full", "_waiting")

    def __init__(self, full: int = FULL) -> None:
        self._full = full
        self._at_work = 0
        self._waiting: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Crowd {self._at_work} at work, {len(self._waiting)} pulls wait>"

    def began(self) -> None:
        """One more is at work."""
        self._at_work += 1

    def ended(self) -> None:
        """One rests."""
        self._at_work -= 1
        if self._waiting and self._at_work <= self._full // 2:
            waiting, self._waiting = self._waiting, []
            for again in waiting:
                again()

    def is_full(self) -> bool:
        """Whether no more should be pulled."""
        return self._at_work >= self._full

    def when_free(self, again: Callable[[], None]) -> None:
        """Call once there is room again. Ask `is_full` first."""
        self._waiting.append(again)

"""The bound on commits of one actor: a loop that never waits for anything is a finding, and must not take the node along (DESIGN 8)."""

from __future__ import annotations

import asyncio


class Pace:
    """A bucket of one second's transitions, filled at the limit's rate."""

    __slots__ = ("_at", "_left", "_rate")

    def __init__(self, rate: float) -> None:
        """`rate` in transitions per second."""
        self._rate = rate
        self._left = rate
        self._at = 0.0

    def pause(self, now: float) -> float:
        """Take one transition; how many seconds to wait before it may be made (local monotonic `now`)."""
        self._left = min(self._rate, self._left + (now - self._at) * self._rate) if self._at else self._rate
        self._at = now
        self._left -= 1.0
        return max(0.0, -self._left / self._rate)

    async def wait(self, seconds: float) -> None:
        """Wait that long."""
        await asyncio.sleep(seconds)

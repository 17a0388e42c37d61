"""Whether this node may act now: start a step, commit, flush (PROTOCOL 3).

A node that was cut off, or frozen, cannot know whether it is still the owner of anything. The gate is shut by
every disconnect and by the end of the time for which the lease is surely valid; it is opened by membership
alone, after leader reads have shown the lease and every `owner.<p>` unchanged. The gate makes stale work
rare; what makes it harmless are the compare-and-swap of each commit and the epoch in each record, since a
process can be frozen between asking the gate and writing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def boot_seconds() -> float:
    """Seconds since boot, running on while the machine sleeps, where the system has such a clock (Linux);
    else monotonic.

    A lease is ended by the broker's clock, so a laptop that slept must find it ended: `CLOCK_MONOTONIC`
    stands still meanwhile.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Gate:
    """Open while the lease is surely valid and nothing has put it in doubt. Used on the engine loop only,
    `extend` apart.
    """

    def __init__(self, *, now: Callable[[], float] = boot_seconds) -> None:
        """`now` in seconds, the clock of `extend`; shut until the node has joined."""
        self._now = now
        self._valid_until = float("-inf")
        self._why = "not joined yet"
        self._opened = asyncio.Event()

    def __repr__(self) -> str:
        """`<Gate [open]>` or `<Gate [shut: why]>`."""
        return f"<Gate [{'open' if self.is_open() else 'shut: ' + self.why()}]>"

    def is_open(self) -> bool:
        """Whether a step may start, a commit or flush be sent, at this moment."""
        return not self._why and self._now() < self._valid_until

    def why(self) -> str:
        """Why it is shut, in words for logs and `/readyz`; empty while it is open."""
        if self._why:
            return self._why
        return "" if self._now() < self._valid_until else "the lease may have ended"

    def extend(self, valid_until: float) -> None:
        """The lease was renewed: surely valid until this time of the gate's clock. Called by the guard
        thread (one float is written).
        """
        self._valid_until = valid_until

    def shut(self, why: str) -> None:
        """Nothing may act until `open` is called."""
        self._why = why
        self._opened.clear()

    def open(self) -> None:
        """Leader reads have shown the lease and the owned partitions unchanged."""
        self._why = ""
        self._opened.set()

    async def wait_open(self) -> None:
        """Return when the gate is open. Whoever waits must be cancelled when its partition is dropped."""
        while not self.is_open():
            if not self._opened.is_set():
                await self._opened.wait()
            elif not self.is_open():
                # The lease ran out without a disconnect: the guard's next renewal, or membership's drop, ends
                # this within seconds.
                await asyncio.sleep(0.1)

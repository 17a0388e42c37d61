"""The broker's clock as this node sees it (PROTOCOL 4.5).

`now` is the local monotonic clock plus an offset taken from the time stamp of a `STREAM.INFO` answer, so
nodes whose own clocks are an hour apart agree to within half a round trip. The offset is taken at attach
and each minute. Between two measures time does not step back; that it does not step back for one *actor*
over nodes is kept in its record.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sojourn.broker.seam import Broker


class BrokerClock:
    """Time of the broker, Unix seconds. `sync` must have run once before `now`."""

    def __init__(
        self, broker: Broker, stream: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._broker = broker
        self._stream = stream
        self._monotonic = monotonic
        self._offset: float | None = None
        self._latest = 0.0
        self.uncertainty = 0.0
        """Half of the round trip of the last measure, seconds."""

    def __repr__(self) -> str:
        offset = "not synchronised" if self._offset is None else f"offset={self._offset:.6f}"
        return f"<BrokerClock {offset} uncertainty={self.uncertainty:.6f}>"

    @property
    def offset(self) -> float | None:
        """Broker time minus local monotonic time; None before the first measure."""
        return self._offset

    async def sync(self) -> float:
        """Measure once; the new offset. Raises `OutcomeUnknown`, `StreamNotFound`."""
        before = self._monotonic()
        info = await self._broker.stream_info(self._stream)
        after = self._monotonic()
        self.uncertainty = (after - before) / 2
        self._offset = info.now - (before + after) / 2
        return self._offset

    def now(self) -> float:
        """The broker's time; never earlier than what this clock gave before."""
        if self._offset is None:
            raise RuntimeError("BrokerClock.now() before sync(): attach measures the offset first")
        self._latest = max(self._latest, self._monotonic() + self._offset)
        return self._latest

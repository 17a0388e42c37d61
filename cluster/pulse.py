"""What a node does by the clock: tick for the guard, gather figures, write marks, take the broker's time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sojourn.broker.clock import BrokerClock
from sojourn.broker.errors import BrokerError

from .garbage import Garbage
from .holding.marks import MARK_SECONDS
from .metrics import Metrics
from .tenure.gate import Gate
from .tenure.lease import Vitals

if TYPE_CHECKING:
    from .holding.marks import Marks
    from .hosting.services import ServedPartition

_LOG = logging.getLogger("sojourn.cluster")
TICK_SECONDS: Final = 0.25
MEASURE_SECONDS: Final = 5.0
"""Between two sums over all partitions for the gauges."""
CLOCK_SECONDS: Final = 60.0
COLLECT_SECONDS: Final = 1.0
"""Between two looks at how much is allocated."""


class Pulse:
    """The periodic tasks of a node. Engine loop only."""

    def __init__(
        self,
        clock: BrokerClock,
        gate: Gate,
        vitals: Vitals,
        metrics: Metrics,
        *,
        partitions: Callable[[], Iterable[ServedPartition]],
        marks: Callable[[], Marks | None],
        now: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`partitions` and `marks` are the present life's. `now` is the guard's clock, `wall` this
        machine's.
        """
        self._clock = clock
        self._gate = gate
        self._vitals = vitals
        self._metrics = metrics
        self._partitions = partitions
        self._marks = marks
        self._now = now
        self._wall = wall
        self._measured = (time.process_time(), now())
        """CPU seconds of this process and the guard's time, when they were last looked at."""
        self._quarantined: set[str] = set()
        """Workflows that have or had actors in quarantine here: they go back to 0, not away."""

    def tasks(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        """What is to run for as long as the node does, with names."""
        return (
            ("tick", self._keep_ticking()),
            ("measure", self._keep_measuring()),
            ("marks", self._keep_marking()),
            ("clock", self._keep_time()),
            ("garbage", self._keep_clean()),
        )

    async def _keep_ticking(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self._metrics.gauge("loop_lag_seconds", max(0.0, loop.time() - due))
            self._vitals.tick = self._now()

    async def _keep_measuring(self) -> None:
        while True:
            await asyncio.sleep(MEASURE_SECONDS)
            try:
                await self._measure()
            except Exception:  # figures are for people to look at: no mistake in them may end a node
                _LOG.exception("the node's figures could not be gathered")

    async def _keep_clean(self) -> None:
        garbage = Garbage()
        while True:
            await asyncio.sleep(COLLECT_SECONDS)
            garbage.collect()

    async def _measure(self) -> None:
        figures = []
        for partition in self._partitions():
            figures.append(partition.statistics())
            await asyncio.sleep(0)  # with 10,000 hot actors one partition's figures take milliseconds
        gauge = self._metrics.gauge
        gauge("partitions", len(figures))
        vitals = self._vitals
        vitals.hot = sum(one.hot for one in figures)
        vitals.steps = sum(one.running_steps for one in figures)
        vitals.load = self._load()
        gauge("hot_actors", vitals.hot)
        gauge("active_actors", sum(one.hosts for one in figures))
        gauge("waiting_events", sum(one.waiting for one in figures))
        gauge("held_events", sum(one.held for one in figures))
        gauge("actors_on_lanes", sum(one.away for one in figures))
        gauge("pins_without_node", sum(one.pinned for one in figures))
        quarantined: Counter[str] = Counter()
        for one in figures:
            quarantined.update(one.quarantined)
        self._quarantined.update(quarantined)
        for workflow in self._quarantined:
            gauge("actors_quarantined", quarantined[workflow], workflow=workflow)
        gauge("unacknowledged", sum(one.unacknowledged for one in figures))
        gauge("running_steps", vitals.steps)
        gauge("oldest_runnable_seconds", max((one.oldest_runnable for one in figures), default=0.0))
        gauge("gate_open", float(self._gate.is_open()))

    def _load(self) -> float:
        """Cores that this process kept busy since the last call."""
        cpu, now = time.process_time(), self._now()
        (cpu_before, before), self._measured = self._measured, (cpu, now)
        return (cpu - cpu_before) / (now - before) if now > before else 0.0

    async def _keep_marking(self) -> None:
        while True:
            await asyncio.sleep(MARK_SECONDS)
            marks = self._marks()
            if marks is not None:
                await marks.write_all()

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_SECONDS)
            with suppress(BrokerError):
                await self._clock.sync()
                self._metrics.gauge("clock_offset_seconds", self._clock.now() - self._wall())

"""What a node builds once per life: the services of its partitions under one lease, and what it keeps over
all of them.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sojourn.actors.engine import Engine
from sojourn.broker.absence import PATIENCE_SECONDS
from sojourn.broker.dead import DeadLetters
from sojourn.broker.frames import FrameStore
from sojourn.broker.held import HeldStore

from .deployments.pins import ClusterPins
from .holding.attach import Attacher
from .holding.holdings import Holdings
from .holding.lane_partition import LaneAttacher, LanePartition, NoMarks, NoMeter
from .holding.lanes import Lanes
from .holding.marks import Marks, Memory
from .hosting.hot_cache import HotCache
from .hosting.services import Fault, PartitionFactory, PartitionServices
from .membership import Life, Membership
from .steps.local_steps import LocalSteps
from .tenure.directory import Directory, LaneDirectory

if TYPE_CHECKING:
    from sojourn.actors.execution import StepRunner
    from sojourn.actors.limits import Limits
    from sojourn.actors.registry import Registry
    from sojourn.broker.clock import BrokerClock
    from sojourn.broker.seam import Broker
    from sojourn.broker.subjects import Subjects
    from sojourn.codecs.keyring import Keyring

    from .deployments.versions import Versions
    from .metrics import Metrics
    from .tenure.gate import Gate


class NewIds:
    """Names nobody can guess: 96 random bits in the alphabet of names. Drawn from the system in batches, since each
    draw is a system call; so a process that has drawn some must not fork into two that go on.
    """

    BITS: Final = 96
    BATCH: Final = 256

    def __init__(self, random: Callable[[int], bytes] = os.urandom) -> None:
        self._random = random
        self._drawn: list[str] = []

    def __call__(self) -> str:
        """The next one."""
        if not self._drawn:
            text = base64.urlsafe_b64encode(self._random(self.BATCH * self.BITS // 8)).decode()
            length = self.BITS // 6
            self._drawn = [text[at : at + length] for at in range(0, len(text), length)]
        return self._drawn.pop()


new_id = NewIds()
"""This process's own. Used on the engine's loop only."""


@dataclass(kw_only=True)
class Lives:
    """The parts of a node that outlive a lease. `make` builds the rest anew for each."""

    broker: Broker
    subjects: Subjects
    clock: BrokerClock
    gate: Gate
    metrics: Metrics
    keyring: Keyring
    registry: Registry
    step_runner: StepRunner
    limits: Limits
    node_id: str
    versions: Versions
    """The cluster's deployments, this node's own among them."""
    reply_prefix: str
    fault: Fault
    factory: PartitionFactory
    random: random.Random = field(default_factory=random.Random)
    monotonic: Callable[[], float] = time.monotonic
    local_steps: LocalSteps = field(default_factory=LocalSteps)
    """Steps that run in this process, whatever became of the lease under which they began."""

    memory: Memory = field(default_factory=Memory)
    patience: float = PATIENCE_SECONDS
    """How long a leader is given that has not come as far as was seen; 0 where there is one server, which cannot lag."""

    def __post_init__(self) -> None:
        """The engine and the cache are shared by all lives, too."""
        self.engine = Engine(
            self.registry,
            limits=self.limits,
            ids=new_id,
            random=self.random.random,
            deployment=self.versions.own.label,
        )
        self.hot_cache = HotCache(max_entries=self.limits.hot_actors, max_bytes=self.limits.hot_bytes)
        self.lane_cache = HotCache(max_entries=self.limits.hot_actors, max_bytes=self.limits.hot_bytes)

    async def make(self, lease: str, membership: Membership) -> Life:
        """The services and holdings for a lease that was just taken. Raises `BrokerError`."""
        marks = Marks(
            self.broker,
            self.subjects,
            node=self.node_id,
            broker_now=self.clock.now,
            memory=self.memory,
            patience=self.patience,
        )
        await marks.streams()
        held = HeldStore(self.broker, self.subjects, node=self.node_id, patience=self.patience)
        services = PartitionServices(
            broker=self.broker,
            subjects=self.subjects,
            frames=FrameStore(self.broker, self.subjects),
            held=held,
            dead=DeadLetters(self.broker, self.subjects),
            clock=self.clock,
            keyring=self.keyring,
            engine=self.engine,
            registry=self.registry,
            step_runner=self.step_runner,
            hot_cache=self.hot_cache,
            limits=self.limits,
            node_id=self.node_id,
            lease_id=lease,
            deployment=self.versions.own.label,
            stream_created=marks.created,
            inbox_prefix=self.reply_prefix,
            gate=self.gate,
            lives=membership.lives,
            marks=marks,
            meter=self.metrics,
            random=self.random,
            ids=new_id,
            monotonic=self.monotonic,
            fault=self.fault,
            steps=self.local_steps,
            patience=self.patience,
            resolver=ClusterPins(self.engine, self.versions),
        )
        attacher = Attacher(
            self.broker,
            self.subjects,
            Directory(self.broker, self.subjects),
            held,
            node=self.node_id,
            lease=lease,
            broker_now=self.clock.now,
            fault=self.fault,
        )
        holdings = Holdings(
            services, attacher, marks, self.factory, self.metrics, on_change=membership.changed
        )
        return Life(lease, holdings, marks, self._lanes(services, membership, holdings))

    def _lanes(self, services: PartitionServices, membership: Membership, homes: Holdings) -> Lanes:
        """The lanes of this node's deployment: the same parts, with memory of their own."""
        lane_services = dataclasses.replace(
            services,
            held=HeldStore(self.broker, self.subjects, node=self.node_id, patience=self.patience),
            hot_cache=self.lane_cache,
            marks=NoMarks(),
        )
        directory = LaneDirectory(self.broker, self.subjects, services.deployment)
        attacher = LaneAttacher(
            self.broker,
            self.subjects,
            directory,
            lane_services.held,
            node=self.node_id,
            lease=services.lease_id,
            broker_now=self.clock.now,
            fault=self.fault,
        )
        holdings = Holdings(
            lane_services, attacher, NoMarks(), LanePartition, NoMeter(), on_change=membership.changed
        )
        return Lanes(services, holdings, directory, self.versions, self.metrics, homes)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()

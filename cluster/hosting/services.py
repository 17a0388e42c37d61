"""What a served partition needs from its node, and what the node needs from a served partition.

This file is the seam between membership (who owns which partition) and hosting (what an owner does with one).
Membership builds one `PartitionServices` per life of the node: a node whose lease ended joins anew under a
new lease id and with a new value of this class.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from sojourn.broker.absence import PATIENCE_SECONDS
from sojourn.cluster.deployments.pins import LonePins, Pins
from sojourn.cluster.steps.local_steps import LocalSteps
from sojourn.cluster.tenure.gate import Gate

from .alone import Alone
from .crowd import Crowd
from .defects import DefectLog
from .nudges import Nudges

if TYPE_CHECKING:
    from sojourn.actors.engine import Engine
    from sojourn.actors.execution import StepRunner
    from sojourn.actors.limits import Limits
    from sojourn.actors.registry import Registry
    from sojourn.broker.clock import BrokerClock
    from sojourn.broker.dead import DeadLetters
    from sojourn.broker.frames import FrameStore
    from sojourn.broker.held import HeldEvent, HeldStore
    from sojourn.broker.seam import Broker
    from sojourn.broker.subjects import Subjects
    from sojourn.codecs.keyring import Keyring

    from .hot_cache import HotCache


class Fault(Protocol):
    """A named point at which tests may crash, hang or raise. Production code passes `no_fault`."""

    def __call__(self, point: str, about: str = "") -> None:
        """`point` such as `after_commit`; `about` the actor id or the partition."""


def no_fault(point: str, about: str = "") -> None:
    """Do nothing."""


class CommitMarks(Protocol):
    """Collector of the last acknowledged commits, for `mark.<p>` (I8)."""

    def committed(self, p: int, actor: str, revision: int, transition: int) -> None:
        """A commit of this actor was acknowledged with this revision. Cheap: called for every commit."""


class PartitionMarks(Protocol):
    """What `Holdings` asks of `mark.<p>` (I8); `marks.Marks`, or nothing for lanes."""

    async def check(self, p: int) -> None:
        """Raises `StorageWentBack`, `BrokerError`."""

    async def write(self, p: int) -> None:
        """Write it if it changed. Raises `BrokerError`."""

    def forget(self, p: int) -> None:
        """The partition is no longer ours."""


class Meter(Protocol):
    """Where a partition counts and measures. Names and labels are those declared in `cluster.metrics`;
    never ids.
    """

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add one value (seconds or bytes) to a histogram."""


@dataclass(frozen=True, eq=False)
class PartitionServices:
    """Everything a partition is given. One value for all partitions of one life of the node."""

    broker: Broker
    """The engine loop's connection."""
    subjects: Subjects
    frames: FrameStore
    held: HeldStore
    dead: DeadLetters
    clock: BrokerClock
    keyring: Keyring
    engine: Engine
    registry: Registry
    step_runner: StepRunner
    hot_cache: HotCache
    """One for the whole node, so that its bounds are the node's."""
    limits: Limits
    node_id: str
    lease_id: str
    deployment: str
    """Label of the code this node runs."""
    stream_created: Mapping[str, int]
    """Creation time (Unix ns) of the streams "mail", "ctl", "wake", "held": the `created` of an `Origin`.
    Read again before each attach.
    """
    inbox_prefix: str
    """Replies go only to subjects under this prefix."""
    gate: Gate
    lives: Callable[[str], bool]
    """Whether the lease of a runner ("<node>/<lease>") may still live. A runner never heard of counts as
    living until a leader read has shown otherwise; then `ServedPartition.lease_ended` is called, so nobody
    has to ask again.
    """
    marks: CommitMarks
    meter: Meter
    random: random.Random
    ids: Callable[[], str]
    """Fresh unguessable ids (commits, runs)."""
    monotonic: Callable[[], float]
    """Seconds; for intervals only."""
    fault: Fault = no_fault
    steps: LocalSteps = field(default_factory=LocalSteps)
    """Local steps that this life of the node runs, whatever became of their partitions."""
    resolver: Pins | None = None
    """None: there is one deployment (`pins.LonePins`)."""
    alone: Alone = field(default_factory=Alone)
    """The gate through which a suspected actor runs alone (I7)."""
    defects: DefectLog = field(default_factory=DefectLog)
    """What the log says of actors that come into quarantine."""
    patience: float = PATIENCE_SECONDS
    """See `broker.absence`."""
    crowd: Crowd = field(default_factory=Crowd)
    """The actors at work: what is pulled waits while they are too many."""
    log: logging.Logger = logging.getLogger("sojourn.cluster")  # noqa: RUF009 - loggers are process-wide singletons by design

    @property
    def runner(self) -> str:
        """ "<node>/<lease>": how this life of the node is named in pending calls."""
        return f"{self.node_id}/{self.lease_id}"

    @cached_property
    def nudger(self) -> Nudges:
        """How owners of lanes are told of their actors."""
        return Nudges(
            self.broker, self.subjects, lives=self.lives, monotonic=self.monotonic, meter=self.meter
        )

    @cached_property
    def pins(self) -> Pins:
        """Where actors can be run."""
        return self.resolver or LonePins(self.engine, self.deployment)

    def may_act(self) -> bool:
        """Whether a step may start, a commit or flush may be sent now. Ask before each; `wait_may_act`
        waits for it.
        """
        return self.gate.is_open()

    async def wait_may_act(self) -> None:
        """Return when acting is allowed. The waiting task must be cancelled by `drop`."""
        await self.gate.wait_open()


class PartitionStatistics(Protocol):
    """What membership and metrics read of `Partition.statistics()`; hosting may add fields."""

    @property
    def partition(self) -> int:
        """Its number."""

    @property
    def epoch(self) -> int:
        """Under which it is served."""

    @property
    def hot(self) -> int:
        """Actors with live coroutines in memory."""

    @property
    def hosts(self) -> int:
        """Actors with something in memory to do."""

    @property
    def waiting(self) -> int:
        """Events in memory, not consumed and not moved yet."""

    @property
    def held(self) -> int:
        """Events listed in HELD."""

    @property
    def unacknowledged(self) -> int:
        """Deliveries not yet acknowledged: to be compared with the window of 10,000."""

    @property
    def running_steps(self) -> int:
        """Local steps running here for this partition."""

    @property
    def away(self) -> int:
        """Actors on a lane that have held events."""

    @property
    def pinned(self) -> int:
        """Actors held because no node has their code."""

    @property
    def quarantined(self) -> Mapping[str, int]:
        """Actors in quarantine now, by workflow."""

    @property
    def oldest_runnable(self) -> float:
        """Age in seconds of the oldest event that could run and has not; 0.0 when there is none."""


class ServedPartition(Protocol):
    """One partition as membership sees it (implemented by `cluster.partition.Partition`). All methods on
    the engine loop.
    """

    async def start(
        self, held: Sequence[HeldEvent], consumers: Mapping[str, str], *, taken_over: bool = False
    ) -> None:
        """Attached: load the actors that have held events, then begin to pull.

        `consumers` maps the stream's short name ("mail", "ctl", "wake") to the consumer's name. `taken_over`:
        the former owner's lease ended while it held the partition, so attempts are counted (I7). Raises when
        it cannot (then it is dropped).
        """

    async def reattached(self, epoch: int, held: Sequence[HeldEvent], consumers: Mapping[str, str]) -> None:
        """The same owner attached anew under a higher epoch: hot actors and running steps stay, events are
        matched by origin.
        """

    async def release(self, deadline: float) -> None:
        """Planned move: stop pulling, let hot actors reach their next commit, flush, acknowledge. Returns
        when all that is settled, or at the `deadline` (of `services.monotonic`). Running local steps go on
        and publish their outcome to `done`. Afterwards nothing of this partition is written any more,
        those outcomes apart.
        """

    async def wait_steps_finished(self) -> None:
        """Return when no local step of this partition runs here and every outcome owed to `done` is
        stored. After `release`, or before.
        """

    def drop(self) -> None:
        """Ownership is lost: forget everything at once and silently, coroutines discarded. Running steps
        publish to `done`. Twice is fine.
        """

    def lease_ended(self, runner: str) -> None:
        """The lease "<node>/<lease>" is over for certain: pending calls that name it may be taken over."""

    def look_again(self) -> None:
        """Other code is here, or a deployment registered: actors that wait for code are looked at again (I11)."""

    def statistics(self) -> PartitionStatistics:
        """A frozen snapshot."""


class PartitionFactory(Protocol):
    """Makes the hosting side of a partition that was just attached."""

    def __call__(
        self, p: int, epoch: int, services: PartitionServices, *, on_lost: Callable[[str], None]
    ) -> ServedPartition:
        """`on_lost(reason)` asks membership to look at `owner.<p>` and attach anew or drop. It may be
        called more than once; only on the loop.
        """

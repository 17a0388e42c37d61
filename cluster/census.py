"""Who is still suspended in which code: per deployment, per pin, per source line, with counts and ages (DESIGN 7).

One scan of all records' indexes, which needs no key and unpickles nothing, compared with what the deployments registered. A
deployment *receives* while new actors may start on it. An actor *needs* the deployment that ran it last when no other that has
living nodes or receives can run it, by what they registered. A deployment is *drained* when it does not receive and no actor
needs it: its nodes may go, and what it ran is run by others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sojourn.broker.cluster_keys import ClusterKeys

from .deployments import deployment as deployments
from .deployments.versions import Policy, read_policy
from .hosting.views import list_indexes
from .tenure.directory import Directory

if TYPE_CHECKING:
    from sojourn.broker.seam import Broker
    from sojourn.broker.subjects import Subjects
    from sojourn.codecs.record import Index, SourceLine

    from .deployments.deployment import Deployment


@dataclass(slots=True)
class Line:
    """Actors suspended at one source line of one deployment: where the innermost await of a branch stands."""

    module: str
    function: str
    line: int
    source: str = ""
    count: int = 0
    oldest: float = 0.0
    """Broker time of the longest wait."""


@dataclass(slots=True)
class PinGroup:
    """Actors whose frames need the same code."""

    pin: tuple[str, ...]
    pinned_to: str
    """Set when it is the label that is pinned."""
    others: tuple[str, ...]
    """Other deployments that live or receive and can run them."""
    count: int = 0
    oldest: float = 0.0


@dataclass(slots=True)
class DeploymentCensus:
    """What one deployment still has."""

    label: str
    registered: bool
    receives: bool
    """New actors may start on it."""
    current: bool
    weight: int
    """Its weight in the ramp; 0 without one."""
    nodes: int
    """Living nodes that run it."""
    suspended: int = 0
    """Actors it ran last, or that are to begin on it, and that have not ended."""
    needing: int = 0
    """Those that nothing else can run."""
    on_lane: int = 0
    without_node: int = 0
    """Those held because no living node has their code."""
    lines: list[Line] = field(default_factory=list)
    """The most frequent first."""
    pins: list[PinGroup] = field(default_factory=list)

    @property
    def drained(self) -> bool:
        """Whether its nodes may go."""
        return not self.receives and self.needing == 0


@dataclass(frozen=True, slots=True)
class Census:
    """All deployments, and the policy they were looked at under."""

    policy: Policy
    deployments: Mapping[str, DeploymentCensus]

    def without_node(self) -> int:
        """Actors held because no living node has their code."""
        return sum(one.without_node for one in self.deployments.values())


async def take_census(
    broker: Broker, subjects: Subjects, seen: Callable[[int], None] = lambda number: None
) -> Census:
    """Look at every record once. From any replica, so a moment old. `seen` is told of each. Raises `BrokerError`."""
    keys = ClusterKeys(broker, subjects)
    policy, _ = await read_policy(keys)
    known = await deployments.read_all(keys)
    view = await Directory(broker, subjects).poll(subjects.partitions)
    nodes = Counter(m.deployment for m in view.members.values() if m.state != "draining")
    counting = Counting(policy, known, nodes)
    async for index in list_indexes(broker, subjects):
        seen(1)
        counting.add(index)
    return counting.census()


def count(
    policy: Policy, known: Mapping[str, Deployment], nodes: Mapping[str, int], indexes: Iterable[Index]
) -> Census:
    """The census of these actors. `nodes`: living nodes by label."""
    counting = Counting(policy, known, nodes)
    for index in indexes:
        counting.add(index)
    return counting.census()


class Counting:
    """A census under way: it remembers groups, not actors."""

    def __init__(self, policy: Policy, known: Mapping[str, Deployment], nodes: Mapping[str, int]) -> None:
        """As `count`."""
        self._policy = policy
        self._known = known
        self._nodes = nodes
        self._found = {label: self._blank(label) for label in {*known, *nodes} - {""}}
        self._lines: dict[tuple[str, SourceLine], Line] = {}
        self._pins: dict[tuple[str, tuple[str, ...], str], PinGroup] = {}

    def add(self, index: Index) -> None:
        """Count one actor."""
        if index.status.ended:
            return
        label = index.deployment
        one = self._found.get(label)
        if one is None:
            one = self._found[label] = self._blank(label)
        one.suspended += 1
        one.on_lane += bool(index.lane)
        one.without_node += index.hold == "pin"
        key = (label, index.pin, index.pinned_to)
        group = self._pins.get(key)
        if group is None:
            others = _others(index, self._policy, self._known, self._nodes)
            group = self._pins[key] = PinGroup(index.pin, index.pinned_to, others)
            one.pins.append(group)
        _add(group, index)
        one.needing += not group.others
        for stack in filter(None, index.stacks):
            line = self._lines.get((label, stack[-1]))
            if line is None:
                line = self._line(label, stack[-1])
                one.lines.append(line)
            _add(line, index)

    def census(self) -> Census:
        """What was counted."""
        for one in self._found.values():
            one.lines.sort(key=lambda line: (-line.count, line.module, line.line))
            one.pins.sort(key=lambda group: -group.count)
        return Census(self._policy, self._found)

    def _line(self, label: str, place: SourceLine) -> Line:
        deployment = self._known.get(label)
        text = deployment.source_line(place.module, place.line) if deployment is not None else None
        line = self._lines[label, place] = Line(place.module, place.function, place.line, text or "")
        return line

    def _blank(self, label: str) -> DeploymentCensus:
        return _blank(label, self._policy, self._known, self._nodes)


def _blank(
    label: str, policy: Policy, known: Mapping[str, Deployment], nodes: Mapping[str, int]
) -> DeploymentCensus:
    return DeploymentCensus(
        label,
        registered=label in known,
        receives=label in policy.labels(),
        current=label == policy.current,
        weight=policy.ramp.get(label, 0),
        nodes=nodes.get(label, 0),
    )


def _others(
    index: Index, policy: Policy, known: Mapping[str, Deployment], nodes: Mapping[str, int]
) -> tuple[str, ...]:
    """Deployments beside its own that live or receive and can run the actor."""
    candidates = sorted(policy.labels() | {label for label, number in nodes.items() if number} - {""})
    return tuple(
        label
        for label in candidates
        if label != index.deployment and label in known and _can_run(known[label], index, known)
    )


def _can_run(deployment: Deployment, index: Index, known: Mapping[str, Deployment]) -> bool:
    if index.pinned_to:
        return index.pinned_to == deployment.label
    if not index.pin:  # not begun, or only waiting for its children to end
        return index.workflow in deployment.workflows
    return not deployment.lacks(index.pin, known.get(index.deployment))


def _add(to: Line | PinGroup, index: Index) -> None:
    to.oldest = index.updated if not to.count else min(to.oldest, index.updated)
    to.count += 1

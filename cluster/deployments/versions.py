"""Which deployment new actors start on, and what this node knows of all deployments (DESIGN 7).

The key `versions` of the cluster bucket says which deployment is current and, while one is rolled out, by which
weights starts are shared out (`Policy`). It is changed by compare-and-swap: by the first deployment that registers
when none is current, else by an operator. A node reads it with every poll; a start is decided once, and the decision
is stored in the actor's record.

`Versions` is the node's picture: the policy, the deployments that have living nodes, and which deployment the owner of
each partition runs. It is polled, so it may lag; whatever is decided on it is safe when it is wrong, because records
are changed by compare-and-swap and a node that lacks a frame's code refuses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.errors import WrongLastSequence
from sojourn.codecs.data import UNDECODABLE
from sojourn.codecs.errors import SojournError

from . import deployment as deployments
from .deployment import Deployment

if TYPE_CHECKING:
    from sojourn.cluster.tenure.ownership import View

_KEY: Final = "versions"
KEPT: Final = 32
"""Deployments without nodes that a node still knows, the ones it met last: what they registered tells more exactly who can run what they
left behind (`Deployment.lacks`). Each may be a megabyte.
"""
_SERVES: Final = ("joining", "ready")
"""States of a member to which work is given."""


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of `versions`."""

    current: str = ""
    """Label of the deployment that new actors start on; empty: none was registered yet."""
    ramp: dict[str, int] = {}
    """Weights by label while a version is rolled out; empty: all starts go to `current`."""
    by: str = ""
    """Who changed it last."""
    at: float = 0.0
    """Unix seconds, the changer's clock; for display."""

    def labels(self) -> frozenset[str]:
        """Deployments that new actors may start on."""
        return frozenset(self.ramp) or frozenset((self.current,)) - {""}


class UnknownDeployment(SojournError):
    """No such deployment was ever registered."""

    def __init__(self, label: str, known: tuple[str, ...]) -> None:
        """`known`: labels that are registered."""
        super().__init__(label, known)
        self.label = label
        self.known = known

    def __str__(self) -> str:
        """Which there are."""
        return (
            f"no deployment {self.label!r} is registered (there are: {', '.join(self.known) or 'none'}); "
            "a deployment registers when its first node starts"
        )


async def read_policy(keys: ClusterKeys) -> tuple[Policy, int]:
    """What `versions` says, from the leader, and its revision (0: it was never written). Raises `BrokerError`."""
    entry = await keys.get(_KEY)
    if entry is None:
        return Policy(), 0
    try:
        return msgspec.json.decode(entry.value, type=Policy), entry.revision
    except UNDECODABLE:
        return Policy(), entry.revision  # a foreign hand at the bucket must not stop the node


async def change_policy(keys: ClusterKeys, change: Callable[[Policy], Policy]) -> Policy:
    """Apply `change` by compare-and-swap, to the newest value if another was faster; what is stored then.

    Every label it names must be registered. Raises `UnknownDeployment`, `BrokerError`.
    """
    while True:
        found, revision = await read_policy(keys)
        wanted = change(found)
        if wanted == found:
            return found
        for label in sorted(wanted.labels() | ({wanted.current} - {""})):
            if await deployments.read(keys, label) is None:
                raise UnknownDeployment(label, tuple(sorted(await deployments.read_all(keys))))
        try:
            await keys.put(_KEY, value=msgspec.json.encode(wanted), expect=revision)
        except WrongLastSequence:
            continue
        return wanted


async def first_is_current(keys: ClusterKeys, label: str, *, by: str, at: float) -> Policy:
    """Make a deployment that just registered the current one, when there is none. Raises `BrokerError`."""

    def claim(policy: Policy) -> Policy:
        return policy if policy.current else Policy(current=label, by=by, at=at)

    return await change_policy(keys, claim)


class Versions:
    """See the module. One per process, over all its lives; engine loop only."""

    def __init__(self, keys: ClusterKeys, own: Deployment) -> None:
        """`own`: what this process runs."""
        self._keys = keys
        self.own = own
        self.policy = Policy()
        self._known: dict[str, Deployment] = {own.label: own}
        self._nodes: Counter[str] = Counter({own.label: 1})
        self._homes: dict[int, str] = {}

    def __repr__(self) -> str:
        """Own label, current one, nodes by label."""
        return f"<Versions own={self.own.label} current={self.policy.current} nodes={dict(self._nodes)}>"

    async def observe(self, view: View) -> bool:
        """Take a poll's view of the cluster; whether a deployment came, lost its last node, or the policy changed.

        Raises `BrokerError`; the picture is then as it was.
        """
        nodes = Counter(m.deployment for m in view.members.values() if m.state in _SERVES and m.deployment)
        policy, _ = await read_policy(self._keys)
        for label in {*nodes, *policy.labels()} - set(self._known):
            found = await deployments.read(self._keys, label)
            if found is not None:
                self._known[label] = found
        nodes[self.own.label] = max(
            1, nodes[self.own.label]
        )  # this process, whatever the poll has seen of it
        changed = set(nodes) != set(self._nodes) or policy != self.policy
        self._nodes, self.policy = nodes, policy
        self._homes = {
            p: holder.deployment
            for p in range(view.partitions)
            if (holder := view.holder(p)) is not None and holder.deployment
        }
        here = {self.own.label, *nodes, *policy.labels(), *self._homes.values()}
        gone = [label for label in self._known if label not in here]
        for label in gone[:-KEPT]:
            del self._known[label]
        return changed

    def has_nodes(self, label: str) -> bool:
        """Whether living nodes run the deployment and take work."""
        return self._nodes[label] > 0

    def receives(self, label: str) -> bool:
        """Whether new actors begin on the deployment now: by the policy it may be, it is known, and has living nodes."""
        meant = self.policy.ramp.get(label, 0) > 0 if self.policy.ramp else label == self.policy.current
        return meant and label in self._known and self.has_nodes(label)

    def living(self) -> Mapping[str, Deployment]:
        """By label, the deployments that have living nodes and are known; the most recently current first."""
        order = sorted(
            (label for label in self._known if self.has_nodes(label)),
            key=lambda label: (label != self.policy.current, label not in self.policy.ramp, label),
        )
        return {label: self._known[label] for label in order}

    def known(self, label: str) -> Deployment | None:
        """The deployment of that label, if this node has read it."""
        return self._known.get(label)

    def home(self, p: int) -> Deployment | None:
        """What the owner of the partition runs, when it has one and that is known."""
        return self._known.get(self._homes.get(p, ""))

    def for_start(self, workflow: str, about: str) -> str:
        """Where a new actor begins: by the ramp's weights or on the current deployment, if it has living nodes and the
        workflow.

        Without any of those (a version scaled to zero, a workflow that it does not have) it is this node's own
        deployment if that has the workflow, else any living one that has. `about` names the start; the same name gets
        the same answer.
        """
        having = [label for label, one in self.living().items() if workflow in one.workflows]
        weights = {
            label: weight for label, weight in self.policy.ramp.items() if weight > 0 and label in having
        }
        if not weights and self.policy.current in having:
            weights = {self.policy.current: 1}
        if weights:
            return _weighted(weights, about)
        return self.own.label if self.own.label in having or not having else having[0]


def _weighted(weights: Mapping[str, int], about: str) -> str:
    """One of the labels, by weight, the same for the same name."""
    digest = blake2b(about.encode(), digest_size=8).digest()
    point = int.from_bytes(digest, "big") % sum(weights.values())
    for label in sorted(weights):
        point -= weights[label]
        if point < 0:
            return label
    raise AssertionError("unreachable: the point lies below the sum")

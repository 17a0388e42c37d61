"""Who should serve which partition: the records, and the decision, without I/O (PROTOCOL 3).

Two kinds of keys in the cluster bucket tell who serves what. `node.<id>` is a lease: it lives 30 s unless
renewed, and names one life of one process (`lease`, drawn anew at each joining). `owner.<p>` names the holder
of a partition by node *and* lease, with an epoch that only grows, and is changed by compare-and-swap alone:

    (none) --attach--> held e --release--> releasing e --settled--> free e --attach--> held e+1
                        |  ^
                        |  +-- attach by anyone once the holder's lease has ended, e+1
                        +----- re-attach by the holder after a doubt, e+1

Placement only proposes. Every node computes the same proposal from what it polled and acts on its own part of
it; two nodes that saw different moments are told apart by the compare-and-swap, and served wrongly placed for
a while is served all the same.

The proposal is sticky: a holder keeps what it holds up to its quota (its capacity's share, rounded so that all add up), so a node
that joins takes only its share and a node that leaves moves only its own. What is left over goes to the first
node in rendezvous order (highest random weight, here with the exponential form that honours capacities) that
has room. Should that node not come to take it, the next in order does, `FALLBACK_SECONDS` later per rank.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Literal

import msgspec

MOVE_SECONDS = 5.0
"""At most one move per partition in this time (PROTOCOL 3)."""
FALLBACK_SECONDS = 5.0
"""How much longer each further node of the rendezvous order waits for a partition nobody serves."""
MAX_CAPACITY = 1_000_000


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of `node.<id>`: one life of one node."""

    node: str
    lease: str
    state: Literal["joining", "ready", "draining"]
    deployment: str = ""
    capacity: Annotated[float, msgspec.Meta(gt=0, le=MAX_CAPACITY)] = 1.0
    """Weight among the nodes. The bound is checked where a lease is read: every node plans with everyone's."""
    started: float = 0.0
    """Unix seconds, the node's own clock; for display."""
    host: str = ""
    pid: int = 0
    health: str = ""
    """Address of `/livez`, `/readyz`, `/metrics`; empty when it serves none."""
    hot: int = 0
    """Actors with live coroutines in memory, at the last renewal; for display, as the next two."""
    steps: int = 0
    """Local steps running."""
    load: float = 0.0
    """Cores that the process kept busy."""
    renewal: int = 0
    """Counts the renewals of this lease, so that one of unknown outcome can be recognised."""

    @property
    def runner(self) -> str:
        """ "<node>/<lease>"."""
        return f"{self.node}/{self.lease}"


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of `owner.<p>`."""

    node: str
    lease: str
    epoch: int
    state: Literal["held", "releasing", "free"]
    since: float = 0.0
    """Broker time of the last move (not of a re-attach)."""

    @property
    def runner(self) -> str:
        """ "<node>/<lease>" of the holder (of the last one when it is free)."""
        return f"{self.node}/{self.lease}"


@dataclass(frozen=True, slots=True)
class Owned:
    """`owner.<p>` as it was read: the value and the revision to swap."""

    owner: Owner
    revision: int


@dataclass(frozen=True)
class View:
    """The cluster as polled at one moment."""

    partitions: int
    members: Mapping[str, Member]
    """By node id: leases that live."""
    owners: Mapping[int, Owned]
    """By partition; a partition that was never served is absent."""
    only: frozenset[int] | None = None
    """Which of the partitions are placed; None: all of them. (Of a deployment's lanes, those that were ever needed.)"""

    def placed(self) -> Collection[int]:
        """The partitions to be placed, in order."""
        return range(self.partitions) if self.only is None else sorted(self.only)

    def holder(self, p: int) -> Member | None:
        """The living member that holds (or is releasing) the partition; None when anyone may attach."""
        owned = self.owners.get(p)
        if owned is None or owned.owner.state == "free":
            return None
        member = self.members.get(owned.owner.node)
        return member if member is not None and member.lease == owned.owner.lease else None


@dataclass(frozen=True, slots=True)
class Plan:
    """What this node should do now."""

    attach: tuple[int, ...] = ()
    release: tuple[int, ...] = ()
    fallback: frozenset[int] = frozenset()
    """Those of `attach` that are placed elsewhere and were not taken."""


@dataclass(frozen=True)
class Mine:
    """What this node itself knows, for `plan`."""

    runner: str
    serving: Collection[int] = ()
    """Partitions it serves."""
    busy: Collection[int] = ()
    """Partitions it is attaching, releasing, or must leave alone (storage went back): no decision about
    them.
    """
    kept: Collection[int] = ()
    """Partitions it took as a fallback a short while ago: not given back yet, else they would swing to and
    fro.
    """
    unserved: Mapping[int, float] = field(default_factory=dict)
    """Seconds for which it has seen nobody hold the partition."""


def rendezvous(p: int, capacities: Mapping[str, float]) -> list[str]:
    """All nodes in the order in which they should serve the partition (highest random weight first)."""
    return sorted(capacities, key=lambda node: (-_score(p, node, capacities[node]), node))


def _score(p: int, node: str, capacity: float) -> float:
    digest = blake2b(f"{p}/{node}".encode(), digest_size=8).digest()
    unit = (int.from_bytes(digest, "big") + 0.5) / 2.0**64
    return -capacity / math.log(unit)


def placement(view: View) -> dict[int, str]:
    """Which ready node should serve each partition. Empty when no node is ready.

    Ready members keep what they hold up to their quota, best ranked first; the rest goes in rendezvous order
    to whoever has room. The quotas add up to all partitions, so nothing is left over.
    """
    capacities = {name: m.capacity for name, m in view.members.items() if m.state == "ready"}
    if not capacities:
        return {}
    total = sum(capacities.values())
    partitions = view.placed()
    order = {p: rendezvous(p, capacities) for p in partitions}
    placed: dict[int, str] = {}
    held: dict[str, list[int]] = {}
    for p in partitions:
        holder = view.holder(p)
        if holder is not None and holder.node in capacities:
            held.setdefault(holder.node, []).append(p)
    shares = {name: len(partitions) * c / total for name, c in capacities.items()}
    room = _quotas(len(partitions), shares, {name: len(mine) for name, mine in held.items()})
    for name, mine in held.items():
        keep = sorted(mine, key=lambda p: (order[p].index(name), p))[: room[name]]
        placed.update((p, name) for p in keep)
        room[name] -= len(keep)
    for p in partitions:
        if p not in placed:
            name = next(n for n in order[p] if room[n] > 0)
            placed[p] = name
            room[name] -= 1
    return placed


def _quotas(partitions: int, shares: Mapping[str, float], held: Mapping[str, int]) -> dict[str, int]:
    """How many each may have: its share, rounded down, and one more for as many as it takes to place all; first for those who have
    one more already, so that nothing moves for it.
    """
    quotas = {name: math.floor(share) for name, share in shares.items()}
    left = partitions - sum(quotas.values())
    order = sorted(
        shares, key=lambda name: (held.get(name, 0) <= quotas[name], quotas[name] - shares[name], name)
    )
    for name in order[:left]:
        quotas[name] += 1
    return quotas


def plan(view: View, mine: Mine, now: float, *, move_seconds: float = MOVE_SECONDS) -> Plan:
    """What this node should attach and release at broker time `now`.

    A node that is not a living member of the view, or not ready, attaches nothing; one that drains releases
    everything.
    """
    node = mine.runner.partition("/")[0]
    me = view.members.get(node)
    if me is None or me.runner != mine.runner:
        return Plan()
    free_hands = [p for p in view.placed() if p not in mine.busy]
    if me.state == "draining":
        return Plan(release=tuple(p for p in free_hands if p in mine.serving))
    if me.state != "ready":
        return Plan()
    placed = placement(view)
    attach, fallback = _attachable(view, mine, node, placed, free_hands)
    release = (
        p
        for p in free_hands
        if p in mine.serving
        and placed[p] != node
        and p not in mine.kept
        and _may_move(view, p, now, move_seconds)
    )
    return Plan(attach, tuple(release), frozenset(fallback))


def _attachable(
    view: View, mine: Mine, node: str, placed: Mapping[int, str], candidates: Iterable[int]
) -> tuple[tuple[int, ...], list[int]]:
    capacities = {name: m.capacity for name, m in view.members.items() if m.state == "ready"}
    attach, fallback = [], []
    for p in candidates:
        holder = view.holder(p)
        if p in mine.serving or (holder is not None and holder.runner != mine.runner):
            continue
        # A partition that this node holds and does not serve: its attach or release broke off half-way.
        if placed[p] == node or holder is not None:
            attach.append(p)
        elif mine.unserved.get(p, 0.0) >= FALLBACK_SECONDS * (1 + rendezvous(p, capacities).index(node)):
            attach.append(p)
            fallback.append(p)
    return tuple(attach), fallback


def _may_move(view: View, p: int, now: float, move_seconds: float) -> bool:
    owned = view.owners.get(p)
    return owned is not None and now - owned.owner.since >= move_seconds


def neighbours(node: str, members: Collection[str]) -> tuple[str, ...]:
    """The next and the previous living node of the ring by id: those whose lease this node may end early."""
    ring = sorted({*members, node})
    at = ring.index(node)
    beside = (ring[(at + 1) % len(ring)], ring[at - 1])
    return tuple(dict.fromkeys(name for name in beside if name != node))

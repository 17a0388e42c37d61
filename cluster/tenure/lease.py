"""This node's lease, and the early ending of a dead peer's (PROTOCOL 3).

The lease is the key `node.<id>` with a time to live of 30 s. While it lives, this node is the holder of what
`owner.<p>` says; when it has ended, anyone may attach. It is not the fence: commits are (compare-and-swap,
the epoch in the record), the fence in HELD and the epoch in a consumer's name. So the lease may be judged by
clocks, as long as its holder errs early and everyone else errs late:

- the holder counts from the moment *before* it sent the renewal, the broker from the moment it stored it; - a
renewal of unknown outcome counts only when a leader read shows it; - others end it only by the broker's
clock, or by proof: both of the peer's connections (guard and engine) are gone according to the broker, twice,
a second apart, seen by a prober whose own subject answers. A cut cable does not look like that, and neither
does a frozen process: its sockets stay open, "nobody listens" is not said.

All of this runs on the guard thread's loop, with its own connection, so that a stuck engine loop neither
loses the lease at once nor keeps it for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from sojourn.broker.errors import BrokerError, NoResponders, OutcomeUnknown, WrongLastSequence
from sojourn.broker.seam import Broker
from sojourn.broker.subjects import Subjects, Token
from sojourn.codecs.errors import SojournError

from .directory import Directory
from .ownership import MOVE_SECONDS, Member, neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """The times of PROTOCOL 3, in seconds. Only tests have reason to change them, and then all nodes
    alike.
    """

    ttl: int = 30
    """Time to live of a lease that is not renewed."""
    renew: float = 3.0
    """Between two renewals."""
    answer: float = 10.0
    """A lease is renewed only while the engine's connection had an answer within this time ..."""
    tick: float = 30.0
    """... and the engine's loop ran within this time."""
    probe: float = 0.5
    """Between two probes of the ring neighbours."""
    silent: float = 1.0
    """How far apart two silent probes must be before a lease is ended early."""
    connected: float = 5.0
    """How long the prober must have been connected: after a broker's restart everyone else is silent for a
    while."""
    move: float = MOVE_SECONDS
    """Between two planned moves of one partition."""


class LeaseLost(SojournError):
    """The lease has ended, by time or by a peer: whatever this node holds in memory is stale."""

    def __init__(self, node: str, lease: str, reason: str) -> None:
        """`reason`: what was read instead."""
        super().__init__(node, lease, reason)
        self.node = node
        self.lease = lease
        self.reason = reason

    def __str__(self) -> str:
        """One sentence for the log."""
        return f"lease {self.lease} of node {self.node} has ended: {self.reason}"


class NodeIdInUse(SojournError):
    """Another living process has this node id."""

    def __init__(self, node: str, host: str, pid: int) -> None:
        """`host` and `pid` of the other process, as its lease tells them."""
        super().__init__(node, host, pid)
        self.node = node
        self.host = host
        self.pid = pid

    def __str__(self) -> str:
        """What is wrong, and what to do."""
        return (
            f"node id {self.node!r} is in use by a living process (pid {self.pid} on {self.host}); "
            "give each process its own --node-id, or none to have one drawn"
        )


@dataclass
class Vitals:
    """What the engine's loop tells the guard. Plain attributes: one thread writes, the other reads whole
    values.
    """

    tick: float = field(default=float("-inf"))
    """When the engine's loop last ran, seconds of the guard's clock."""
    answered: float = field(default=float("-inf"))
    """When the engine's connection last had an answer from the broker."""
    members: Mapping[str, Member] = field(default_factory=dict)
    """The members last polled, for the ring."""
    hot: int = 0
    steps: int = 0
    load: float = 0.0
    """What `Member` shows of these."""

    def why_not_renew(self, now: float, terms: LeaseTerms) -> str:
        """Why the lease must not be renewed now; empty when it may be."""
        if now - self.answered > terms.answer:
            return f"the engine's connection had no answer for {now - self.answered:.0f} s"
        if now - self.tick > terms.tick:
            return f"the engine's loop has not run for {now - self.tick:.0f} s"
        return ""


class Lease:
    """One life of one node id. `acquire` once, then `renew`; used on the guard's loop only."""

    def __init__(self, directory: Directory, member: Member, *, now: Callable[[], float], ttl: int) -> None:
        """`now`: the clock of the gate, in seconds; `ttl` in seconds."""
        self._directory = directory
        self._now = now
        self._ttl = ttl
        self._revision = 0
        self.member = member

    def __repr__(self) -> str:
        """Node, lease, state."""
        return f"<Lease {self.member.runner} {self.member.state} revision={self._revision}>"

    async def acquire(self, former: int) -> float:
        """Write the lease over revision `former` of its key; the time until which it is surely valid.

        Raises `LeaseLost` when another process was faster.
        """
        self._revision = former
        return await self.renew()

    async def renew(
        self, state: Literal["joining", "ready", "draining"] | None = None, vitals: Vitals | None = None
    ) -> float:
        """Renew (and change the state, and show how the node is); the time until which the lease is surely valid.

        Raises `LeaseLost`, `OutcomeUnknown` (then renew again).
        """
        member = msgspec.structs.replace(
            self.member, state=state or self.member.state, renewal=self.member.renewal + 1
        )
        if vitals is not None:
            member = msgspec.structs.replace(
                member, hot=vitals.hot, steps=vitals.steps, load=round(vitals.load, 2)
            )
        self.member = member
        sent = self._now()
        try:
            self._revision = await self._directory.put_member(member, expect=self._revision, ttl=self._ttl)
        except (OutcomeUnknown, WrongLastSequence):
            # A write that arrived after its sender gave up looks like another's: the value tells them apart.
            await self._look(member)
        return sent + self._ttl

    async def _look(self, tried: Member) -> None:
        found = await self._directory.member(tried.node)
        if found.value is None:
            if self._revision == found.revision:
                raise OutcomeUnknown("renewing the lease", tried.node, "the broker has not stored it yet")
            raise LeaseLost(tried.node, tried.lease, "the key holds no lease any more")
        if found.value.lease != tried.lease:
            raise LeaseLost(tried.node, tried.lease, f"the key holds lease {found.value.lease}")
        self._revision = found.revision
        if found.value.renewal != tried.renewal:
            raise OutcomeUnknown("renewing the lease", tried.node, "an older renewal is stored")

    async def end(self) -> None:
        """End the lease when leaving. Best effort: a lease that is not ended expires."""
        try:
            await self._directory.end_member(self.member.node, expect=self._revision)
        except WrongLastSequence:
            # A renewal of unknown outcome may have arrived late; if the lease is another's by now, it stays.
            found = await self._directory.member(self.member.node)
            if found.value is not None and found.value.lease == self.member.lease:
                await self._directory.end_member(self.member.node, expect=found.revision)


class Ring:
    """Probes this node's two ring neighbours and ends the lease of one that is dead for certain."""

    def __init__(
        self,
        broker: Broker,
        directory: Directory,
        subjects: Subjects,
        node: str,
        terms: LeaseTerms,
        *,
        now: Callable[[], float],
    ) -> None:
        """`broker`: the guard's connection. `now` in seconds."""
        self._broker = broker
        self._directory = directory
        self._subjects = subjects
        self._node = node
        self._terms = terms
        self._now = now
        self._silent_since: dict[str, float] = {}

    def __repr__(self) -> str:
        """The node, and who is under suspicion."""
        return f"<Ring of {self._node} silent={sorted(self._silent_since)}>"

    async def look(self, members: Mapping[str, Member], connected_since: float) -> list[Member]:
        """One round over the neighbours; the members whose lease was ended by it."""
        if self._now() - connected_since < self._terms.connected:
            self._silent_since.clear()
            return []
        peers = [members[name] for name in neighbours(self._node, members)]
        self._silent_since = {
            peer.runner: self._silent_since[peer.runner]
            for peer in peers
            if peer.runner in self._silent_since
        }
        ended = await asyncio.gather(*(self._judge(peer) for peer in peers))
        return [peer for peer, over in zip(peers, ended, strict=True) if over]

    async def _judge(self, peer: Member) -> bool:
        """Probe one peer; whether its lease was ended."""
        try:
            found = await self._directory.member(peer.node)
            if not await is_silent(self._broker, self._subjects, peer.node):
                self._silent_since.pop(peer.runner, None)
                return False
            if found.value is None or found.value.lease != peer.lease:
                return False  # already over
            first = self._silent_since.setdefault(peer.runner, self._now())
            if self._now() - first < self._terms.silent:
                return False
            if not await _answers(self._broker, self._subjects, self._node, "guard"):
                return False  # the prober itself is not heard: its word is worth nothing
            # The revision was read before the probe: had the peer renewed since, this is refused.
            await self._directory.end_member(peer.node, expect=found.revision)
        except BrokerError:
            return False  # in doubt it lives; the next round looks again, and its time to live runs
        return True


async def is_silent(broker: Broker, subjects: Subjects, node: str) -> bool:
    """Whether the broker says that nobody listens on either of the node's subjects: proof that its process is
    gone (or cut off twice). No answer in time is no proof.
    """
    return not (
        await _answers(broker, subjects, node, "guard") or await _answers(broker, subjects, node, "engine")
    )


async def _answers(
    broker: Broker, subjects: Subjects, node: str, connection: Literal["guard", "engine"]
) -> bool:
    try:
        await broker.request(subjects.probe(Token(node), Token(connection)), timeout=1.0)
    except NoResponders:
        return False
    except OutcomeUnknown:
        return True
    return True

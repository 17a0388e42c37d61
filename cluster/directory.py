"""The cluster bucket's keys of membership, typed: `node.<id>`, `owner.<p>` (PROTOCOL 1).

Decisions read from the stream's leader; `poll` reads everything at once from any replica and only proposes.

A key that expired or was deleted leaves a marker, a message without a value but with a sequence, and the next
write must expect that sequence. So every read here tells the revision to swap even when there is no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from sojourn.broker.seam import Broker, Publish, Stored
from sojourn.broker.subjects import Subjects, Token, token

from .ownership import Member, Owned, Owner, View

_OPERATION = "KV-Operation"
_MARKER_REASON = "Nats-Marker-Reason"
_MARKER_TTL = 60
"""Seconds a deletion's marker stays: long enough for every poll, and dead node ids leave nothing behind."""

Value = TypeVar("Value", Member, Owner)


@dataclass(frozen=True, slots=True)
class Entry(Generic[Value]):
    """What a key holds: no value when it never had one, expired or was deleted; `revision` is what to
    swap.
    """

    value: Value | None
    revision: int


class Directory:
    """Reads and writes `node.<id>` and `owner.<p>` through one connection."""

    def __init__(self, broker: Broker, subjects: Subjects) -> None:
        """`broker` is the guard's connection for leases, the engine's for owners."""
        self._broker = broker
        self._subjects = subjects
        self._stream = subjects.cluster_stream
        self._nodes = subjects.cluster(Token("node")) + "."
        self._owners = subjects.cluster(Token("owner")) + "."

    async def member(self, node: str) -> Entry[Member]:
        """The lease of a node, read from the leader. Raises `OutcomeUnknown`."""
        return await self._read(self._node_subject(node), Member)

    async def owner(self, p: int) -> Entry[Owner]:
        """Who owns the partition, read from the leader. Raises `OutcomeUnknown`."""
        return await self._read(f"{self._owners}{p}", Owner)

    async def put_member(self, member: Member, *, expect: int, ttl: int) -> int:
        """Write or renew a lease for `ttl` seconds; the new revision. Raises as `Broker.publish`."""
        subject = self._node_subject(member.node)
        return await self._put(Publish(subject, msgspec.json.encode(member), expect_last=expect, ttl=ttl))

    async def put_owner(self, p: int, owner: Owner, *, expect: int) -> int:
        """Change who owns the partition; the new revision. Raises as `Broker.publish`."""
        return await self._put(Publish(f"{self._owners}{p}", msgspec.json.encode(owner), expect_last=expect))

    async def end_member(self, node: str, *, expect: int) -> None:
        """End a lease: its own node leaving, or a peer found dead. Raises as `Broker.publish`."""
        marker = {_OPERATION: "DEL"}
        await self._put(
            Publish(self._node_subject(node), headers=marker, expect_last=expect, ttl=_MARKER_TTL)
        )

    async def poll(self, partitions: int) -> View:
        """The cluster as any replica has it at this moment. May lag: it proposes, it does not decide."""
        members: dict[str, Member] = {}
        owners: dict[int, Owned] = {}
        for stored in await self._latest(self._nodes):
            member = _decoded(stored, Member)
            if member is not None:
                members[member.node] = member
        for stored in await self._latest(self._owners):
            owner = _decoded(stored, Owner)
            p = stored.subject[len(self._owners) :]
            if owner is not None and p.isdigit() and int(p) < partitions:
                owners[int(p)] = Owned(owner, stored.seq)
        return View(partitions, members, owners)

    async def _latest(self, prefix: str) -> list[Stored]:
        newest: dict[str, Stored] = {}
        async for stored in self._broker.scan(self._stream, f"{prefix}>"):
            newest[stored.subject] = stored
        return list(newest.values())

    async def _read(self, subject: str, kind: type[Value]) -> Entry[Value]:
        stored = await self._broker.read_last(self._stream, subject)
        if stored is None:
            return Entry(None, 0)
        return Entry(_decoded(stored, kind), stored.seq)

    async def _put(self, message: Publish) -> int:
        return (await self._broker.publish(message)).seq

    def _node_subject(self, node: str) -> str:
        return self._nodes + token(node, "a node id")


def _decoded(stored: Stored, kind: type[Value]) -> Value | None:
    """The value, or None for a marker and for what is not ours: a foreign hand must not stop the node."""
    if _is_marker(stored.headers):
        return None
    try:
        return msgspec.json.decode(stored.payload, type=kind)
    except msgspec.DecodeError:
        return None


def _is_marker(headers: Mapping[str, str]) -> bool:
    return headers.get(_OPERATION, "") in ("DEL", "PURGE") or _MARKER_REASON in headers

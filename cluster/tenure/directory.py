"""The cluster bucket's keys of membership, typed: `node.<id>`, `owner.<p>`, `lane.<label>.<p>` (PROTOCOL 1).

Decisions read from the stream's leader; `poll` reads everything at once from any replica and only proposes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.seam import Broker
from sojourn.broker.subjects import Subjects
from sojourn.codecs.data import UNDECODABLE

from .ownership import Member, Owned, Owner, View

Value = TypeVar("Value", Member, Owner)


@dataclass(frozen=True, slots=True)
class Entry(Generic[Value]):
    """What a key holds: no value if it never had one, expired or was deleted; `revision` is to be swapped."""

    value: Value | None
    revision: int


class Directory:
    """Reads and writes `node.<id>` and `owner.<p>` through one connection."""

    def __init__(self, broker: Broker, subjects: Subjects) -> None:
        """`broker` is the guard's connection for leases, the engine's for owners."""
        self._keys = ClusterKeys(broker, subjects)

    def __repr__(self) -> str:
        """The bucket."""
        return f"<Directory {self._keys!r}>"

    async def member(self, node: str) -> Entry[Member]:
        """The lease of a node, read from the leader. Raises `OutcomeUnknown`."""
        return await self._read(Member, "node", node)

    async def owner(self, p: int) -> Entry[Owner]:
        """Who owns the partition, read from the leader. Raises `OutcomeUnknown`."""
        return await self._read(Owner, "owner", p)

    async def put_member(self, member: Member, *, expect: int, ttl: int) -> int:
        """Write or renew a lease for `ttl` seconds; the new revision. Raises as `ClusterKeys.put`."""
        value = msgspec.json.encode(member)
        return await self._keys.put("node", member.node, value=value, expect=expect, ttl=ttl)

    async def put_owner(self, p: int, owner: Owner, *, expect: int) -> int:
        """Change who owns the partition; the new revision. Raises as `ClusterKeys.put`."""
        return await self._keys.put("owner", p, value=msgspec.json.encode(owner), expect=expect)

    async def end_member(self, node: str, *, expect: int) -> None:
        """End a lease: its own node leaving, or a peer found dead. Raises as `ClusterKeys.delete`."""
        await self._keys.delete("node", node, expect=expect)

    async def poll(self, partitions: int) -> View:
        """The cluster as any replica has it at this moment. May lag: it proposes, it does not decide."""
        members: dict[str, Member] = {}
        owners: dict[int, Owned] = {}
        for key, entry in (await self._keys.list("node")).items():
            member = _decoded(entry.value, Member)
            if member is not None and key == f"node.{member.node}":
                members[member.node] = member
        for key, entry in (await self._keys.list("owner")).items():
            owner = _decoded(entry.value, Owner)
            p = key.partition(".")[2]
            if owner is not None and p.isdigit() and int(p) < partitions:
                owners[int(p)] = Owned(owner, entry.revision)
        return View(partitions, members, owners)

    async def owners(self, *prefix: str | int) -> dict[int, Owned]:
        """Who owns each partition under a prefix of keys (`owner`, or `lane` and a label), from any replica."""
        found: dict[int, Owned] = {}
        for key, entry in (await self._keys.list(*prefix)).items():
            owner = _decoded(entry.value, Owner)
            p = key.rpartition(".")[2]
            if owner is not None and p.isdigit():
                found[int(p)] = Owned(owner, entry.revision)
        return found

    async def _read(self, kind: type[Value], *key: str | int) -> Entry[Value]:
        entry = await self._keys.get(*key)
        if entry is None:
            return Entry(None, 0)
        return Entry(_decoded(entry.value, kind), entry.revision)


class LaneDirectory(Directory):
    """The same for the lanes of one deployment: the owner of a partition is who runs its actors on that lane,
    `lane.<label>.<p>`.
    """

    def __init__(self, broker: Broker, subjects: Subjects, label: str) -> None:
        """`label`: the deployment's."""
        super().__init__(broker, subjects)
        self.label = label

    async def owner(self, p: int) -> Entry[Owner]:
        """Who owns the lane, read from the leader. Raises `OutcomeUnknown`."""
        return await self._read(Owner, "lane", self.label, p)

    async def put_owner(self, p: int, owner: Owner, *, expect: int) -> int:
        """Change who owns the lane; the new revision. Raises as `ClusterKeys.put`."""
        value = msgspec.json.encode(owner)
        return await self._keys.put("lane", self.label, p, value=value, expect=expect)

    async def lanes(self) -> dict[int, Owned]:
        """Every lane of the deployment that was ever owned, from any replica."""
        return await self.owners("lane", self.label)


def _decoded(data: bytes, kind: type[Value]) -> Value | None:
    """The value, or None for what is not ours: a foreign hand at the bucket must not stop the node."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNDECODABLE:
        return None

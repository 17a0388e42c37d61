"""The cluster bucket: who lives, who owns what, which deployments exist. Values are JSON bytes, typed by
their users.

Keys are tokens joined by dots: `node.<id>`, `owner.<p>`, `lane.<deployment>.<p>`, `mark.<p>`,
`deployment.<label>`, `topology`. Leases are keys with a TTL that are put again in time. The bucket makes
no markers when a TTL is over: then the key is simply free, and `expect=0` takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sojourn.broker.errors import WrongLastSequence
from sojourn.broker.seam import Broker, Publish, Stored
from sojourn.broker.subjects import Subjects, Token, token

OPERATION = "KV-Operation"
DELETED_TTL_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One key. `revision` is what the next write must expect; `time` is the broker's, Unix seconds."""

    key: str
    value: bytes
    revision: int
    time: float


class ClusterKeys:
    """Keys of one namespace over one connection. Each part of a key is a checked token or a number."""

    def __init__(self, broker: Broker, subjects: Subjects) -> None:
        self._broker = broker
        self._subjects = subjects
        self._stream = subjects.cluster_stream
        self._prefix = len(subjects.cluster())

    def __repr__(self) -> str:
        return f"<ClusterKeys {self._subjects.cluster_bucket}>"

    async def get(self, *key: str | int) -> Entry | None:
        """The key's value from the leader, or None when it is free or deleted."""
        stored = await self._broker.read_last(self._stream, self._subject(key))
        return self._entry(stored) if stored is not None else None

    async def put(
        self, *key: str | int, value: bytes, expect: int | None = None, ttl: int | None = None
    ) -> int:
        """Store the value; its new revision. `expect` is the revision it must have (0: free), None
        overwrites.

        `ttl` is in whole seconds. Raises `WrongLastSequence`, `OutcomeUnknown` (then `get` and compare).
        """
        subject = self._subject(key)
        message = Publish(subject, value, expect_last=expect, ttl=ttl)
        try:
            return (await self._broker.publish(message)).seq
        except WrongLastSequence:
            if expect != 0:
                raise
            marker = await self._broker.read_last(self._stream, subject)
            if marker is None or self._entry(marker) is not None:
                raise
            message = Publish(subject, value, expect_last=marker.seq, ttl=ttl)
            return (await self._broker.publish(message)).seq

    async def delete(self, *key: str | int, expect: int | None = None) -> None:
        """Free the key. Raises `WrongLastSequence`, `OutcomeUnknown`.

        Nodes may not purge, so this is a KV purge marker that goes by itself after a second.
        """
        marker = Publish(
            self._subject(key),
            b"",
            {OPERATION: "PURGE"},
            expect_last=expect,
            ttl=DELETED_TTL_SECONDS,
            rollup=True,
        )
        await self._broker.publish(marker)

    async def list(self, *prefix: str | int) -> Mapping[str, Entry]:
        """Keys under a prefix (all when empty) and their entries.

        From any replica: may lag; read again to decide.
        """
        found: dict[str, Entry] = {}
        pattern = self._subjects.cluster_filter(*_tokens(prefix))
        async for stored in self._broker.scan(self._stream, pattern):
            entry = self._entry(stored)
            if entry is not None:
                found[entry.key] = entry
            else:
                found.pop(stored.subject[self._prefix :], None)
        return found

    def _subject(self, key: tuple[str | int, ...]) -> str:
        return self._subjects.cluster(*_tokens(key))

    def _entry(self, stored: Stored) -> Entry | None:
        if OPERATION in stored.headers or "Nats-Marker-Reason" in stored.headers:
            return None
        return Entry(stored.subject[self._prefix :], stored.payload, stored.seq, stored.time)


def _tokens(key: tuple[str | int, ...]) -> list[Token]:
    return [token(str(part), "a part of a cluster key") for part in key]

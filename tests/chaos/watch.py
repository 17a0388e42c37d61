"""A witness at the broker: every commit of every record, every lease of every node, read from the streams while the run goes on.

Commits are pushed (`witness`); what was stored while the witness was away is read from the bucket's history, where a seal has not rolled it
up. Records are opened with the run's key and their frames are left alone.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from sojourn.broker.dead import DeadLetters
from sojourn.broker.errors import BrokerError
from sojourn.broker.seam import Broker, Stored
from sojourn.broker.subjects import Ctl, Fence, Frame, Mail, Send, Subjects, Token
from sojourn.cluster.tenure.ownership import Member
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Record
from sojourn.codecs.seal import open_record

from .evidence import Commit, Ended, LeaseLife
from .plan import LEASE_SECONDS
from .witness import Witness

HISTORY: Final = 16
"""Revisions that the bucket keeps of each record."""
LOOK_SECONDS: Final = 1.0
_AS_SENT: Final = re.compile(r"sj\.[^.]+\.(mail|send|ctl|done)\.([^.]+)\.([^.]+)")
"""The subject of a message before the server's transformation, as dead letters of held events have it."""


class Watch:
    """See the module."""

    def __init__(self, broker: Broker, subjects: Subjects, keyring: Keyring, urls: Sequence[str]) -> None:
        """`urls`: the servers, past all proxies."""
        self._broker = broker
        self._subjects = subjects
        self._keyring = keyring
        self.witness = Witness(urls, subjects.frames_stream, subjects.frames_filter, self._stored)
        self._nodes = subjects.cluster_filter(Token("node"))
        self._lease_witness = Witness(urls, subjects.cluster_stream, self._nodes, self._lease_stored)
        self._ended: set[tuple[str, str]] = set()
        """Leases (node, lease) that were ended by a message, which the witness saw."""
        self._alive: dict[str, LeaseLife] = {}
        self._renewed: dict[str, float] = {}
        """By node, when its living lease was last seen to be renewed."""
        self.commits: list[Commit] = []
        self.newest: dict[str, Ended] = {}
        self.leases: list[LeaseLife] = []
        self.unreadable: list[str] = []
        self.frame_bytes: list[int] = []

    async def run(self) -> None:
        """Watch until cancelled."""
        witnesses = [asyncio.create_task(one.run()) for one in (self.witness, self._lease_witness)]
        try:
            while True:
                with suppress(BrokerError):
                    await self._look_at_nodes()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for witness in witnesses:
                witness.cancel()
            await asyncio.gather(*witnesses, return_exceptions=True)

    @property
    def defects(self) -> list[str]:
        """Errors of the witnesses themselves."""
        return [*self.witness.defects, *self._lease_witness.defects]

    async def caught_up(self) -> bool:
        """Whether every record that is stored now was seen."""
        newest = 0
        async for stored in self._broker.scan(
            self._subjects.frames_stream, self._subjects.frames_filter, from_seq=self.witness.last + 1
        ):
            newest = stored.seq
        return newest <= self.witness.last

    def _stored(self, stored: Stored) -> None:
        parsed = self._subjects.parse(stored.subject)
        if isinstance(parsed, Frame) and stored.payload:
            self._note(parsed.actor, stored)

    def _note(self, actor: str, stored: Stored) -> None:
        try:
            record = open_record(
                stored.payload, self._keyring, namespace=self._subjects.namespace, actor=actor
            )
        except Exception as error:
            self.unreadable.append(f"{actor} revision {stored.seq}: {error}")
            return
        index, envelope = record.index, record.envelope
        self.commits.append(
            Commit(
                stored.seq, stored.time, actor, index.run, index.transition, envelope.epoch, envelope.commit,
                envelope.previous, index.node, str(index.status), index.sealed, index.hold, index.lane, envelope.lane_epoch,
            )
        )  # fmt: skip
        if record.frame:
            self.frame_bytes.append(len(record.frame))
        self.newest[actor] = Ended(
            index.workflow, index.run, str(index.status), index.sealed, index.hold, index.hold_reason,
            index.parent, _value(record), index.wait,
        )  # fmt: skip

    def _lease_stored(self, stored: Stored) -> None:
        """A lease was taken, renewed or ended. What ends one stays for a second only, so it is to be seen at once."""
        node = stored.subject.rpartition(".")[2]
        if stored.payload:
            with suppress(msgspec.DecodeError):
                self._note_lease(node, msgspec.json.decode(stored.payload, type=Member), stored.time)
        elif node in self._alive:
            self._ended.add((node, self._alive[node].lease))
            self._note_end(node, stored.time)

    async def _look_at_nodes(self) -> None:
        """All leases that there are now: one that expired is told by its absence only."""
        there: set[str] = set()
        looked = time.time()
        async for stored in self._broker.scan(self._subjects.cluster_stream, self._nodes):
            node = stored.subject.rpartition(".")[2]
            with suppress(msgspec.DecodeError):
                self._note_lease(node, msgspec.json.decode(stored.payload, type=Member), stored.time)
                there.add(node)
        for node in self._alive.keys() - there:
            self._note_end(node, looked)

    def _note_lease(self, node: str, member: Member, at: float) -> None:
        known = self._alive.get(node)
        if (node, member.lease) in self._ended:
            return  # a replica that lags behind shows it
        if known is not None and known.lease == member.lease:
            self._renewed[node] = at
            return
        if known is not None:
            self._note_end(node, at)
        before = [life for life in self.leases if (life.node, life.lease) == (node, member.lease)]
        self.leases = [
            life for life in self.leases if life not in before
        ]  # a replica that lagged behind had not shown it
        self._alive[node] = (
            before[0]._replace(ended=None) if before else LeaseLife(node, member.lease, member.pid, at, None)
        )
        self._renewed[node] = at

    def _note_end(self, node: str, at: float) -> None:
        """A lease was over at this time at the latest, and when its time to live had passed."""
        ended = min(at, self._renewed[node] + LEASE_SECONDS)
        self.leases.append(self._alive.pop(node)._replace(ended=ended))

    def all_leases(self) -> list[LeaseLife]:
        """Ended and living ones."""
        return [*self.leases, *(self._unless_expired(life) for life in self._alive.values())]

    def _unless_expired(self, life: LeaseLife) -> LeaseLife:
        """Of a node that did not come again, nothing tells the end of its lease but the time."""
        ended = self._renewed[life.node] + LEASE_SECONDS
        return life._replace(ended=ended) if ended < time.time() else life

    # at the end

    async def leftovers(self) -> dict[str, int]:
        """Messages in each stream that should be empty now, by stream and by what they are."""
        found: Counter[str] = Counter()
        subjects = self._subjects
        for stream, pattern in (
            (subjects.mail_stream, ">"),
            (subjects.ctl_stream, ">"),
            (subjects.wake_stream, ">"),
            (subjects.held_stream, ">"),
            (subjects.steps_stream, ">"),
        ):
            for subject, count in (await self._broker.subjects(stream, pattern)).items():
                if not isinstance(subjects.parse(subject), Fence):
                    found[f"{stream}: {_shape(subjects.parse(subject), subject)}"] += count
        return dict(found)

    async def dead_letters(self) -> list[tuple[str, str, str, bytes]]:
        """Actor, channel or verb, reason and payload of each."""
        letters = []
        async for letter in DeadLetters(self._broker, self._subjects).list():
            parsed = self._subjects.parse(letter.subject)
            match parsed:
                case Mail(_, actor, channel) | Send(_, actor, channel):
                    letters.append((str(actor), str(channel), letter.reason, letter.payload))
                case Ctl(_, actor, verb):
                    letters.append((str(actor), f"control {verb}", letter.reason, letter.payload))
                case _ if (plain := _AS_SENT.fullmatch(letter.subject)) is not None:
                    kind, actor_, name = plain.groups()
                    what = name if kind in ("mail", "send") else f"control {name}"
                    letters.append((actor_, what, letter.reason, letter.payload))
                case _:
                    letters.append(("", letter.subject, letter.reason, letter.payload))
        return letters


def _shape(parsed: Any, subject: str) -> str:
    return f"{type(parsed).__name__} of {parsed.actor}" if hasattr(parsed, "actor") else subject


def _value(record: Record) -> Any:
    outcome = record.envelope.outcome
    if outcome is None or outcome.kind != "value":
        return None
    return msgspec.json.decode(outcome.value)

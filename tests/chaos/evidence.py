"""What is known about a run, as values: promises made to clients, effects in the journal, commits and leases at the broker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

Answer = Literal["acked", "unknown", "refused", "not asked"]
"""What the client was told: done for certain, no answer (done or not, or later), certainly not done."""


class Execution(NamedTuple):
    """One attempt of one effect that began."""

    key: str
    """The operation: "<actor>/<run>/<n>"."""
    name: str
    attempt: int
    pid: int
    node: str
    began: float
    ended: float | None

    @property
    def actor(self) -> str:
        """Whose it is."""
        return self.key.partition("/")[0]


class Plain(NamedTuple):
    """Plain code of a workflow noted that it ran: a cleanup."""

    actor: str
    pid: int
    at: float


class Commit(NamedTuple):
    """One revision of one record, as the broker stored it."""

    revision: int
    at: float
    actor: str
    run: str
    transition: int
    epoch: int
    commit: str
    previous: str
    node: str
    status: str
    sealed: bool
    hold: str
    lane: str = ""
    """The lane that the record is on from this commit."""
    lane_epoch: int = 0
    """Of the lane's owner, when a lane node made this commit."""


class Ended(NamedTuple):
    """The newest record of an actor."""

    workflow: str
    run: str
    status: str
    sealed: bool
    hold: str
    reason: str
    parent: str
    value: Any
    """What it returned, for `completed`."""
    wait: str


class LeaseLife(NamedTuple):
    """One lease of one process: when it was first seen, and when it was over (None: at the end it still lived)."""

    node: str
    lease: str
    pid: int
    began: float
    ended: float | None


class Death(NamedTuple):
    """A process ended."""

    pid: int
    node: str
    began: float
    at: float


@dataclass
class Sent:
    """One mail from outside, numbered per line (a sender on a channel)."""

    actor: str
    channel: str
    line: str
    n: int
    answer: Answer


@dataclass
class Promise:
    """A workflow of the run, what was asked of it, and what the client was told."""

    actor: str
    kind: str
    workflow: str
    args: tuple[Any, ...]
    children: tuple[str, ...] = ()
    """Ids of the actors it starts."""
    started: Answer = "unknown"
    run: str = ""
    mails: list[Sent] = field(default_factory=list)
    verb: str = ""
    """"cancel" or "terminate" when it was asked to end."""
    verb_at: float = 0.0
    """When that was first asked, Unix seconds."""
    verb_answer: Answer = "not asked"
    told: tuple[str, Any] | None = None
    """What `handle.result` said, when it was asked: a status and the value."""


@dataclass(frozen=True)
class Evidence:
    """Everything the judge looks at."""

    promises: Sequence[Promise]
    executions: Sequence[Execution]
    plains: Sequence[Plain]
    commits: Sequence[Commit]
    """In order of revision, all actors together."""
    records: Mapping[str, Ended]
    leases: Sequence[LeaseLife]
    deaths: Sequence[Death]
    partition_of: Mapping[str, int]
    left: Mapping[str, int] = field(default_factory=dict)
    """Messages that remain in each stream at the end, the fences apart, with an example as the key's second part."""
    unseen: Sequence[int] = ()
    """Revisions that were stored and rolled up before the witness could see them, in order."""
    dead: Sequence[tuple[str, str, str, bytes]] = ()
    """Dead letters: actor, channel or verb, reason, payload."""
    full_disks: int = 0
    """How often a store was full. A timer that comes due meanwhile fires late, so a later one may overtake it."""
    workers: frozenset[str] = frozenset()
    """Processes that ran queued steps."""
    server_ends: Sequence[float] = ()
    """When a server was killed or restarted, Unix seconds."""
    released: Sequence[str] = ()
    """Actors that the run's operator released from a quarantine for nodes that the run ended."""
    check: Sequence[str] = ()
    """What `sojourn check` found."""
    logs: Sequence[str] = ()
    """Lines of the nodes' logs that must not be there, and processes that ended by themselves."""
    trouble: Sequence[str] = ()
    """What went wrong in the harness; a run with trouble proves nothing."""


def read_journal(path: Path) -> tuple[list[Execution], list[Plain]]:
    """The journal's lines, paired: executions in order of their beginning."""
    begun: dict[tuple[str, int, int, int], tuple[str, str, float]] = {}
    ended: dict[tuple[str, int, int, int], float] = {}
    times: dict[tuple[str, int, int], int] = {}
    plains: list[Plain] = []
    if not path.exists():
        return [], []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if entry["what"] == "plain-cleanup":
            plains.append(Plain(entry["key"], entry["pid"], entry["at"]))
            continue
        same = entry["key"], entry["attempt"], entry["pid"]
        if entry["what"] == "begin":
            times[same] = times.get(same, 0) + 1
            begun[(*same, times[same])] = entry["name"], entry["node"], entry["at"]
        else:
            ended[(*same, times.get(same, 1))] = entry["at"]
    executions = [
        Execution(key, name, attempt, pid, node, at, ended.get((key, attempt, pid, nth)))
        for (key, attempt, pid, nth), (name, node, at) in begun.items()
    ]
    return sorted(executions, key=lambda execution: execution.began), plains

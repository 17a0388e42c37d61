"""What is stored per actor: index, envelope, frame (PROTOCOL 2), as typed values.

The *index* holds public facts and is never secret; the *envelope* is the protocol's own state of the actor;
the *frame* is the pickled coroutine. Index and envelope can be read and rewritten by any owner, without the
pin and without unpickling. All values here are immutable: a change is a new value
(`msgspec.structs.replace`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec


class Status(StrEnum):
    """State of an actor (DESIGN 1). `paused` and `quarantined` lie over a suspended actor and are kept in the
    envelope as `hold`.
    """

    RUNNING = "running"
    SUSPENDED = "suspended"
    RUNNABLE = "runnable"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    REJECTED = "rejected"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"

    ended: bool
    """Whether no further transition can follow in this run. An attribute, since it is asked many times per commit."""


_ENDED = frozenset((Status.COMPLETED, Status.REJECTED, Status.FAILED, Status.CANCELLED, Status.TERMINATED))
for _status in Status:
    _status.ended = _status in _ENDED


class Origin(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Identity of an event: where it was first stored. Kept when the event is moved to HELD."""

    stream: Literal["mail", "ctl", "wake"]
    created: int
    """Creation time of the stream, Unix nanoseconds: a stream made anew starts its sequences again."""
    seq: int

    def is_up_to(self, end: Origin) -> bool:
        """Whether it was stored in the same stream, no later than `end`."""
        return self.stream == end.stream and self.created == end.created and self.seq <= end.seq


class SourceLine(msgspec.Struct, frozen=True, array_like=True):
    """One place in the user's code."""

    module: str
    function: str
    line: int


class Move(msgspec.Struct, frozen=True, array_like=True):
    """One resumption on a node, for the itinerary."""

    transition: int
    node: str
    at: float


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """One finished or running operation, without values."""

    op: int
    kind: str
    name: str
    attempts: int
    outcome: str
    started: float
    ended: float | None


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception as data. `type` is "module:qualname" and is for display; no class is looked up by it
    except verified builtins and `raises=[...]`.
    """

    type: str
    message: str
    traceback: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")
    """`args` of the exception, or the attributes of a `Rejected`, as JSON."""
    notes: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a step, child or workflow ended."""

    kind: Literal["value", "error", "rejected", "cancelled", "terminated", "timeout"]
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorInfo | None = None


class Wait(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one branch of the actor waits for."""

    branch: int
    op: int
    kind: Literal[
        "start",
        "sleep",
        "call",
        "receive",
        "spawn",
        "join",
        "send",
        "cancel-child",
        "checkpoint",
        "branches",
        "timeout",
    ]
    """`timeout` is the limit of an `async with timeout(...)` block; it stands beside the branch's wait."""
    name: str = ""
    """Step, child or target actor."""
    channels: tuple[str, ...] = ()
    timer: int | None = None
    """Number of the armed timer that ends this wait."""
    until: float | None = None
    """Broker time at which the timer fires."""
    stack: tuple[SourceLine, ...] = ()
    """Chain of awaits, outermost first."""


class PendingCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step that was committed and has no result yet."""

    op: int
    step: str
    args: msgspec.Raw
    """JSON array [args, kwargs]; or a JSON string of base64 pickle for steps with `values="pickle"`."""
    attempt: int = 1
    runner: str = ""
    """Node that runs it, with its lease id: "<node>/<lease>"."""
    first_started: float = 0.0
    timeout: float | None = None
    retry_timer: int | None = None
    retry_at: float | None = None
    last_error: ErrorInfo | None = None
    options: msgspec.Raw = msgspec.Raw(b"{}")
    queue: str = ""
    """Queue whose workers run it; empty: it runs on the actor's node, by `runner`."""
    token: str = ""
    """Of a queued step: 128 random bits that its results must repeat."""
    queue_timeout: float = 0.0
    """Of a queued step: seconds that an attempt may wait for a worker, beyond its `timeout`."""
    lost: int = 0
    """Of a queued step: workers that were gone before they had ended this attempt."""
    deadline_timer: int | None = None
    """Of a queued step: the armed timer that ends the attempt."""

    @property
    def runs_here(self) -> bool:
        """Whether its runner has it in hand: it is not queued, and waits for no durable timer."""
        return not self.queue and self.retry_timer is None


class QueuedCall(msgspec.Struct, frozen=True, array_like=True):
    """A queued step that has no result yet, as anybody may know it: what a worker asks before it runs a task."""

    op: int
    attempt: int
    queue: str
    step: str
    since: float
    """Broker time at which the workflow called it."""


class OutboxEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An effect on the broker that the commit holding it allows. `n` is the operation number, never reused in
    one run.
    """

    n: int
    kind: Literal[
        "arm",
        "disarm",
        "start",
        "cancel",
        "terminate",
        "send",
        "child-done",
        "seal",
        "spawned",
        "refused",
        "reply",
        "task",
    ]
    target: str
    """Actor id (for arm and disarm: the actor itself; for a task: the queue)."""
    channel: str = ""
    timer: int | None = None
    at: float | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")
    op: int | None = None
    """Of a task: the operation of its call, which has what is sent."""


class Child(msgspec.Struct, frozen=True, omit_defaults=True):
    """A child as its parent knows it."""

    id: str
    op: int
    workflow: str
    policy: Literal["cancel", "abandon", "terminate"] = "cancel"
    status: Literal["starting", "running", "cancelling", "ended"] = "starting"
    outcome: Outcome | None = None
    joined: bool = False
    """Its outcome was given to the code, which has the result from then on."""


class Parent(msgspec.Struct, frozen=True):
    """Who spawned this actor, and by which operation."""

    id: str
    run: str
    op: int


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """The actor's code is over; it ends when its children have, or when the grace is over."""

    status: Status
    outcome: Outcome
    grace_timer: int | None = None


class Cancelling(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cancel request under way."""

    by: str
    reason: str
    at: float
    grace_timer: int
    delivered: bool = False


class Hold(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an actor does not run although it could: paused, quarantined, or its pin is not satisfied by its
    owner.
    """

    kind: Literal["paused", "quarantined", "pin"]
    reason: str
    by: str
    at: float
    traceback: str = ""


class Attempts(msgspec.Struct, frozen=True):
    """Poison counting (I7): resumes since user code last got as far as a commit, and the node that tried."""

    count: int = 0
    by: str = ""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """Highest operation received from one (sender, run, channel)."""

    op: int
    at: float


class Index(msgspec.Struct, frozen=True, omit_defaults=True):
    """Public facts of an actor. No payloads, no secrets."""

    actor: str
    run: str
    workflow: str
    status: Status
    transition: int
    created: float
    updated: float
    deployment: str = ""
    stage: str = ""
    wait: str = ""
    """What it waits for, in words: `receive approval`, `sleep until 2026-...`, `step run_checks`."""
    stacks: tuple[tuple[SourceLine, ...], ...] = ()
    """Per branch, the chain of awaits, outermost first."""
    hold: str = ""
    """"paused", "quarantined" or "pin" when the actor is held, with `hold_reason`."""
    hold_reason: str = ""
    lane: str = ""
    """Deployment whose nodes run the actor, while its partition's owner lacks its code; empty: the owner does."""
    pin: tuple[str, ...] = ()
    pinned_to: str = ""
    """Deployment that alone may resume it (`@workflow(pin="deployment")`), whatever else has its code."""
    parent: str = ""
    children: int = 0
    tags: tuple[str, ...] = ()
    steps: int = 0
    resumes: int = 0
    frame_bytes: int = 0
    envelope_bytes: int = 0
    key_id: str = ""
    node: str = ""
    itinerary: tuple[Move, ...] = ()
    operations: tuple[Operation, ...] = ()
    sealed: bool = False
    queued: tuple[QueuedCall, ...] = ()


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """The protocol's own state of an actor."""

    commit: str
    previous: str
    epoch: int
    """Of the partition's owner at its last commit; a lane node's commit keeps it."""
    lane_epoch: int = 0
    """Of the lane's owner, when a lane node made the last commit; 0: the partition's owner did."""
    next_op: int = 1
    waits: tuple[Wait, ...] = ()
    calls: tuple[PendingCall, ...] = ()
    results: dict[int, Outcome] = {}
    """Outcomes that are recorded and not yet given to the branch that waits for the operation."""
    outbox: tuple[OutboxEntry, ...] = ()
    consumed: frozenset[Origin] = frozenset()
    seen: dict[str, Seen] = {}
    lease: Origin | None = None
    children: dict[str, Child] = {}
    parent: Parent | None = None
    request: str = ""
    """Request id of the start that made this run."""
    ends: tuple[Origin, ...] = ()
    """Of a run that began after another one: the last messages stored when it did. Mail up to there was sent to the other."""
    args: msgspec.Raw = msgspec.Raw(b"null")
    """Arguments, JSON [args, kwargs]; kept only until the code first runs."""
    state: msgspec.Raw = msgspec.Raw(b"null")
    """What the workflow published with `publish_state`."""
    outcome: Outcome | None = None
    ending: Ending | None = None
    cancelling: Cancelling | None = None
    hold: Hold | None = None
    attempts: Attempts = Attempts()
    now: float = 0.0
    """The latest broker time this actor has seen; its clock never goes backwards."""


class Record(msgspec.Struct, frozen=True):
    """The three sections, decoded. `frame` stays pickled bytes until an owner that satisfies the pin restores
    it.
    """

    index: Index
    envelope: Envelope
    frame: bytes = b""

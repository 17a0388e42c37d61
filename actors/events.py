"""What goes into the engine and what comes out of it, as immutable values.

The engine (`actors.engine`) decides; the node acts. An *event* is a stored message for one actor, parsed. A *local
event* is
something that the owner itself knows: a step it ran has ended, a commit or flush it did allows a branch to go on. A
*verdict* says what to do
with an event before any commit; a *turn* is the record after an event, with the effects that are allowed once it is
committed. They are made several times for each step: msgspec makes one in a fifth of the time that a frozen dataclass takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from sojourn.codecs.record import Origin, Outcome, PendingCall, Record

if TYPE_CHECKING:
    from .branches import Branches

EventKind = Literal[
    "mail",  # body: the user's JSON payload, from outside (MAIL) or from another actor (CTL `send`)
    "start",
    "cancel",
    "terminate",
    "pause",
    "resume",
    "release",
    "spawned",
    "refused",
    "undelivered",
    "done",
    "timer",
    "child-done",
    "seal",
    "nudge",
]


@dataclass(frozen=True, slots=True)
class Sender:
    """The actor and operation that sent an internal message (I3, I8)."""

    actor: str
    run: str
    op: int
    transition: int = 0


class Event(msgspec.Struct, frozen=True):
    """One stored message for an actor.

    `body` is the decoded JSON object of an internal message; for mail it is None and `payload` holds the bytes,
    undecoded. `time` is the
    broker's time stamp of the first storing. `sender` is set for messages between actors (told by subject, never by
    header).
    """

    kind: EventKind
    actor: str
    origin: Origin
    time: float
    channel: str = ""
    payload: bytes = b""
    body: Mapping[str, Any] = {}
    sender: Sender | None = None
    reply: str = ""
    """Inbox subject for a best-effort answer; already checked against the allowed prefix."""
    held: bool = False


class StepDone(msgspec.Struct, frozen=True):
    """A local step that this owner ran has ended (one attempt)."""

    op: int
    attempt: int
    outcome: Outcome
    seconds: float = 0.0
    retry_after: float | None = None
    """Set by `RetryLater`: wait this long, whatever the policy says."""
    retryable: bool = True
    record_first: bool = False
    """Store the result by itself before the code goes on (PROTOCOL 4.9)."""

    @property
    def may_be_tried_again(self) -> bool:
        """Whether the retry policy is asked at all: never for a value, a rejection or a cancellation."""
        return self.retryable and self.outcome.kind in ("error", "timeout")


class GoesOn(msgspec.Struct, frozen=True):
    """The commit (spawn, checkpoint) or flush (send) that operation `op` waited for is done; or a recorded result
    can be given to its branch."""

    op: int
    error: Outcome | None = None


LocalEvent = StepDone | GoesOn


class Verdict(Enum):
    """What to do with an event, decided on a record."""

    CONSUME = "consume"
    """A turn takes it now."""
    WAIT = "wait"
    """Nobody waits for it yet: it stays in memory, then moves to HELD."""
    CONSUMED = "consumed"
    """Its origin is in the consumed set: acknowledge when the record is clean."""
    NO_EFFECT = "no effect"
    """Another run's, seen before, or no longer meaningful: acknowledge and count (only after a leader read
    agrees)."""
    DEAD = "dead"
    """It can never be consumed: dead letter with the reason (only after a leader read agrees), then acknowledge."""


class Decision(msgspec.Struct, frozen=True):
    """A verdict with its reason (for DEAD and NO_EFFECT) and an answer to be sent along with it (with WAIT: once, now: the
    event is stored, and whoever asked cannot tell a wait from an actor that nobody owns)."""

    verdict: Verdict
    reason: str = ""
    reply: Reply | None = None
    needs_frame: bool = False
    """With CONSUME: user code will run, so the frame must be restored first (its pin must be satisfied)."""
    answers: tuple[Message, ...] = ()
    """Internal messages to publish before the event is acknowledged (idempotent; e.g. `seal` to a child whose parent
    is gone)."""


class Facts(msgspec.Struct, frozen=True):
    """What the owner knows at a turn."""

    epoch: int
    node: str
    """"<node id>/<lease id>": the runner named in pending calls."""
    deployment: str
    commit: str
    """Id of the commit this turn will make."""
    flushed: frozenset[int] = frozenset()
    """Numbers of outbox entries known flushed; all others are carried over."""
    gone: frozenset[Origin] = frozenset()
    """Consumed origins of which no copy is stored any more."""
    lane_epoch: int = 0
    """Set by a lane node: the epoch of its lane; `epoch` is then the one that the record has."""
    ends: tuple[Origin, ...] = ()
    """For a start of an id that had a run before: the last messages of the streams that carry mail."""


class RunStep(msgspec.Struct, frozen=True):
    """Run one attempt of a local step, after `delay` seconds (backoff up to 5 s stays in the process)."""

    call: PendingCall
    delay: float = 0.0


class CancelStep(msgspec.Struct, frozen=True):
    """Tell a running local step that nobody waits for it any more."""

    op: int


class Reply(msgspec.Struct, frozen=True):
    """A best-effort answer to an inbox (JSON object)."""

    inbox: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """An internal message to another actor, outside of an outbox (answers to events that change no record)."""

    kind: Literal["seal", "refused", "spawned", "cancel", "undelivered"]
    target: str
    body: Mapping[str, Any]


class Warn(msgspec.Struct, frozen=True):
    """Something in the user's code that goes on and should be known: for the log of the actor."""

    text: str


Effect = RunStep | CancelStep | Reply | Warn


class Turn(msgspec.Struct, frozen=True):
    """The outcome of a turn: the next record, the live branches that belong to it, and what may be done once it is
    committed.

    The outbox entries to flush are in `record.envelope.outbox`. `live` is None when the actor has ended, has not
    run, or was changed
    without its frame. `ran` says that user code ran (resets poison counting).
    """

    record: Record
    live: Branches | None
    effects: tuple[Effect, ...] = ()
    ran: bool = False

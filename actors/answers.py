"""Questions that clients ask and the owner of an actor answers, as plain messages on `sj.<ns>.q.<p>`.

Clients hold no key, so a result or a published state, which lie sealed in the record, come from the owner. An
answer is a view of the newest record that its owner knows; nobody's correctness rests on it, and one that is
lost is asked for again. Only the node that owns the partition subscribes to its subject: without one, the
question is told at once that nobody listens.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from sojourn.codecs.data import UNDECODABLE
from sojourn.codecs.record import Index, Origin, Outcome

What = Literal["result", "state", "describe", "consumed"]

NO_SUCH_ACTOR = "no such actor"
NOT_OWNED = "not owned"
"""The partition has moved; ask again."""
UNREADABLE = "unreadable"
"""The record cannot be opened here: another key, a broken seal."""


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client asks about one actor."""

    actor: str
    what: What
    origin: Origin | None = None
    """With "consumed": the mail in question."""


class Unread(msgspec.Struct, frozen=True):
    """Mail that waits on one channel, in memory or held."""

    channel: str
    messages: int
    oldest: float
    """Broker time of the oldest."""


class Running(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step that runs, or waits to be tried again."""

    step: str
    op: int
    attempt: int
    attempts: int
    """The most there will be."""
    runner: str = ""
    seconds: float | None = None
    """How long this attempt has been running; None when it is not."""
    next_retry: float | None = None
    """Broker time of the next attempt."""
    stuck: bool = False
    where: str = ""
    """The line of a stuck thread."""
    heartbeat: Any = None
    heartbeat_age: float | None = None
    last_error: str = ""
    queue: str = ""
    """Of a queued step: its queue, and what is said of that now."""
    since: float | None = None
    """Broker time at which the workflow called it."""
    at_work: int = 0
    """Tasks of the queue that workers have in hand."""
    free: int = 0
    """Places of workers that wait for a task."""
    waiting: int = 0
    """Tasks that wait for a place."""


class Details(msgspec.Struct, frozen=True, omit_defaults=True):
    """What only the owner knows of an actor, for `describe`."""

    hot: bool = False
    """Its coroutines are in the owner's memory."""
    running: tuple[Running, ...] = ()
    unread: tuple[Unread, ...] = ()
    missing: tuple[str, ...] = ()
    """Why the owner cannot resume it: one sentence for each function or class."""
    elsewhere: tuple[str, ...] = ()
    """Deployments that could."""
    variables: dict[str, int] = {}
    """Bytes by "function.variable", largest first; empty when it is parked."""
    outbox: int = 0
    """Effects committed and not yet known to be flushed."""
    children: tuple[str, ...] = ()
    """Children that have not ended (the first hundred)."""
    error: str = ""
    """What ended it, if that was an error, a rejection or a cancellation: class and message."""
    traceback: str = ""
    """Of the defect that holds it, or of the error that ended it."""
    asked_by: str = ""
    """Who paused it or asked it to end, as they gave their name."""
    sentence: str = ""
    """The owner's own words for why it is not running, when it knows better than the index."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the owner says. With `error` set nothing else is."""

    error: str = ""
    message: str = ""
    index: Index | None = None
    outcome: Outcome | None = None
    """With "result": how it ended; None: it has not."""
    traceback: str = ""
    """With "result", of an actor in quarantine: what holds it."""
    state: msgspec.Raw = msgspec.Raw(b"null")
    """With "state": what it published last."""
    consumed: bool = False
    """With "consumed": the newest record shows that it took this mail."""
    details: Details | None = None
    """With "describe"."""


_encode = msgspec.json.Encoder().encode
_question = msgspec.json.Decoder(Question).decode
_answer = msgspec.json.Decoder(Answer).decode


def encode(value: Question | Answer) -> bytes:
    """As it travels."""
    return _encode(value)


def parse_question(data: bytes) -> Question | None:
    """The question, or None when it is none."""
    try:
        return _question(data)
    except UNDECODABLE:
        return None


def parse_answer(data: bytes) -> Answer | None:
    """The answer, or None when it is none."""
    try:
        return _answer(data)
    except UNDECODABLE:
        return None

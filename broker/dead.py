"""Dead letters: what could not be consumed, once, with its reason (I9).

A dead letter is named after the event's origin, `sj.<ns>.dead.<stream>.<created>.<seq>`, and stored
expecting that subject to be empty: however often an event is dead-lettered, by however many owners, there
is one. The stream is bounded and refuses when full: then mail from outside is counted and dropped, and
everything else stays held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, unquote

from sojourn.broker.errors import MailboxFull, OutcomeUnknown, WrongLastSequence
from sojourn.broker.held import COPY_ROOM, carried_headers
from sojourn.broker.seam import Broker, Headers, Publish, Stored
from sojourn.broker.subjects import Dead, Subjects, token
from sojourn.codecs.record import Origin

REASON, DETAIL, SUBJECT, TIME = "Sj-Reason", "Sj-Detail", "Sj-Subject", "Sj-Time"
MAX_DETAIL = 1000


class DeadLettered(Enum):
    """What became of it. After `FULL` the event stays where it is: do not acknowledge it."""

    WRITTEN = "written"
    ALREADY = "already there"
    DROPPED = "dropped: dead letters are full and it is mail from outside"
    FULL = "dead letters are full"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. `subject`, `time`, `headers` are the original event's; `seq` is its place in DEAD."""

    seq: int
    origin: Origin
    reason: str
    detail: str
    subject: str
    time: float
    payload: bytes
    headers: Headers
    written: float


class DeadLetters:
    """Dead letters of one namespace over one connection."""

    def __init__(self, broker: Broker, subjects: Subjects) -> None:
        self._broker = broker
        self._subjects = subjects
        self.written: Counter[str] = Counter()
        """Written by this node, by reason."""
        self.dropped: Counter[str] = Counter()
        """Dropped by this node because DEAD was full, by reason."""

    def __repr__(self) -> str:
        return (
            f"<DeadLetters {self._subjects.dead_stream} "
            f"written={self.written.total()} dropped={self.dropped.total()}>"
        )

    async def write(
        self,
        origin: Origin,
        event: Stored,
        reason: str,
        detail: str = "",
        *,
        time: float | None = None,
    ) -> DeadLettered:
        """Store the event with why it was not consumed. Raises `OutcomeUnknown`: call again, it stays one.

        `reason` is one of a few words (it becomes a metric's label), `detail` free text. `time` is the
        origin's when the event comes from HELD. A payload that leaves no room for all this is left out.
        """
        payload = event.payload
        if len(payload) > self._broker.max_message - COPY_ROOM:
            payload, detail = (
                b"",
                f"{detail[: MAX_DETAIL // 2]} (its payload of {len(payload)} bytes is left out)",
            )
        headers = {
            **carried_headers(event.headers),
            REASON: quote(reason),
            DETAIL: quote(detail[:MAX_DETAIL]),
            SUBJECT: quote(event.subject),
            TIME: f"{event.time if time is None else time:.6f}",
        }
        subject = self._subjects.dead(token(origin.stream), origin.created, origin.seq)
        try:
            await self._broker.publish(Publish(subject, payload, headers, expect_last=0))
        except WrongLastSequence as error:
            if error.actual is None:
                # One is under way, perhaps from an earlier try of ours, and may get lost with its leader.
                raise OutcomeUnknown("dead letter", subject, "another write in flight") from error
            return DeadLettered.ALREADY
        except MailboxFull:
            if origin.stream != "mail":
                return DeadLettered.FULL
            self.dropped[reason] += 1
            return DeadLettered.DROPPED
        self.written[reason] += 1
        return DeadLettered.WRITTEN

    async def read(self, origin: Origin) -> DeadLetter | None:
        """The dead letter of this origin, or None."""
        subject = self._subjects.dead(token(origin.stream), origin.created, origin.seq)
        stored = await self._broker.read_last(self._subjects.dead_stream, subject)
        return self._letter(stored) if stored is not None else None

    async def list(self, *, from_seq: int = 1, limit: int | None = None) -> AsyncIterator[DeadLetter]:
        """Dead letters in the order they were written, for operators."""
        stream, pattern = self._subjects.dead_stream, self._subjects.dead_filter
        async for stored in self._broker.scan(stream, pattern, from_seq=from_seq, limit=limit):
            letter = self._letter(stored)
            if letter is not None:
                yield letter

    def _letter(self, stored: Stored) -> DeadLetter | None:
        parsed = self._subjects.parse(stored.subject)
        if not isinstance(parsed, Dead) or parsed.stream not in ("mail", "ctl", "wake"):
            return None
        headers = dict(stored.headers)
        try:
            return DeadLetter(
                seq=stored.seq,
                origin=Origin(
                    parsed.stream,  # type: ignore[arg-type]  # a Token, checked above
                    parsed.created,
                    parsed.seq,
                ),
                reason=unquote(headers.pop(REASON)),
                detail=unquote(headers.pop(DETAIL, "")),
                subject=unquote(headers.pop(SUBJECT)),
                time=float(headers.pop(TIME)),
                payload=stored.payload,
                headers=carried_headers(headers),
                written=stored.time,
            )
        except (KeyError, ValueError):
            return None

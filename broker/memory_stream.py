"""One stream of the in-memory twin: messages, expectations, limits, TTL, schedules. No I/O, no loop, no clock
of its own.

The rules are the server's, each found by trying it on 2.15.1 and held to it by the conformance suite:
order of checks, error codes, what rolls up, what a schedule replaces, which expectation a batch is judged
by (the state before it).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sojourn.broker.errors import MailboxFull, Refused, WrongLastSequence
from sojourn.broker.seam import Ack, Publish, Stored, StreamConfig, StreamInfo
from sojourn.broker.subject_match import matches, transform

MESSAGE_OVERHEAD = 34
MAX_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message on its way into the stream: subject as stored, headers as the wire has them."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """What a write did: messages that came, sequences that went."""

    stored: tuple[Stored, ...] = ()
    removed: tuple[int, ...] = ()


class MemoryStream:
    """See the module. Times are Unix seconds, given in."""

    def __init__(self, config: StreamConfig, created: float) -> None:
        self.config = effective(config)
        self.created = round(created * 1e9)
        self.last_seq = 0
        self.messages: dict[int, Stored] = {}
        self._by_subject: dict[str, dict[int, None]] = {}
        self._bytes = 0
        self._ids: dict[str, tuple[int, float]] = {}
        self._expiries: list[tuple[float, int]] = []
        self._schedules: list[tuple[float, int]] = []

    def __repr__(self) -> str:
        return f"<MemoryStream {self.config.name} messages={len(self.messages)} last_seq={self.last_seq}>"

    # writing
    def incoming(self, message: Publish, headers: Mapping[str, str]) -> Incoming:
        """The message under the subject it will be stored by."""
        subject = message.subject
        if self.config.transform is not None:
            subject = transform(subject, self.config.transform)
        return Incoming(subject, message.payload, headers)

    def append(self, messages: Sequence[Incoming], now: float) -> tuple[Ack, Change]:
        """Store all or none. Raises `WrongLastSequence`, `MailboxFull`, `Refused`."""
        if len(messages) > 1:
            self._check_batch(messages)
        for message in messages:
            self._check_flags(message)
        duplicate = self._duplicate(messages, now)
        if duplicate is not None:
            return Ack(self.config.name, duplicate, True), Change()
        for message in messages:
            self._check_expectation(message)
        self._check_limits(messages)
        stored: list[Stored] = []
        removed: list[int] = []
        for message in messages:
            one, gone = self._store(message, now)
            stored.append(one)
            removed.extend(gone)
        return Ack(self.config.name, self.last_seq), Change(tuple(stored), tuple(removed))

    def remove(self, seq: int) -> bool:
        """Delete one message; False when it is not there."""
        stored = self.messages.pop(seq, None)
        if stored is None:
            return False
        of_subject = self._by_subject[stored.subject]
        del of_subject[seq]
        if not of_subject:
            del self._by_subject[stored.subject]
        self._bytes -= _size(stored)
        return True

    def purge(self, pattern: str) -> tuple[int, ...]:
        """Delete everything under the filter; the sequences."""
        gone = tuple(stored.seq for stored in self.under(pattern))
        for seq in gone:
            self.remove(seq)
        return gone

    # reading
    def last(self, subject: str) -> Stored | None:
        """The newest message of a subject."""
        seqs = self._by_subject.get(subject)
        return self.messages[next(reversed(seqs))] if seqs else None

    def under(self, pattern: str, from_seq: int = 1) -> Iterator[Stored]:
        """Messages under the filter in order."""
        seqs = sorted(
            seq
            for subject, of_subject in self._by_subject.items()
            if matches(subject, pattern)
            for seq in of_subject
            if seq >= from_seq
        )
        return (self.messages[seq] for seq in seqs if seq in self.messages)

    def counts(self, pattern: str) -> dict[str, int]:
        """Subjects under the filter and their number of messages."""
        return {s: len(seqs) for s, seqs in self._by_subject.items() if matches(s, pattern)}

    def info(self, now: float) -> StreamInfo:
        """The stream's state."""
        first = next(iter(self.messages), self.last_seq + 1 if self.last_seq else 0)
        return StreamInfo(
            self.config.name, self.created, first, self.last_seq, len(self.messages), self._bytes, now
        )

    # time
    def next_due(self) -> float | None:
        """When `advance` has something to do next, or None. May be early: what it waits for can be gone."""
        heads = [heap[0][0] for heap in (self._expiries, self._schedules) if heap]
        return min(heads) if heads else None

    def advance(self, now: float) -> Change:
        """Let TTLs end and schedules fire that are due."""
        stored: list[Stored] = []
        removed: list[int] = []
        while self._expiries and self._expiries[0][0] <= now:
            _, seq = heapq.heappop(self._expiries)
            self._expire(seq, now, stored, removed)
        while self._schedules and self._schedules[0][0] <= now:
            _, seq = heapq.heappop(self._schedules)
            self._fire(seq, now, stored, removed)
        return Change(tuple(stored), tuple(removed))

    def _expire(self, seq: int, now: float, stored: list[Stored], removed: list[int]) -> None:
        message = self.messages.get(seq)
        if message is None:
            return
        self.remove(seq)
        removed.append(seq)
        marker_ttl = self.config.marker_ttl
        if marker_ttl is None or self.last(message.subject) is not None:
            return
        if "Nats-Marker-Reason" in message.headers:
            return
        headers = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": f"{round(marker_ttl)}s"}
        marker, _ = self._store(Incoming(message.subject, b"", headers), now)
        stored.append(marker)

    def _fire(self, seq: int, now: float, stored: list[Stored], removed: list[int]) -> None:
        schedule = self.messages.get(seq)
        if schedule is None:
            return
        headers = {n: v for n, v in schedule.headers.items() if not n.startswith("Nats-")}
        headers |= {"Nats-Scheduler": schedule.subject, "Nats-Schedule-Next": "purge"}
        target = schedule.headers["Nats-Schedule-Target"]
        self.remove(seq)
        removed.append(seq)
        one, gone = self._store(Incoming(target, schedule.payload, headers), now)
        stored.append(one)
        removed.extend(gone)

    # checks
    def _check_batch(self, messages: Sequence[Incoming]) -> None:
        if not self.config.allow_atomic:
            raise Refused(10174, "atomic publish is disabled", messages[-1].subject)
        if len(messages) > MAX_BATCH:
            raise Refused(10199, "atomic publish batch is too large", messages[-1].subject)

    def _check_flags(self, message: Incoming) -> None:
        config, headers, subject = self.config, message.headers, message.subject
        size = len(message.payload)
        if 0 <= config.max_msg_size < size:
            raise Refused(10054, "message size exceeds maximum allowed", subject)
        if "Nats-TTL" in headers and not config.allow_ttl:
            raise Refused(10166, "per-message TTL is disabled", subject)
        if "Nats-Batch-Id" in headers and not config.allow_atomic:
            raise Refused(10174, "atomic publish is disabled", subject)
        scheduling = "Nats-Schedule" in headers or "Nats-Scheduler" in headers
        if scheduling and not config.allow_schedules:
            raise Refused(10188, "message schedules is disabled", subject)
        if headers.get("Nats-Scheduler") == subject:
            raise Refused(10212, "message schedules invalid scheduler", subject)
        if "Nats-Schedule" in headers:
            target = headers.get("Nats-Schedule-Target", "")
            if target == subject or not any(matches(target, s) for s in config.subjects) or "*" in target:
                raise Refused(10190, "message schedules target is invalid", subject)
        if "Nats-Rollup" in headers and not config.allow_rollup:
            raise Refused(10111, "rollup not permitted", subject)

    def _duplicate(self, messages: Sequence[Incoming], now: float) -> int | None:
        if len(messages) != 1:
            return None
        seen = self._ids.get(messages[0].headers.get("Nats-Msg-Id", ""))
        if seen is None or now - seen[1] > self.config.duplicate_window:
            return None
        return seen[0]

    def _check_expectation(self, message: Incoming) -> None:
        expected = message.headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is None:
            return
        pattern = message.headers.get("Nats-Expected-Last-Subject-Sequence-Subject", message.subject)
        actual = self._last_seq_under(pattern)
        if actual != int(expected):
            raise WrongLastSequence(actual, int(expected), message.subject)

    def _last_seq_under(self, pattern: str) -> int:
        if "*" not in pattern and ">" not in pattern:
            last = self.last(pattern)
            return last.seq if last is not None else 0
        return max(
            (next(reversed(seqs)) for s, seqs in self._by_subject.items() if matches(s, pattern)), default=0
        )

    def _check_limits(self, messages: Sequence[Incoming]) -> None:
        config = self.config
        if config.discard != "new":
            return
        coming: dict[str, int] = {}
        size = 0
        for message in messages:
            size += _incoming_size(message)
            if "Nats-Rollup" in message.headers:
                continue
            coming[message.subject] = coming.get(message.subject, 0) + 1
        if config.discard_new_per_subject and config.max_msgs_per_subject > 0:
            for subject, count in coming.items():
                if len(self._by_subject.get(subject, ())) + count > config.max_msgs_per_subject:
                    raise MailboxFull(subject, "maximum messages per subject exceeded")
        if 0 <= config.max_bytes < self._bytes + size:
            raise MailboxFull(messages[-1].subject, "maximum bytes exceeded")

    # storing
    def _store(self, message: Incoming, now: float) -> tuple[Stored, list[int]]:
        self.last_seq += 1
        seq = self.last_seq
        headers = message.headers
        stored = Stored(self.config.name, seq, message.subject, message.payload, dict(headers), now)
        removed: list[int] = []
        if "Nats-Rollup" in headers or "Nats-Schedule" in headers:
            removed.extend(self._by_subject.get(message.subject, ()))
        if headers.get("Nats-Schedule-Next") == "purge" and "Nats-Scheduler" in headers:
            removed.extend(self._by_subject.get(headers["Nats-Scheduler"], ()))
        self.messages[seq] = stored
        of_subject = self._by_subject.setdefault(message.subject, {})
        of_subject[seq] = None
        self._bytes += _size(stored)
        keep = self.config.max_msgs_per_subject
        if keep > 0 and not self.config.discard_new_per_subject:
            removed.extend(list(of_subject)[: max(0, len(of_subject) - keep)])
        removed = [gone for gone in dict.fromkeys(removed) if self.remove(gone)]
        self._note_times(stored, now)
        return stored, removed

    def _note_times(self, stored: Stored, now: float) -> None:
        headers = stored.headers
        if "Nats-Msg-Id" in headers:
            self._ids[headers["Nats-Msg-Id"]] = (stored.seq, now)
        ttl = headers.get("Nats-TTL")
        if ttl is not None:  # never less than the markers' (tried: the server raises it)
            seconds = max(float(ttl.rstrip("s")), self.config.marker_ttl or 0.0)
            heapq.heappush(self._expiries, (now + seconds, stored.seq))
        if self.config.max_age > 0:
            heapq.heappush(self._expiries, (now + self.config.max_age, stored.seq))
        schedule = headers.get("Nats-Schedule")
        if schedule is not None:
            at = datetime.fromisoformat(schedule.removeprefix("@at ")).timestamp()
            heapq.heappush(self._schedules, (max(at, now), stored.seq))


def effective(config: StreamConfig) -> StreamConfig:
    """The configuration as the server keeps it: schedules imply roll-up. Raises `Refused`."""
    if not config.allow_schedules:
        return config
    if config.discard == "new":
        raise Refused(10052, "message scheduling cannot use discard new", config.name)
    return replace(config, allow_rollup=True, deny_purge=False)


def _size(stored: Stored) -> int:
    return MESSAGE_OVERHEAD + len(stored.subject) + len(stored.payload) + _headers_size(stored.headers)


def _incoming_size(message: Incoming) -> int:
    return MESSAGE_OVERHEAD + len(message.subject) + len(message.payload) + _headers_size(message.headers)


def _headers_size(headers: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers.items())

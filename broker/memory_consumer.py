"""A durable pull consumer of the in-memory twin: what is to be delivered, what waits for its acknowledgement.

No I/O and no loop: `next` says which message goes to which pull, the server hands it over. Several pulls
share the messages in turn, as with the real one (an old owner's pull goes on after a new one began; that
is why owners delete the consumer instead).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sojourn.broker.seam import ConsumerConfig, ConsumerState, Delivery, Stored
from sojourn.broker.subject_match import matches

P = TypeVar("P")


@dataclass(slots=True)
class _Unacknowledged:
    deliveries: int
    deadline: float


class MemoryConsumer(Generic[P]):
    """See the module. `P` is the server's pull."""

    def __init__(self, stream: str, config: ConsumerConfig, waiting: Iterable[int]) -> None:
        self.stream = stream
        self.config = config
        self.pulls: deque[P] = deque()
        self.consumer_seq = 0
        self._waiting: deque[int] = deque(waiting)
        self._unacknowledged: dict[int, _Unacknowledged] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._redeliver: deque[int] = deque()
        self._deliveries: dict[int, int] = {}

    def __repr__(self) -> str:
        return (
            f"<MemoryConsumer {self.stream}/{self.config.name} waiting={len(self._waiting)} "
            f"unacknowledged={len(self._unacknowledged)} pulls={len(self.pulls)}>"
        )

    def wants(self, subject: str) -> bool:
        """Whether a message of this subject is for this consumer."""
        return any(matches(subject, pattern) for pattern in self.config.filters)

    def offer(self, seq: int) -> None:
        """A new message is stored."""
        self._waiting.append(seq)

    def withdraw(self, seq: int) -> None:
        """A message is gone from the stream."""
        self._unacknowledged.pop(seq, None)
        self._deliveries.pop(seq, None)

    def next(self, messages: dict[int, Stored], now: float) -> tuple[P, Delivery] | None:
        """The next delivery and the pull it goes to;

        None when there is nothing, nobody, or no room in the window.
        """
        while self.pulls and (self._redeliver or self._waiting):
            if len(self._unacknowledged) >= self.config.max_ack_pending:
                return None
            seq = self._redeliver.popleft() if self._redeliver else self._waiting.popleft()
            stored = messages.get(seq)
            if stored is None:
                continue
            self.pulls.rotate(-1)
            return self.pulls[-1], self._deliver(stored, now)
        return None

    def acknowledge(self, seq: int) -> None:
        """The message is done with."""
        self.withdraw(seq)

    def put_off(self, seq: int, until: float) -> None:
        """It comes again at this time at the earliest: it is being worked on, or was handed back."""
        found = self._unacknowledged.get(seq)
        if found is not None:
            found.deadline = until
            heapq.heappush(self._deadlines, (until, seq))

    def state(self, messages: dict[int, Stored]) -> ConsumerState:
        """What it has to do now."""
        waiting = sum(seq in messages for seq in (*self._waiting, *self._redeliver))
        return ConsumerState(waiting, len(self._unacknowledged), len(self.pulls))

    def next_due(self) -> float | None:
        """The earliest deadline of an acknowledgement."""
        return self._deadlines[0][0] if self._deadlines else None

    def advance(self, now: float) -> bool:
        """Queue messages again whose acknowledgement did not come in time; whether there are any."""
        found = False
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, seq = heapq.heappop(self._deadlines)
            waiting = self._unacknowledged.get(seq)
            if waiting is not None and waiting.deadline == deadline:
                del self._unacknowledged[seq]
                self._redeliver.append(seq)
                found = True
        return found

    def _deliver(self, stored: Stored, now: float) -> Delivery:
        self.consumer_seq += 1
        count = self._deliveries.get(stored.seq, 0) + 1
        self._deliveries[stored.seq] = count
        deadline = now + self.config.ack_wait
        self._unacknowledged[stored.seq] = _Unacknowledged(count, deadline)
        heapq.heappush(self._deadlines, (deadline, stored.seq))
        token = (
            f"$JS.ACK.{self.stream}.{self.config.name}.{count}.{stored.seq}.{self.consumer_seq}"
            f".{round(stored.time * 1e9)}.{len(self._waiting)}"
        )
        return Delivery(stored, token, count > 1, self.consumer_seq, count)

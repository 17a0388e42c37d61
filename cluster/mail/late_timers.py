"""Timers that should have fired and have not: the owner of a partition arms them again.

A timer is a message schedule, and the broker stores its wake-up when the time has come. If the store is full at that moment, nats-server
(2.15.1) keeps the schedule, marked as being under way, and does not try it again before it is restarted or its stream gets another leader
(tried; found by a chaos run that filled the disk). An actor would wait for ever: no event is stored, and `sojourn check` sees an armed
timer. Storing the same schedule once more removes the mark.

So an owner reads through its armed timers, a page at a time, and stores those again that are overdue. The page is read from any replica and
may be old; each is stored with the sequence it had as expectation, so one that has fired or was cancelled meanwhile is refused.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sojourn.broker.errors import BrokerError
from sojourn.broker.seam import Broker, Publish, Stored
from sojourn.broker.subjects import Subjects

EVERY_SECONDS: Final = 15.0
"""Between two pages."""
LATE_SECONDS: Final = 10.0
"""Beyond its time, from which on a timer is overdue: healthy ones are up to a quarter of a second late, and wait for an election."""
PAGE: Final = 200
"""Timers read at a time. 30,000 armed timers of one partition are gone through in 40 minutes."""
_SCHEDULE, _TARGET = "Nats-Schedule", "Nats-Schedule-Target"


class LateTimers:
    """The armed timers of one partition, gone through in a circle."""

    def __init__(
        self, broker: Broker, subjects: Subjects, p: int, *, late_seconds: float = LATE_SECONDS
    ) -> None:
        self._broker = broker
        self._stream = subjects.wake_stream
        self._filter = subjects.timer_filter(p)
        self._late_seconds = late_seconds
        self._next_seq = 1

    def __repr__(self) -> str:
        return f"<LateTimers {self._filter} from {self._next_seq}>"

    async def look(self, now: float) -> int:
        """Read one page, arm what is overdue at broker time `now` again; how many those were. Raises `BrokerError`."""
        page = [
            stored
            async for stored in self._broker.scan(
                self._stream, self._filter, from_seq=self._next_seq, limit=PAGE
            )
        ]
        self._next_seq = page[-1].seq + 1 if len(page) >= PAGE else 1
        overdue = [
            stored for stored in page if (at := _due(stored)) is not None and now - at > self._late_seconds
        ]
        return sum([await self._arm_again(stored, now) for stored in overdue])

    async def _arm_again(self, stored: Stored, now: float) -> bool:
        """Store the schedule once more, for now. False: it has fired, was cancelled or replaced, or the broker cannot just now."""
        headers = {name: value for name, value in stored.headers.items() if not name.startswith("Nats-")}
        message = Publish(
            stored.subject,
            stored.payload,
            headers,
            expect_last=stored.seq,
            schedule_at=now,
            schedule_target=stored.headers[_TARGET],
        )
        try:
            await self._broker.publish(message)
        except BrokerError:
            return False  # the next round finds what is still overdue
        return True


def _due(stored: Stored) -> float | None:
    """The time of a schedule; None for what is none, such as the carrier of a cancellation."""
    schedule = stored.headers.get(_SCHEDULE, "")
    if not schedule.startswith("@at ") or _TARGET not in stored.headers:
        return None
    try:
        return datetime.fromisoformat(schedule.removeprefix("@at ")).timestamp()
    except ValueError:
        return None

"""Several events in one turn: an actor with a thousand branches must not store a thousand for each of a thousand results.

A turn captures every branch of its actor. Events that each let a branch go on, and that are there at the same time, are therefore
taken together: in their order, each as if it were alone, but with one capture and one commit. To anybody else it is as if nothing
had come between their commits: a crash between two of them, or a look at the record, is what can no longer be.

Only what changes nothing for the others joins: ends of steps, timers of waits, ends of children, and what may go on by the owner's own
doing. Mail and control take a turn each, and so does a result that is to be recorded before its code goes on.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from sojourn.codecs.record import PendingCall, Record

from .events import Event, GoesOn, LocalEvent, StepDone
from .states import GOES_ON

if TYPE_CHECKING:
    from .draft import Draft

AT_ONCE: Final = 128
"""Events in one turn: what a turn may hold up the other actors of its node with."""
_KINDS: Final = frozenset(("timer", "child-done", "refused", "done"))


def joins(record: Record, event: Event | LocalEvent) -> bool:
    """Whether an event that the record lets be consumed may be taken in one turn with others that may. Steps recorded `at_once` are
    not told from others here."""
    if record.index.status.ended or record.envelope.hold is not None:
        return False
    match event:
        case StepDone():
            return not event.record_first
        case GoesOn():
            return all(wait.kind != "start" for wait in record.envelope.waits)
    if event.kind == "timer":
        return _ends_a_wait(record, event.body.get("n"))
    return event.kind in _KINDS


def _ends_a_wait(record: Record, timer: object) -> bool:
    """Whether a timer is that of a wait: it has the number of the wait's operation, by which the waits are in order."""
    waits = record.envelope.waits
    at = bisect_left(waits, timer, key=lambda wait: wait.op) if isinstance(timer, int) else len(waits)
    return at < len(waits) and waits[at].timer == timer and waits[at].kind != "start"


def still_due(draft: Draft, event: Event | LocalEvent, before: dict[int, PendingCall]) -> bool:
    """Whether the events taken before it in this turn have left of an event's meaning what it had. `before`: the pending calls as the
    turn found them."""
    match event:
        case StepDone(op=op, attempt=attempt):
            call = draft.calls.get(op)
            return call is not None and call.attempt == attempt
        case GoesOn(op=op):
            wait = draft.waits.get(op)
            return op in draft.results or (wait is not None and wait.kind in GOES_ON and wait.timer is None)
    if event.kind == "timer":
        number = event.body["n"]
        wait = draft.waits.get(number)
        return wait is not None and wait.timer == number
    if event.kind == "done":
        number = int(event.body["op"])
        return number in before and draft.calls.get(number) is before[number]
    child = draft.children.get(str(event.body.get("child")))
    return child is not None and child.status != "ended" and child.op == event.body.get("op")

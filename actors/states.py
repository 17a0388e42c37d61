"""The states of an actor as data: which status may follow which (DESIGN 1).

`paused`, `quarantined` and `pin` are *holds*: they lie over a status and stop every event that would run user code.
The documentation's
diagram is drawn from these tables.
"""

from __future__ import annotations

from sojourn.codecs.errors import SojournError
from sojourn.codecs.record import Envelope, Status

_LIVE = frozenset((Status.RUNNING, Status.SUSPENDED, Status.RUNNABLE))
_ENDED = frozenset(status for status in Status if status.ended)

TRANSITIONS: dict[Status | None, frozenset[Status]] = {
    None: _LIVE | _ENDED | {Status.CANCELLING},
    Status.RUNNING: _LIVE | _ENDED | {Status.CANCELLING},
    Status.SUSPENDED: _LIVE | _ENDED | {Status.CANCELLING},
    Status.RUNNABLE: _LIVE | _ENDED | {Status.CANCELLING},
    Status.CANCELLING: _ENDED | {Status.CANCELLING},
    **{status: frozenset((status,)) for status in _ENDED},
}
"""Status of the record before (None: no record, or a new run) -> statuses that a commit may give it. An ended actor
only gets sealed."""

HOLD_ACCEPTS: dict[str, frozenset[str]] = {
    "paused": frozenset(("resume", "cancel", "terminate")),
    "quarantined": frozenset(("release", "cancel", "terminate")),
    "pin": frozenset(("terminate",)),
}
"""Hold -> control events that are still consumed; everything else waits in HELD."""


class IllegalTransition(SojournError):
    """A commit would give an actor a status that cannot follow its present one. A bug in the engine, never the
    user's."""

    def __init__(self, before: Status | None, after: Status) -> None:
        super().__init__(before, after)
        self.before = before
        self.after = after

    def __str__(self) -> str:
        allowed = ", ".join(sorted(TRANSITIONS[self.before]))
        return f"status `{self.after}` cannot follow `{self.before}` (allowed: {allowed}); this is a bug in Sojourn"


def checked(before: Status | None, after: Status) -> Status:
    """`after`, if it may follow `before`. Raises `IllegalTransition`."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransition(before, after)
    return after


def status_of(envelope: Envelope) -> Status:
    """The status that an actor's protocol state amounts to, while it has not ended."""
    if envelope.ending is not None or envelope.cancelling is not None:
        return Status.CANCELLING
    if any(call.runs_here for call in envelope.calls):
        return Status.RUNNING
    if envelope.results or any(wait.kind in GOES_ON and wait.timer is None for wait in envelope.waits):
        return Status.RUNNABLE
    return Status.SUSPENDED


GOES_ON = frozenset(("start", "spawn", "checkpoint", "cancel-child", "send"))
"""Waits that end by the owner's own doing: right after the commit, for `send` after its flush."""

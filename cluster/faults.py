"""Named crash points: a seam for tests, silent in production.

The owner of a partition calls `fault(point, actor)` at each place where PROTOCOL 9 asks what happens when the process dies there. In
production the callable is `no_fault`. Acceptance tests start a real node process with

    SOJOURN_FAULT="after_commit:3"            the third time any actor passes `after_commit`, the process kills itself with SIGKILL
    SOJOURN_FAULT="after_commit@order-42:1"   only passes of that actor count (of that partition, for attach points)
    SOJOURN_FAULT="after_commit:1,in_step:2"  several; whichever comes first

SIGKILL leaves no chance to flush a buffer or to run a `finally`, which is what a power cut or the kernel's memory killer does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from sojourn.codecs.errors import SojournError

from .hosting.services import Fault, no_fault

VARIABLE = "SOJOURN_FAULT"

POINTS: Mapping[str, str] = {
    # one commit
    "before_commit": "user code ran, nothing is stored",
    "before_user_commit": "as before_commit, and this commit is the one that follows user code",
    "after_commit": "the record is stored, this process acts as if it never heard so",
    "before_flush": "the record is stored and acknowledged, no outbox entry is published",
    "between_flushes": "one outbox entry is published, the next is not",
    "after_flush": "the whole outbox is published, no event is acknowledged",
    "before_ack": "the record is clean, no event is acknowledged",
    "after_ack": "the first acknowledgement of a record is confirmed",
    # ending
    "after_terminal_commit": "the terminal record is stored, nothing of its outbox is published",
    "before_seal": "the terminal record's outbox is published, the record is not sealed",
    "after_seal": "the seal is stored, the actor's events are not acknowledged",
    # local steps
    "in_step": "the step was started and has not ended",
    "step_result": "the step has ended, its result is not recorded",
    "takeover_committed": "the new runner of a call is recorded, the call is not started",
    "attempt_committed": "the attempt is counted, user code has not run",
    "orphan_outcome": "a step of a moved actor has ended, its outcome is not published",
    # moving to HELD
    "before_move": "nothing is stored in HELD",
    "move_stored": "events are stored in HELD, their sources are not acknowledged",
    # lanes
    "lane_committed": "the actor is on a lane, its events are not in HELD and nobody was nudged",
    "lane_nudged": "the lane's nodes are nudged",
    "lane_owner": "lane.<deployment>.<p> names this node",
    "lane_list": "held events are listed for the lane",
    "owner_nudged": "the actor is given back and the partition's owner is nudged",
    # queued steps, at a worker
    "worker_before_run": "the task is delivered and its operation pending, the step has not begun",
    "worker_before_publish": "the step has ended, its result is not stored",
    "worker_after_publish": "the result is stored, the task is not acknowledged",
    # dead letters
    "dead_stored": "the dead letter is stored, the event is not acknowledged",
    # attaching, in the order of PROTOCOL 3
    "attach_owner": "owner.<p> names this node",
    "attach_delete": "consumers of lower epochs are deleted",
    "attach_create": "consumers of this epoch exist",
    "attach_fence": "the fence is written",
    "attach_list": "held events are listed",
    "attach_verify": "owner.<p> was read again",
}
"""Every point with the state of the world at it."""


class UnknownFaultPoint(SojournError):
    """A fault specification names no point, or is not of the form `point[@about]:count`."""

    def __init__(self, specification: str) -> None:
        self.specification = specification
        super().__init__(
            f"expected {VARIABLE} as 'point[@about]:count', comma separated, with a point out of "
            f"{', '.join(sorted(POINTS))}; received {specification!r}"
        )

    def __reduce__(self) -> tuple[type[UnknownFaultPoint], tuple[str]]:
        return type(self), (self.specification,)


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fault_from(environment: Mapping[str, str], *, kill: Callable[[], None] = _kill_self) -> Fault:
    """The fault that the environment asks for; `no_fault` when it asks for none. Raises `UnknownFaultPoint`."""
    specification = environment.get(VARIABLE, "")
    if not specification:
        return no_fault
    remaining: dict[tuple[str, str], int] = {}
    for part in specification.split(","):
        where, _, count = part.strip().partition(":")
        point, _, actor = where.partition("@")
        if point not in POINTS or not count.isdigit() or int(count) < 1:
            raise UnknownFaultPoint(specification)
        remaining[point, actor] = int(count)

    def fault(point: str, about: str = "") -> None:
        for key in {(point, ""), (point, about)}:
            if key in remaining:
                remaining[key] -= 1
                if remaining[key] == 0:
                    kill()

    return fault

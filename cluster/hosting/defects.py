"""What a node's log says of actors that come into quarantine: one line for each kind of defect and while, however many actors have it.

A bad deploy may send thousands into quarantine within seconds. A line names one of them, what it is, the place, and how many there
were like it since the last line; the metrics count them all. The message of the user's exception stays out of the log, since it may
hold the user's data: `sojourn describe` has it, with the traceback.
"""

from __future__ import annotations

import logging
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sojourn.codecs.record import Record

AGAIN_SECONDS: Final = 10.0
"""Until the same kind of defect is told again."""
KINDS: Final = 1_000
"""Kinds that are remembered; over it all are forgotten, and told anew."""
_PLACE: Final = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.M)


class DefectLog:
    """Of one life of a node, on the engine's loop."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def say(self, log: logging.Logger, now: float, record: Record) -> None:
        """An actor is in quarantine since this commit. `now` is local monotonic time."""
        index = record.index
        kind = kind_of(record)
        at, silent = self._told.get((index.workflow, kind), (None, 0))
        if at is not None and now - at < AGAIN_SECONDS:
            self._told[index.workflow, kind] = at, silent + 1
            return
        if len(self._told) >= KINDS:
            self._told.clear()
        self._told[index.workflow, kind] = now, 0
        since = f", and {silent:,} more like it since the last line" if silent else ""
        log.warning(
            "%s (%s) is in quarantine: %s%s; `sojourn describe %s` has the whole story",
            index.actor,
            index.workflow,
            kind,
            since,
            index.actor,
        )


def kind_of(record: Record) -> str:
    """The class of what it raised and where, or the words in which Sojourn itself says why."""
    hold = record.envelope.hold
    if hold is None:
        return ""
    places = _PLACE.findall(hold.traceback)
    if not places:
        return hold.reason.partition(": ")[0]
    file, line, function = places[-1]
    return f"{hold.reason.partition(': ')[0].removeprefix('builtins:')} at {PurePath(file).name}:{line} in {function}"

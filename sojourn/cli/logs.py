"""Log lines of a node: time, level, message, then the facts that came with it as name=value."""

from __future__ import annotations

import logging
import sys
from typing import Final

from .output import line

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
LONGEST: Final = 200
"""Characters of one fact; facts are ids and names, never payloads."""
LONGEST_MESSAGE: Final = 4_000


class FactsFormatter(logging.Formatter):
    """Appends what a log call gave as `extra`, escaped and cut: an actor's id comes from outside."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name is logging's
        """The line without traceback."""
        facts = (
            f"{name}={line(str(value), LONGEST)}"
            for name, value in vars(record).items()
            if name not in _STANDARD and value not in ("", None)
        )
        record.message = line(record.message, LONGEST_MESSAGE)  # it may quote what came from outside
        return "  ".join([super().formatMessage(record), *facts])


def log_to_stderr(level: str) -> None:
    """Send everything of at least this level to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FactsFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])

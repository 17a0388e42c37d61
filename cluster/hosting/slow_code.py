"""Which lines of workflow code are followed by slow code: a step's result that leads there is recorded before it (PROTOCOL 4.9).

Normally a result is stored with the next suspension, so the plain code between two awaits runs again when the process dies in
it. Where that code last took long, repeating it is likelier and dearer than one more write.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sojourn.codecs.record import Record, SourceLine

SLOW_SECONDS: Final = 0.05
LINES: Final = 1_024
"""Lines remembered; the oldest finding is forgotten beyond that."""


class SlowCode:
    """Lines at which a step was awaited and after which code took over 50 ms the last time. One per partition."""

    def __init__(self) -> None:
        self._lines: OrderedDict[SourceLine, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<SlowCode {len(self._lines)} lines>"

    def follows(self, record: Record, op: int) -> bool:
        """Whether slow code follows the await of this operation."""
        if not self._lines:
            return False
        line = _line(record, op)
        return line is not None and line in self._lines

    def took(self, record: Record, op: int, seconds: float) -> None:
        """The code after the await of this operation took so long."""
        if seconds <= SLOW_SECONDS and not self._lines:
            return
        line = _line(record, op)
        if line is None:
            return
        self._lines.pop(line, None)
        if seconds > SLOW_SECONDS:
            self._lines[line] = None
            if len(self._lines) > LINES:
                self._lines.popitem(last=False)


def _line(record: Record, op: int) -> SourceLine | None:
    for wait in record.envelope.waits:
        if wait.op == op:
            return wait.stack[-1] if wait.stack else None
    return None

"""What happens to the partitions of a node, told in one line per change rather than one per partition.

A node that starts attaches 32 partitions, one whose broker was away attaches all of them anew: a log line for each hides the one that
matters. Each is logged at DEBUG; once no operation is under way, one line at INFO sums up what the operations since the last one did.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

REASONS: Final = 3
"""Different reasons that one line names; the rest are counted."""


class Tally:
    """Collects what happened, until `tell`. Engine loop only."""

    def __init__(self, log: logging.Logger, extra: Mapping[str, object]) -> None:
        """`extra`: facts that go with every line."""
        self._log = log
        self._extra = dict(extra)
        self._done: Counter[str] = Counter()
        self._reasons: dict[str, Counter[str]] = {}
        self._since: float | None = None
        self._worried = False

    def __repr__(self) -> str:
        return f"<Tally {self._words() or 'of nothing'}>"

    def begin(self, now: float) -> None:
        """An operation begins at this local monotonic time."""
        if self._since is None:
            self._since = now

    def note(self, p: int, what: str, reason: str = "", *, worried: bool = False) -> None:
        """Partition `p` was attached, handed over, and so on, for this reason. `worried`: that was not planned."""
        self._done[what] += 1
        self._worried = self._worried or worried
        if reason:
            self._reasons.setdefault(what, Counter())[reason] += 1
        about = {**self._extra, "partition": p}
        self._log.debug("partition %d %s%s", p, what, f": {reason}" if reason else "", extra=about)

    def tell(self, now: float, serving: int) -> None:
        """All operations have ended: say what they did, if they did anything."""
        since, self._since = self._since, None
        words, worried = self._words(), self._worried
        self._done.clear()
        self._reasons.clear()
        self._worried = False
        if words:
            took = f" in {now - since:.1f} s" if since is not None else ""
            level = logging.WARNING if worried else logging.INFO
            noun = "partition" if serving == 1 else "partitions"
            self._log.log(level, "%s%s; serving %d %s", words, took, serving, noun, extra=self._extra)

    def _words(self) -> str:
        return ", ".join(f"{what} {times}{self._why(what)}" for what, times in self._done.items())

    def _why(self, what: str) -> str:
        reasons = self._reasons.get(what)
        if not reasons:
            return ""
        shown = [reason for reason, _ in reasons.most_common(REASONS)]
        more = f" and {len(reasons) - REASONS} other reasons" if len(reasons) > REASONS else ""
        return f" ({'; '.join(shown)}{more})"

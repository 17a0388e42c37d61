"""When a node's process looks for garbage in cycles.

What a commit leaves behind, and an actor that is parked or has ended, is freed without the collector, and at CPython's own thresholds
that took a tenth of a busy node's time. Users' code leaves cycles; what of them has lived for a while only a full collection finds, which
high thresholds put off until hundreds of megabytes of it lie there. So the collector runs by itself rarely, and in full when memory in
use has grown by a bounded part.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Final

COLLECT_AT: Final = (10_000, 20, 20)
"""Thresholds of the garbage collector in a node's process; CPython's own are (700, 10, 10)."""
GROWTH: Final = 100_000
"""Blocks allocated since the last full collection, less those freed, at which the next is due (about 8 MB), or half as many as
were in use then, if that is more: what is in use is walked each time.
"""


def settle() -> None:
    """Call it once everything is loaded: that stays, and the collector need not walk it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AT)


class Garbage:
    """Looks at what is allocated; see the module."""

    def __init__(self, blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        """`blocks`: how many are allocated now."""
        self._blocks = blocks
        self._least = blocks()

    def collect(self) -> bool:
        """Collect if that is due, in tens of milliseconds; whether it was."""
        blocks = self._blocks()
        self._least = min(self._least, blocks)
        if blocks - self._least < max(GROWTH, self._least // 2):
            return False
        gc.collect()
        self._least = self._blocks()
        return True

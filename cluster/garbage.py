"""When a node's process looks for garbage in cycles.

What a commit leaves behind is freed without the collector, and at CPython's own thresholds that took a tenth of a busy node's time. What an
actor leaves behind when it is parked has cycles, and has lived for seconds by then: only a full collection finds it, which high
thresholds put off until hundreds of megabytes of it lie there (measured: 20,000 actors parked, 340,000 objects). So the collector runs by
itself rarely, and in full when memory in use has grown by a bounded part.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

COLLECT_AT: Final = (10_000, 20, 20)
"""Thresholds of the garbage collector in a node's process; CPython's own are (700, 10, 10)."""
GROWTH: Final = 100_000
"""Blocks allocated since the last full collection, less those freed, at which the next is due (about 8 MB), or half as many as
were in use then, if that is more: what is in use is walked each time.
"""
REST: Final = 10_000
"""A node is at rest while its blocks differ by less than this from those of the last look."""
REST_LOOKS: Final = 10
"""Looks at rest after which it collects once: what an actor leaves behind lies there only when it is parked, seconds after its work."""


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
        self._least = self._last = blocks()
        self._rested = 0

    def collect(self) -> bool:
        """Collect if that is due, in tens of milliseconds; whether it was."""
        blocks, last = self._blocks(), self._last
        self._rested = self._rested + 1 if abs(blocks - last) < REST else 0
        self._last = blocks
        self._least = min(self._least, blocks)
        at_rest = self._rested == REST_LOOKS
        if not at_rest and blocks - self._least < max(GROWTH, self._least // 2):
            return False
        gc.collect()
        if at_rest:
            _give_back()
        self._least = self._last = self._blocks()
        return True


def _give_back() -> None:
    """Give freed memory back to the system, where the C library can (glibc keeps what lies between pages in use)."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)

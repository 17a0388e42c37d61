"""Signals of a process that leaves in order: the first SIGTERM or SIGINT drains, the second leaves at once.

Signals are taken by plain handlers, not by the loop's, so that they are heard while the loop is stuck in user code; should the
loop not come back, the process ends without it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

LEAVE_SECONDS: Final = 15.0
"""Beyond the drain, how long closing everything may take before the process ends without it."""
AT_ONCE_SECONDS: Final = 1.5
"""How long leaving at once may take."""


@contextmanager
def leaving(
    loop: asyncio.AbstractEventLoop,
    *,
    drain: Callable[[], None],
    leave: Callable[[], None],
    drain_seconds: float,
) -> Iterator[list[int]]:
    """Handle SIGTERM and SIGINT meanwhile, in the main thread; the list holds the exit code: 0, or 128 + signal left at once."""
    code = [0]
    received: list[int] = []
    finished = threading.Event()

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            loop.call_soon_threadsafe(drain)
            _end_process_after(drain_seconds + LEAVE_SECONDS, 128 + number, finished)
        elif len(received) == 2:
            code[0] = 128 + number
            loop.call_soon_threadsafe(leave)
            _end_process_after(AT_ONCE_SECONDS, 128 + number, finished)

    former = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield code
    finally:
        finished.set()
        for number, handler in former.items():
            signal.signal(number, handler)


def _end_process_after(seconds: float, code: int, finished: threading.Event) -> None:
    """Leaving always completes: if something of it hangs, the process ends without it."""

    def wait() -> None:
        if not finished.wait(seconds):
            sys.stderr.write(f"sojourn: leaving took over {seconds:g} s, ending the process without it\n")
            sys.stderr.flush()
            os._exit(code)

    threading.Thread(target=wait, name="sojourn-end", daemon=True).start()

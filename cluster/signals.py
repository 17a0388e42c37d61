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
from typing import Final, Protocol

from .lives import new_event_loop

LEAVE_SECONDS: Final = 15.0
"""Beyond the drain, how long closing everything may take before the process ends without it."""
AT_ONCE_SECONDS: Final = 1.5
"""How long leaving at once may take."""


class Leaves(Protocol):
    """A node or a worker: runs until it is told to leave."""

    def drain(self) -> None:
        """Finish or hand over what runs, and end `run`."""

    def leave(self) -> None:
        """End `run` at once."""

    async def run(self) -> None:
        """Work until told to leave."""


def run_until_told(make: Callable[[], Leaves], *, drain_seconds: float) -> int:
    """Run what `make` makes, on a loop of its own, until a signal ends it; the exit code: 0 left in order, 128 + signal at once.

    Call it in the main thread. Raises what `make` and `run` do.
    """

    async def run(loop: asyncio.AbstractEventLoop) -> int:
        made = make()
        with leaving(loop, drain=made.drain, leave=made.leave, drain_seconds=drain_seconds) as code:
            await made.run()
        return code[0]

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run(runner.get_loop()))


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

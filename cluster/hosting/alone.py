"""Running one suspected actor alone, so that the next death of the process accuses nobody else (I7).

After three counted attempts an actor, the guilty one or one that was merely present each time, runs user code only while no other actor of
this node does. A guilty actor then reaches five by itself; an innocent one commits, and its count starts again.
"""

from __future__ import annotations

import asyncio
from typing import Final

WAIT_FOR_OTHERS_SECONDS: Final = 10.0
"""Steps that run longer than this are present when the suspect runs: it must not wait for ever."""


class Alone:
    """One per life of a node; used on the engine's loop only."""

    def __init__(self) -> None:
        self._holder: str | None = None
        self._queue: asyncio.Lock = asyncio.Lock()
        self._free = asyncio.Event()
        self._free.set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._running = 0

    def __repr__(self) -> str:
        return f"<Alone holder={self._holder} running={self._running}>"

    def blocks(self, actor: str) -> bool:
        """Whether this actor has to wait before it runs user code."""
        return self._holder is not None and self._holder != actor

    async def wait_free(self) -> None:
        """Return when no suspect runs alone."""
        await self._free.wait()

    def step_started(self) -> None:
        """A local step runs."""
        self._running += 1
        self._quiet.clear()

    def step_ended(self) -> None:
        """A local step has ended."""
        self._running -= 1
        if self._running <= 0:
            self._quiet.set()

    async def acquire(self, actor: str) -> None:
        """Be the only actor that starts user code, once the others' running steps have ended (bounded)."""
        if self._holder == actor:
            return
        await self._queue.acquire()
        self._holder = actor
        self._free.clear()
        try:
            async with asyncio.timeout(WAIT_FOR_OTHERS_SECONDS):
                await self._quiet.wait()
        except TimeoutError:
            return
        except BaseException:
            self.release(actor)
            raise

    def release(self, actor: str) -> None:
        """The suspect has reached a commit, or is held, or is dropped. Does nothing for anyone else."""
        if self._holder == actor:
            self._holder = None
            self._free.set()
            self._queue.release()

"""Where async steps run: a loop of their own in a second thread, so that user code in steps cannot hold up
commits.

The resources of the app (`@lifespan`) are opened on that loop before the node is ready and closed on it after
the drain, in one task, because async generators and cancel scopes must be left by the task that entered them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sojourn.actors.lifespan import Resources

if TYPE_CHECKING:
    from sojourn.actors.lifespan import Lifespan

CLOSE_SECONDS = 10.0
"""How long resources may take to close; then the loop ends without them."""


class StepsLoop:
    """One thread with one loop and the open resources. Used from the engine's loop."""

    def __init__(
        self, lifespans: Iterable[Lifespan], new_loop: Callable[[], asyncio.AbstractEventLoop]
    ) -> None:
        """`new_loop` makes the loop (uvloop's where there is one)."""
        self._lifespans = tuple(lifespans)
        self._new_loop = new_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._engine_loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        """Whether it runs."""
        running = self._thread is not None and self._thread.is_alive()
        return f"<StepsLoop {'running' if running else 'stopped'} lifespans={len(self._lifespans)}>"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The steps' loop; there after `start`."""
        if self._loop is None:
            raise RuntimeError("StepsLoop.start was not called")
        return self._loop

    async def start(self) -> Resources:
        """Start the thread and open the resources. Raises what a lifespan raises."""
        self._engine_loop = asyncio.get_running_loop()
        ready: asyncio.Future[Resources] = self._engine_loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="sojourn-steps", daemon=True)
        self._thread.start()
        return await ready

    async def stop(self) -> None:
        """Close the resources and end the thread, within `CLOSE_SECONDS`. Twice is fine."""
        thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is None or loop is None or stopping is None:
            return
        try:
            loop.call_soon_threadsafe(stopping.set)
        except RuntimeError:  # its loop is closed already
            return
        await asyncio.get_running_loop().run_in_executor(None, thread.join, CLOSE_SECONDS)

    def _run(self, ready: asyncio.Future[Resources]) -> None:
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            try:
                runner.run(self._main(ready))
            except Exception as error:
                self._tell(ready, error)

    async def _main(self, ready: asyncio.Future[Resources]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        async with Resources.open(self._lifespans) as resources:
            self._tell(ready, resources)
            await self._stopping.wait()

    def _tell(self, ready: asyncio.Future[Resources], outcome: Resources | Exception) -> None:
        def settle() -> None:
            if ready.done():
                if isinstance(outcome, Exception):
                    context = {"message": "closing the resources of steps failed", "exception": outcome}
                    asyncio.get_running_loop().call_exception_handler(context)
            elif isinstance(outcome, Exception):
                ready.set_exception(outcome)
            else:
                ready.set_result(outcome)

        assert self._engine_loop is not None
        self._engine_loop.call_soon_threadsafe(settle)

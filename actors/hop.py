"""Calling functions and running coroutines on a loop in another thread, and bringing their outcomes back.

`asyncio.run_coroutine_threadsafe` wakes the other loop once for each coroutine and this one once for each
outcome, and makes two futures and a lock for each. Here what goes over lies in a queue, and one wake-up
serves everything that is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Trip(Generic[T]):
    """One coroutine's way there and back."""

    __slots__ = ("context", "future", "make", "task")

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]], future: asyncio.Future[T]) -> None:
        self.make = make
        self.future = future
        self.context = contextvars.copy_context()
        self.task: asyncio.Task[T] | None = None


class _Queue:
    """Calls for one loop, put there by other threads. The flag is cleared before the queue is emptied, so no
    call is overlooked.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._called = False

    def put(self, call: Callable[[], None]) -> None:
        """Raises `RuntimeError` when the loop is closed."""
        self._calls.append(call)
        if not self._called:
            self._called = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                self._called = False
                self._calls.clear()
                raise

    def _drain(self) -> None:
        self._called = False
        for _ in range(len(self._calls)):  # what is put meanwhile has called again
            call = self._calls.popleft()
            try:
                call()
            except Exception as error:  # the others are not to suffer
                self._loop.call_exception_handler(
                    {"message": "a call from another thread failed", "exception": error}
                )


class Hop:
    """From the loop that makes it to another one and back."""

    def __init__(self, there: asyncio.AbstractEventLoop) -> None:
        """Called on the home loop."""
        self._there = there
        self._out = _Queue(there)
        self._back = _Queue(asyncio.get_running_loop())

    def there(self, call: Callable[[], None]) -> None:
        """Call it over there, in a copy of this context. Raises `RuntimeError` when that loop is closed."""
        context = contextvars.copy_context()
        self._out.put(lambda: context.run(call))

    def home(self, call: Callable[[], None]) -> None:
        """Call it here, from over there. When this loop is closed nothing happens: nobody asks any more."""
        with contextlib.suppress(RuntimeError):
            self._back.put(call)

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `make()` over there, in a copy of this context; its outcome. Cancelled here, it is cancelled
        there.
        """
        trip: _Trip[T] = _Trip(make, asyncio.get_running_loop().create_future())
        self._out.put(lambda: self._begin(trip))
        try:
            return await trip.future
        except asyncio.CancelledError:
            with contextlib.suppress(RuntimeError):  # the loop over there is closed, and so is the coroutine
                self._there.call_soon_threadsafe(self._cancel, trip)
            raise

    def _begin(self, trip: _Trip[Any]) -> None:
        trip.task = self._there.create_task(trip.make(), context=trip.context)
        trip.task.add_done_callback(lambda _: self.home(lambda: self._settle(trip)))

    @staticmethod
    def _cancel(trip: _Trip[Any]) -> None:
        if trip.task is not None:  # it has begun: what was put before this was taken before this
            trip.task.cancel()

    @staticmethod
    def _settle(trip: _Trip[Any]) -> None:
        task, future = trip.task, trip.future
        assert task is not None, "only what has begun comes back"
        if task.cancelled():
            future.cancel()
            return
        error = task.exception()
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())

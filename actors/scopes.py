"""Structured concurrency inside one actor: time limits, task groups, locks. Each works as its asyncio namesake.

These objects live in the user's frames and are stored with them. Their `__aenter__` and `__aexit__` are plain
functions that return an
intention, so no frame of ours is ever in a pin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Generator
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sojourn.codecs.durations import duration

from .errors import Cancelled
from .inside import current_driver
from .intentions import EnterTimeout, LeaveGroup, LeaveTimeout, Park

if TYPE_CHECKING:
    from .branches import Task
    from .drive import Driver

T = TypeVar("T")
Duration = float | int | str | timedelta


class timeout:  # noqa: N801  # the public name is lower case, as asyncio's
    """`async with timeout("30s"):` — the block is cancelled when the time is over, and `TimeoutError` raised.

    The limit is durable: it holds while the workflow is parked and across nodes. None means no limit.
    """

    __slots__ = ("_cancels", "fired", "op", "seconds")

    def __init__(self, delay: Duration | None) -> None:
        self.seconds = None if delay is None else duration(delay)
        self.op = 0
        self.fired = False
        self._cancels = 0

    def expired(self) -> bool:
        """Whether the limit was reached inside the block."""
        return self.fired

    def __aenter__(self) -> Awaitable[timeout]:
        if self.op:
            raise RuntimeError("this timeout was entered before; make a new one for each block")
        return EnterTimeout(self)

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Awaitable[bool | None]:
        return LeaveTimeout(self, kind is not None and issubclass(kind, Cancelled))

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.seconds, self.op, self.fired, self._cancels)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.seconds, self.op, self.fired, self._cancels = state


class TaskGroup:
    """`async with TaskGroup() as group:` — leaves when all its tasks have ended; a failure cancels the others.

    Failures are raised together as an `ExceptionGroup`, as asyncio does.
    """

    __slots__ = ("aborting", "errors", "interrupted", "owner", "tasks")

    LEFT: Final = -1
    """Stands for the owner once the block is left."""

    def __init__(self) -> None:
        self.tasks: list[Task[Any]] = []
        self.errors: list[BaseException] = []
        self.owner: int | None = None
        self.aborting = False
        """A task or the block failed: the (other) tasks are being cancelled."""
        self.interrupted = False
        """A failed task made us cancel the block; that `Cancelled` is ours to swallow."""

    def __aenter__(self) -> Awaitable[TaskGroup]:
        return _Ready(self, _driver("TaskGroup").enter_group)

    def create_task(self, awaitable: Awaitable[T]) -> Task[T]:
        """Run an awaitable as a branch that belongs to this group."""
        refused = self._refuses()
        if refused:
            close = getattr(awaitable, "close", None)
            if callable(close):
                close()  # it never runs, and must not warn
            raise RuntimeError(refused)
        return _driver("TaskGroup.create_task").create_task(awaitable, self)

    def _refuses(self) -> str:
        if self.owner is None or self.owner == self.LEFT:
            return "TaskGroup.create_task() works inside its `async with` block"
        return "this TaskGroup is being cancelled and takes no more tasks" if self.aborting else ""

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Awaitable[bool | None]:
        return LeaveGroup(self, error)

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.tasks, self.errors, self.owner, self.aborting, self.interrupted)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.tasks, self.errors, self.owner, self.aborting, self.interrupted = state


class Semaphore:
    """At most `value` branches of this actor at a time. Waiters are served in order."""

    __slots__ = ("_value", "_waiting")

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError(f"expected a value of at least 0, received {value}")
        self._value = value
        self._waiting: deque[Park] = deque()

    def locked(self) -> bool:
        """Whether `acquire` would wait."""
        return self._value <= 0 or bool(self._waiting)

    def acquire(self) -> Awaitable[bool]:
        """Wait for a place and take it."""
        if not self.locked():
            self._value -= 1
            return _Ready(True)
        park = Park(self)
        self._waiting.append(park)
        return park

    def release(self) -> None:
        """Give the place back; the first waiter gets it."""
        if self._waiting:
            _driver("release").wake(self._waiting.popleft())
        else:
            self._value += 1

    def withdraw(self, park: Park) -> None:
        """A waiter was cancelled: it leaves the queue."""
        if park in self._waiting:
            self._waiting.remove(park)

    def __aenter__(self) -> Awaitable[bool]:
        return self.acquire()

    def __aexit__(self, *_: object) -> Awaitable[None]:
        self.release()
        return _Ready(None)

    def __getstate__(self) -> tuple[Any, ...]:
        return (self._value, self._waiting)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._value, self._waiting = state


class Lock(Semaphore):
    """One branch of this actor at a time."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(1)

    def release(self) -> None:
        """Give the lock to the first waiter, or leave it free. Raises `RuntimeError` when nobody holds it."""
        if self._value > 0:
            raise RuntimeError("release() of a lock that is not held: two branches would get in afterwards")
        super().release()


class _Ready:
    """An awaitable that never suspends."""

    __slots__ = ("_then", "_value")

    def __init__(self, value: Any, then: Any = None) -> None:
        self._value = value
        self._then = then

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> _Ready:
        return self

    def __next__(self) -> Any:
        if self._then is not None:
            self._then(self._value)
        raise StopIteration(self._value)

    def send(self, value: Any) -> Any:
        """As a branch of its own it is run by this."""
        return next(self)

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> Any:
        """Cancelled before it began."""
        try:
            raise error if value is None else value
        finally:
            del error, value  # the traceback of what is raised holds this frame

    def close(self) -> None:
        """Nothing is held here."""


def _driver(what: str) -> Driver:
    driver = current_driver()
    if driver is None:
        raise RuntimeError(f"{what} works only inside a workflow; outside, use asyncio's")
    return driver

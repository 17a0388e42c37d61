"""`map`: one step for each of many items, a bounded number at a time.

The items that have not begun are kept as what they will ask for, not as branches: a thousand of them cost a thousand encoded
arguments in the frame, and only `limit` branches exist. Results stand in the order of the items.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .errors import UnknownIntention
from .intentions import Call, Map, owed
from .step import StepCall

if TYPE_CHECKING:
    from .branches import Task

T = TypeVar("T")
R = TypeVar("R")
LIMIT: Final = 100
STATE: Final = 1
"""Version of what a `MapRun` stores of itself."""


def map(
    step: Callable[[T], StepCall[R]], items: Iterable[T], *, limit: int = LIMIT
) -> Awaitable[list[R]]:  # as the builtin, for steps
    """Run a step for every item, at most `limit` at a time; the results in the order of the items.

    `step` is a step of one argument, or one with options: `await map(charge.options(timeout="5s"), orders, limit=10)`. When one
    fails, those that run are cancelled, the others never begin, and its exception is raised. All arguments and results are in the
    frame meanwhile, so it bounds how many there can be: hand over keys of large values, not the values.
    """
    if limit < 1:
        raise ValueError(f"map(): expected a limit of at least 1, received {limit}")
    calls = []
    for item in items:
        call: object = step(item)
        if not isinstance(call, StepCall):
            raise TypeError(
                f"map() takes a step of one argument and the items: map(charge, orders); received something that gives a "
                f"{type(call).__qualname__}. For other awaitables use gather"
            )
        calls.append(call.intention())
    return owed(Map(MapRun(calls, limit)), "map")


class MapRun:
    """How far a `map` is: what has not begun, what runs, what came of the rest. Part of the frame."""

    __slots__ = ("calls", "failed", "limit", "results", "running")

    def __init__(self, calls: Iterable[Call], limit: int) -> None:
        self.calls = deque(enumerate(calls))
        """Number of the item and its call, in order, of those that have not begun."""
        self.limit = limit
        self.results: list[Any] = [None] * len(self.calls)
        self.running: list[tuple[int, Task[Any]]] = []
        self.failed: BaseException | None = None
        """The first exception."""

    def __repr__(self) -> str:
        return f"<MapRun of {len(self.results)}: {len(self.running)} run, {len(self.calls)} to begin>"

    def collect(self) -> None:
        """Take in the results of those that have ended."""
        still = []
        for number, task in self.running:
            if not task._ended:
                still.append((number, task))
            elif task._error is None:
                self.results[number] = task._value
            elif self.failed is None:
                self.failed = task._error
        self.running = still

    def __getstate__(self) -> tuple[Any, ...]:
        return (STATE, self.calls, self.limit, self.results, self.running, self.failed)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[0] != STATE:
            raise UnknownIntention(f"map state {state[0]}", f"this Sojourn reads map state {STATE}")
        _, self.calls, self.limit, self.results, self.running, self.failed = state

"""The live side of an actor: its branches, each a coroutine that is suspended at one await. This is what a frame
stores.

All branches of an actor are pickled as one graph, so objects that they share stay shared. Nothing of the protocol is
in here: what a branch
waits for is named by an operation number, which the envelope explains without unpickling.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Awaitable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sojourn.codecs import frames
from sojourn.codecs.context import capture_context, restore_context

from .errors import UnknownIntention
from .intentions import WaitBranches

if TYPE_CHECKING:
    from .intentions import Intention
    from .scopes import TaskGroup, timeout

T = TypeVar("T")
STATE = 2
"""Version of what `Branches` stores of itself. Of version 1 were `Branches` and each `Branch` objects of the pickle."""

TASK_STATE = 1
"""Version of what a `Task` stores of itself."""


class Task(Generic[T]):
    """A branch as the code that started it sees it: await it for its result, or cancel it. Made by `create_task` and
    the like."""

    __slots__ = ("_ended", "_error", "_group", "_value", "_waiters", "branch")

    def __init__(self, branch: int) -> None:
        self.branch = branch
        self._ended = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiters: list[Any] = []
        """Numbers of the branches that hear of its end. Once it has failed and there were none: whose task it was, as
        "<actor>/<run>", until somebody asks how it ended."""
        self._group: TaskGroup | None = None

    def __del__(self) -> None:
        """Nobody can ask any more: as asyncio does, say that a failure was never seen. Only in the actor's own code: what
        is discarded or collected elsewhere says nothing about that."""
        if getattr(self, "_ended", False) and self._waiters:
            from .inside import current_driver

            driver = current_driver()
            if driver is not None and driver.identity == self._waiters[0]:
                driver.never_seen(self)

    def __await__(self) -> Generator[Any, Any, T]:
        return WaitBranches((self,), "one", cancel=True).__await__()

    def done(self) -> bool:
        """Whether the branch has ended."""
        return self._ended

    def cancelled(self) -> bool:
        """Whether it ended by being cancelled."""
        from .errors import Cancelled

        return self._ended and isinstance(self._error, Cancelled)

    def result(self) -> T:
        """What it returned; raises what it raised. Raises `RuntimeError` while it runs."""
        if not self._ended:
            raise RuntimeError(f"task {self.branch} has not ended; await it, or ask done() first")
        self._waiters = []
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[no-any-return]  # the branch returned a T

    def exception(self) -> BaseException | None:
        """What it raised, or None."""
        if not self._ended:
            raise RuntimeError(f"task {self.branch} has not ended; await it, or ask done() first")
        self._waiters = []
        return self._error

    def cancel(self, msg: str = "") -> bool:
        """Ask the branch to end: `Cancelled` is raised at its await. False when it has ended already."""
        from .inside import current_driver

        driver = current_driver()
        if driver is None:
            raise RuntimeError("Task.cancel() works only inside the workflow that owns the task")
        return driver.cancel_task(self, msg)

    def __repr__(self) -> str:
        state = "ended" if self._ended else "running"
        return f"<Task of branch {self.branch}, {state}>"

    def __getstate__(self) -> tuple[Any, ...]:
        return (TASK_STATE, self.branch, self._ended, self._value, self._error, self._waiters, self._group)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _check(state, TASK_STATE)
        _, self.branch, self._ended, self._value, self._error, self._waiters, self._group = state


class Branch:
    """One coroutine of an actor. `intention` and `op` are set while it is suspended."""

    __slots__ = ("cancels", "coroutine", "intention", "must_cancel", "number", "op", "scopes", "task")

    def __init__(self, number: int, coroutine: Any, task: Task[Any] | None = None) -> None:
        self.number = number
        self.coroutine = coroutine
        self.task = task
        self.intention: Intention | None = None
        self.op = 0
        self.cancels = 0
        """How often it was cancelled and has not said otherwise (asyncio's `cancelling()`); kept across
        suspensions."""
        self.must_cancel = False
        """`Cancelled` is due at the next await."""
        self.scopes: list[timeout] = []

    def state(self) -> tuple[Any, ...]:
        """What a frame stores of it."""
        return (
            self.number,
            self.coroutine,
            self.task,
            self.intention,
            self.op,
            self.cancels,
            self.must_cancel,
            self.scopes,
        )

    @classmethod
    def of(cls, state: tuple[Any, ...]) -> Branch:
        """The branch whose `state` that is."""
        branch = cls(state[0], state[1], state[2])
        _, _, _, branch.intention, branch.op, branch.cancels, branch.must_cancel, branch.scopes = state
        return branch

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Of version 1."""
        _check(state, 1)
        branch = Branch.of(state[1:])
        for name in self.__slots__:
            setattr(self, name, getattr(branch, name))


class Branches:
    """All branches of one actor, with the number of the next. Number 0 is the workflow function itself."""

    __slots__ = ("_variables", "context", "next_number", "size", "table")

    def __init__(self) -> None:
        self.table: dict[int, Branch] = {}
        self.next_number = 0
        self.context = contextvars.Context()
        self._variables: dict[str, Any] = {}
        self.size = 0
        """Bytes of the frame when it was last stored (for the hot cache)."""

    def add(self, coroutine: Any, task: bool) -> Branch:
        """A new branch for a coroutine that has not run yet."""
        number = self.next_number
        self.next_number += 1
        branch = Branch(number, coroutine, Task(number) if task else None)
        self.table[number] = branch
        return branch

    def __iter__(self) -> Iterator[Branch]:
        return iter(self.table.values())

    def capture_variables(self) -> None:
        """Note which context variables the code has set, for the frame. Raises `ContextNotDeclared` for one that may
        not move."""
        self._variables = capture_context(self.context)

    def discard(self) -> None:
        """Forget the coroutines in silence: no cleanup code runs (I10)."""
        coroutines = [branch.coroutine for branch in self.table.values()]
        self.table = {}
        frames.discard(*coroutines)

    def state(self) -> tuple[Any, ...]:
        """What a frame stores: plain tuples, since a class costs the pickler several times what its contents do."""
        return STATE, self.next_number, self._variables, tuple([branch.state() for branch in self])

    @classmethod
    def of(cls, state: object) -> Branches:
        """The branches whose `state` that is. Raises `UnknownIntention` for what no Sojourn before this one wrote."""
        if isinstance(state, Branches):  # of version 1
            return state
        if not isinstance(state, tuple):
            raise UnknownIntention(f"a frame of {type(state).__qualname__}", "this Sojourn reads branches")
        _check(state, STATE)
        _, next_number, variables, table = state
        branches = cls()
        try:
            branches._set(next_number, variables, {each[0]: Branch.of(each) for each in table})
        except BaseException:
            frames.discard(*(each[1] for each in table))
            raise
        return branches

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Of version 1."""
        _check(state, 1)
        self._set(state[2], state[3], state[1])

    def _set(self, next_number: int, variables: dict[str, Any], table: dict[int, Branch]) -> None:
        self.table = table
        self.next_number = next_number
        self.context = restore_context(variables)
        self._variables = variables
        self.size = 0


def _check(state: tuple[Any, ...], version: int) -> None:
    if state[0] != version:
        raise UnknownIntention(f"branch state {state[0]}", f"this Sojourn reads branch state {version}")


def driveable(awaitable: Awaitable[Any]) -> Any:
    """The object with `send` and `throw` that runs an awaitable. Raises `TypeError` naming what was given instead."""
    if (
        hasattr(awaitable, "send")
        and hasattr(awaitable, "throw")
        and not hasattr(type(awaitable), "__sojourn__")
    ):
        return awaitable
    make = getattr(type(awaitable), "__await__", None)
    if make is None:
        raise TypeError(
            f"expected an awaitable (a step call, a workflow call, a coroutine), received {type(awaitable).__qualname__}"
            + ("; call the function: the parentheses are missing" if callable(awaitable) else "")
        )
    coroutine = make(awaitable)
    if not hasattr(coroutine, "send") or not hasattr(coroutine, "throw"):
        raise TypeError(
            f"expected an awaitable that can be given values, received {type(awaitable).__qualname__}, whose `__await__` "
            f"returns a {type(coroutine).__qualname__} without `send` and `throw`"
        )
    return coroutine


def is_fresh(coroutine: Any) -> bool:
    """Whether nobody has begun to run this coroutine. What is no coroutine or generator says so itself when it runs."""
    if inspect.iscoroutine(coroutine):
        return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
    if inspect.isgenerator(coroutine):
        return inspect.getgeneratorstate(coroutine) == inspect.GEN_CREATED
    return True

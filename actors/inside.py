"""Being inside a workflow: the thread-local that says so, and the guard that refuses foreign awaits.

A workflow's coroutine is driven by the engine on the node's event loop thread. If asyncio could see that loop from
inside, its
primitives would act on the *node's* task: `asyncio.timeout()` in a workflow would cancel the node, `asyncio.sleep()`
would suspend it in
a future that cannot be stored. So while the engine sends into a workflow, the running loop of the thread is a guard
object whose every use
raises `NotInWorkflow` naming the primitive, the user's line and the counterpart to use. On 3.14 and later asyncio
keeps the current task in
thread state rather than in a dictionary keyed by the loop, so there the task is taken out for the duration too.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio import events
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import NotInWorkflow

if TYPE_CHECKING:
    from .drive import Driver

_COUNTERPARTS = {
    "sleep": "sojourn.sleep",
    "gather": "sojourn.gather",
    "wait": "sojourn.wait",
    "wait_for": "sojourn.timeout",
    "timeout": "sojourn.timeout",
    "timeout_at": "sojourn.timeout",
    "Timeout": "sojourn.timeout",
    "TaskGroup": "sojourn.TaskGroup",
    "create_task": "sojourn.create_task",
    "ensure_future": "sojourn.create_task",
    "shield": "a child workflow (sojourn.spawn)",
    "Semaphore": "sojourn.Semaphore",
    "BoundedSemaphore": "sojourn.Semaphore",
    "Lock": "sojourn.Lock",
    "Event": "a Channel and sojourn.receive",
    "Condition": "a Channel and sojourn.receive",
    "Queue": "a Channel and sojourn.receive",
    "current_task": "sojourn.current.actor",
    "move_on_after": "sojourn.timeout",
    "fail_after": "sojourn.timeout",
    "create_task_group": "sojourn.TaskGroup",
}
_FOREIGN = ("asyncio", "anyio", "sniffio", "aiohttp", "httpx", "trio")


class _State(threading.local):
    driver: Driver | None = None


_state = _State()


def inside() -> bool:
    """Whether the code that asks runs inside a workflow, driven by the engine."""
    return _state.driver is not None


def current_driver() -> Driver | None:
    """The driver of the workflow this code runs in, or None outside of one."""
    return _state.driver


class _GuardLoop:
    """Stands where asyncio looks for the running loop; refuses every use."""

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name)

    def __hash__(self) -> int:  # asyncio looks up the current task in a dictionary keyed by the loop
        _refuse("current_task")

    def __eq__(self, other: object) -> bool:
        return self is other

    def create_task(self, coro: Any, **_: Any) -> NoReturn:
        """Refuse, closing the coroutine so that it does not warn about never having been awaited."""
        close = getattr(coro, "close", None)
        if callable(close):
            close()
        _refuse("create_task")

    def is_running(self) -> bool:
        """Tell `asyncio.run` and its kin that they are nested."""
        return True


_GUARD: Any = _GuardLoop()


def _refuse(attribute: str) -> NoReturn:
    """Raise `NotInWorkflow` naming the foreign primitive nearest to the user's code, and the user's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    package, primitive = "asyncio", attribute
    while frame is not None:
        root = (frame.f_globals.get("__name__") or "").split(".", 1)[0]
        if root not in _FOREIGN:
            break
        package = root
        primitive = _primitive(frame.f_code.co_qualname)
        frame = frame.f_back
    where, line = (frame.f_code.co_qualname, frame.f_lineno) if frame is not None else ("?", 0)
    raise NotInWorkflow(f"{package}.{primitive}", where, line, _COUNTERPARTS.get(primitive))


def _primitive(qualname: str) -> str:
    head = qualname.split(".", 1)[0]
    return {"Timeout": "timeout", "_LoopBoundMixin": "Lock"}.get(head, head)


def name_of_yield(value: object) -> str | None:
    """What was awaited when a foreign value reached the engine: bare None is `asyncio.sleep(0)`."""
    if value is None:
        return "asyncio.sleep"
    if isinstance(value, asyncio.Future):
        return "an asyncio future or task"
    return None


def counterpart(primitive: str) -> str | None:
    """The Sojourn name that does what a foreign primitive does."""
    return _COUNTERPARTS.get(primitive.rsplit(".", 1)[-1])


if sys.version_info >= (3, 14):
    _swap: Callable[[Any, Any], Any] = asyncio.tasks._swap_current_task  # type: ignore[attr-defined]  # private, see module text

    def _take_task(loop: Any) -> Any:
        return None if loop is None else _swap(loop, None)

    def _give_task(loop: Any, task: Any) -> None:
        if task is not None:
            _swap(loop, task)

else:

    def _take_task(loop: Any) -> Any:
        return None

    def _give_task(loop: Any, task: Any) -> None:
        return None


class entered:  # noqa: N801  # reads as the word it is: with entered(driver)
    """Be inside a workflow for the duration of a turn. Not reentrant: a workflow cannot drive another.

    A class and not a generator's context manager, twice: this stands in the way of every resumption.
    """

    __slots__ = ("_before", "_close_dropped", "_driver", "_hooks", "_loop", "_task")

    def __init__(self, driver: Driver, close_dropped: Callable[[Any], None] | None = None) -> None:
        self._driver = driver
        self._close_dropped = close_dropped

    def __enter__(self) -> None:
        self._loop = events._get_running_loop()
        self._task = _take_task(self._loop)
        # Else asyncio adopts the workflow's async generators and closes them in its own tasks.
        self._hooks = sys.get_asyncgen_hooks()
        self._before = _state.driver
        events._set_running_loop(_GUARD)
        _state.driver = self._driver
        sys.set_asyncgen_hooks(None, self._close_dropped)

    def __exit__(self, *_: object) -> None:
        sys.set_asyncgen_hooks(*self._hooks)
        _state.driver = self._before
        events._set_running_loop(self._loop)
        _give_task(self._loop, self._task)

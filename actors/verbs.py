"""What a workflow can say: `sleep`, `receive`, `send`, `spawn`, `gather`, ... As asyncio does it, where a namesake
exists.

Each verb returns an intention, or something that awaits one; none puts a frame of its own into the user's frame. A
duration is seconds, a
`timedelta`, or text such as `"24h"`, `"1h30m"`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, overload

from sojourn.codecs import data
from sojourn.codecs.durations import duration

from .channel import Channel, encode_mail
from .errors import OnlyInWorkflow
from .inside import current_driver
from .intentions import CancelChild, Checkpoint, Fork, Join, Receive, Send, Sleep, Spawn, WaitBranches, owed

if TYPE_CHECKING:
    from .branches import Task
    from .drive import Driver
    from .workflow import WorkflowCall

T = TypeVar("T")
R = TypeVar("R")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
Duration = float | int | str | timedelta
Policy = Literal["cancel", "abandon", "terminate"]
_JSON = data.Type(Any)
_MISSING: Any = object()


def sleep(delay: Duration) -> Awaitable[None]:
    """Suspend for a time; durable, up to the sleep limit (10 years). Raises `LimitExceeded` at the await when it is
    longer."""
    return owed(Sleep(seconds=duration(delay)), "sleep")


def sleep_until(when: datetime) -> Awaitable[None]:
    """Suspend until a moment of the broker's clock. Raises `ValueError` for a `datetime` without a time zone."""
    if when.tzinfo is None:
        raise ValueError(f"expected a datetime with a time zone, received {when.isoformat()} without one")
    return owed(Sleep(until=when.timestamp()), "sleep_until")


def receive(
    *channels: Channel[T] | str, timeout: Duration | None = None, default: Any = _MISSING
) -> Awaitable[T]:
    """Take the earliest mail of the channels. Raises `ReceiveTimeout` (or returns `default`, when given) when none
    comes in time."""
    return owed(_receive(channels, timeout, default, message=False), "receive")


def receive_message(*channels: Channel[Any] | str, timeout: Duration | None = None) -> Awaitable[Any]:
    """As `receive`, but the whole message: channel, value, sender, time."""
    return owed(_receive(channels, timeout, _MISSING, message=True), "receive_message")


def _receive(
    channels: tuple[Channel[Any] | str, ...], timeout: Duration | None, default: Any, *, message: bool
) -> Receive:
    if not channels:
        raise TypeError('receive() needs at least one channel: receive(approval) or receive("approval")')
    return Receive(
        channels=tuple(channel if isinstance(channel, Channel) else Channel(channel) for channel in channels),
        timeout=None if timeout is None else duration(timeout),
        default=None if default is _MISSING else default,
        has_default=default is not _MISSING,
        message=message,
    )


def send(
    target: str | Child[Any],
    channel: Channel[T] | str,
    payload: Any = None,
    *,
    timeout: Duration | None = None,
) -> Awaitable[None]:
    """Send mail to another actor; returns when it is stored. Raises `MailboxFull` when there was no room for it within the
    timeout (a minute, unless told otherwise).

    What is stored and then cannot be taken (the channel does not exist, the value does not fit, the actor has ended, its
    mailbox is full) is among the dead letters, noted with this operation, and logged.
    """
    known = channel if isinstance(channel, Channel) else Channel(channel)
    intention = Send(
        target=target.id if isinstance(target, Child) else str(target),
        channel=known.name,
        payload=encode_mail(known.type, known.name, payload),
        timeout=None if timeout is None else duration(timeout),
    )
    return owed(intention, "send")


def spawn(
    call: WorkflowCall[R],
    *,
    id: str | None = None,
    policy: Policy = "cancel",
    tags: Iterable[str] = (),
) -> Awaitable[Child[R]]:
    """Start a child workflow; returns once its start is committed. Await the child to join it.

    `policy` says what the end of this workflow means for a child that still runs: `cancel` it, `abandon` it (it goes
    on alone), or
    `terminate` it.
    """
    if not hasattr(call, "workflow"):
        raise TypeError(
            f"spawn() needs a workflow call such as spawn(onboard(user)), received {type(call).__qualname__}"
        )
    return owed(Spawn(call.workflow.name, call.encoded(), id, policy, tuple(tags)), "spawn")


class Child(Generic[R]):
    """A child workflow. Await it for its result; it raises what the child raised (`Rejected`, `ChildFailed`, ...).

    As an asyncio task it keeps a result that was taken, for as long as the code keeps the child.
    """

    __slots__ = ("id", "taken", "workflow")

    def __init__(self, id: str, workflow: str, taken: tuple[R] | None = None) -> None:
        self.id = id
        self.workflow = workflow
        self.taken = taken
        """The result, once the code has it."""

    def __await__(self) -> Generator[Any, Any, R]:
        return Join(self.id, self).__await__() if self.taken is None else _at_once(self.taken[0])

    def keep(self, result: R) -> None:
        """The result is given to the code, and the record keeps it no longer."""
        self.taken = (result,)

    def cancel(self, reason: str = "") -> Awaitable[None]:
        """Ask the child to end; its cleanup runs. Returns once the request is committed."""
        return owed(CancelChild(self.id, reason), "child.cancel")

    def terminate(self, reason: str = "") -> Awaitable[None]:
        """End the child without cleanup. Returns once the request is committed."""
        return owed(CancelChild(self.id, reason, terminate=True), "child.terminate")

    def __repr__(self) -> str:
        return f"<Child {self.id} ({self.workflow})>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Child) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple[Any, ...]:
        # As state, since a result may hold the child itself.
        return Child, (self.id, self.workflow), self.taken

    def __setstate__(self, taken: tuple[R]) -> None:
        self.taken = taken


def _at_once(value: R) -> Generator[Any, Any, R]:
    """A wait that is over; never suspended, so never in a pin."""
    return value
    yield


@overload
def gather(first: Awaitable[T1], second: Awaitable[T2], /) -> Awaitable[tuple[T1, T2]]: ...
@overload
def gather(
    first: Awaitable[T1], second: Awaitable[T2], third: Awaitable[T3], /
) -> Awaitable[tuple[T1, T2, T3]]: ...
@overload
def gather(
    first: Awaitable[T1], second: Awaitable[T2], third: Awaitable[T3], fourth: Awaitable[T4], /
) -> Awaitable[tuple[T1, T2, T3, T4]]: ...
@overload
def gather(*awaitables: Awaitable[T]) -> Awaitable[list[T]]: ...
@overload
def gather(*awaitables: Awaitable[T], return_exceptions: bool) -> Awaitable[list[T | BaseException]]: ...
def gather(*awaitables: Awaitable[Any], return_exceptions: bool = False) -> Awaitable[Any]:
    """Run awaitables side by side as branches of this actor and wait for all; results in order.

    As asyncio: the first error is raised at once and the others go on; cancelling the wait cancels them all.
    """
    return owed(Fork(awaitables, "outcomes" if return_exceptions else "all"), "gather")


def race(**named: Awaitable[T]) -> Awaitable[tuple[str, T]]:
    """Run awaitables side by side; name and result of the first to end. The others are cancelled, and have ended
    when this returns."""
    if not named:
        raise TypeError("race() needs at least one branch: race(answer=approval.receive(), late=sleep('1d'))")
    return owed(Fork(tuple(named.values()), "race", tuple(named)), "race")


def wait(*tasks: Task[Any], first: bool = False) -> Awaitable[None]:
    """Wait until all tasks, or the first, have ended; cancelling the wait leaves them running."""
    for task in tasks:
        if not hasattr(task, "branch"):
            raise TypeError(
                f"wait() takes tasks: wait(create_task(...)), received {type(task).__qualname__}; to run awaitables, gather them"
            )
    return owed(WaitBranches(tasks, "first" if first else "ended", cancel=False), "wait")


def create_task(awaitable: Coroutine[Any, Any, T] | Awaitable[T]) -> Task[T]:
    """Run an awaitable as a branch of this actor. It is cancelled when the workflow ends before it."""
    return _driver("create_task").create_task(awaitable)


def checkpoint() -> Awaitable[None]:
    """Store the workflow here, then go on."""
    return owed(Checkpoint(), "checkpoint")


def stage(label: str) -> None:
    """Say where the workflow logically is; shown by `list` and `describe`. Takes effect with the next commit."""
    _driver("stage").set_stage(label)


def tag(*labels: str) -> None:
    """Add labels to the workflow; takes effect with the next commit."""
    _driver("tag").add_tags(labels)


def publish_state(value: Any) -> None:
    """Make a JSON value readable from outside (`handle.state()`); takes effect with the next commit."""
    _driver("publish_state").publish_state(_JSON.encode(value))


def _driver(what: str) -> Driver:
    driver = current_driver()
    if driver is None:
        _outside(what)
    return driver


def _outside(what: str) -> NoReturn:
    raise OnlyInWorkflow(f"{what}()")

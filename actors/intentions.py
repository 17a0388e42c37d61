"""Intentions: what a workflow yields to say what it waits for (DESIGN 4). A closed, versioned set of immutable
values.

Awaiting an intention puts one `Leaf` on the awaiting frame's value stack, and no Python frame of ours: the pin of a
frame therefore
names the user's code alone. A leaf is stored with the frame, so its state is versioned: a later Sojourn reads what
this one wrote, or refuses
it by number.

The last group (`Fork` to `Park`) speaks of the branches of one actor. The engine answers them by itself: they cause
no commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .call_site import caller, warn_never_awaited
from .errors import OnlyInWorkflow, UnknownIntention
from .inside import inside

if TYPE_CHECKING:
    from .branches import Task
    from .channel import Channel
    from .mapping import MapRun
    from .scopes import Semaphore, TaskGroup
    from .scopes import timeout as TimeoutScope  # noqa: N812  # the public name is lower case, as asyncio's
    from .verbs import Child

PROTOCOL = 1
"""Version of the set of intentions."""

LEAF_STATE = 1
"""Version of what a leaf stores of itself in a frame."""


class Leaf:
    """The iterator that an awaited intention leaves on the value stack: yields the intention once, then returns what
    is sent."""

    __slots__ = ("intention", "yielded")

    def __init__(self, intention: Intention, yielded: bool = False) -> None:
        self.intention = intention
        self.yielded = yielded

    def __iter__(self) -> Leaf:
        return self

    def __next__(self) -> Intention:
        if not self.yielded:
            self.yielded = True
            return self.intention
        raise StopIteration

    def send(self, value: Any) -> Intention:
        """Start (first call) or end the wait with a value."""
        if not self.yielded:
            self.yielded = True
            return self.intention
        raise StopIteration(value)

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> Any:
        """End the wait with an exception."""
        try:
            raise error if value is None else value
        finally:
            del error, value  # the traceback of what is raised holds this frame

    def close(self) -> None:
        """End the wait without a word (nothing is held here)."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _leaf, (LEAF_STATE, self.intention, self.yielded)


def _leaf(state: int, intention: Intention, yielded: bool) -> Leaf:
    if state != LEAF_STATE:
        raise UnknownIntention(f"leaf state {state}", f"this Sojourn reads leaf state {LEAF_STATE}")
    return Leaf(intention, yielded)


class Intention:
    """Base of all intentions. Immutable; awaiting it suspends the workflow (or is answered at once, for internal
    ones)."""

    __slots__ = ("_owed",)
    kind: ClassVar[str] = ""
    version: ClassVar[int] = PROTOCOL

    def __await__(self) -> Generator[Any, Any, Any]:
        object.__setattr__(self, "_owed", None)
        if not inside():  # a plain event loop would only say "Task got bad yield"
            raise OnlyInWorkflow(
                f"awaiting {self.kind!r}", "in a step or outside, use asyncio's namesake or the client"
            )
        return Leaf(self)

    def __del__(self) -> None:
        owed = getattr(self, "_owed", None)
        if owed is not None:
            warn_never_awaited(*owed)

    def __reduce__(self) -> tuple[Any, ...]:
        kind: Any = type(self)
        object.__setattr__(self, "_owed", None)  # it lives on in the stored frame
        return _intention, (self.kind, self.version, tuple([getattr(self, name) for name in _names_of(kind)]))


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    """The fields that are stored of one of the dataclasses below, in order."""
    return tuple(field.name for field in fields(kind))


def owed(intention: Intention, verb: str) -> Awaitable[Any]:
    """The intention that a verb returns, with a note of the line at which the workflow called it: one that is never awaited
    does nothing, and says so (`NeverAwaited`).
    """
    if inside():
        object.__setattr__(intention, "_owed", (f"{verb}(...)", caller(3), "await it"))
    return intention


def _intention(kind: str, version: int, values: tuple[Any, ...]) -> Intention:
    cls = KINDS.get(kind)
    if cls is None or version != cls.version:
        known = ", ".join(f"{k}/{c.version}" for k, c in sorted(KINDS.items()))
        raise UnknownIntention(f"{kind}/{version}", f"this Sojourn knows {known}")
    return cls(*values)


@dataclass(frozen=True, slots=True)
class Sleep(Intention):
    """Wait `seconds`, or until `until` (broker time, Unix seconds)."""

    kind: ClassVar[str] = "sleep"
    seconds: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Call(Intention):
    """Run a step. `args` is JSON [args, kwargs] (or base64 pickle as a JSON string, for `values="pickle"`); options
    override the step's own. With `queue` a worker of that queue runs it, else this node."""

    kind: ClassVar[str] = "call"
    step: str
    args: bytes
    timeout: float | None = None
    attempts: int | None = None
    backoff: tuple[float, float] | None = None
    queue: str | None = None
    queue_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Receive(Intention):
    """Take the earliest mail of any of the channels. `message` asks for the whole message instead of its value."""

    kind: ClassVar[str] = "receive"
    channels: tuple[Channel[Any], ...]
    timeout: float | None = None
    default: Any = None
    has_default: bool = False
    message: bool = False


@dataclass(frozen=True, slots=True)
class Spawn(Intention):
    """Start a child; goes on after the commit that holds it. `args` is JSON [args, kwargs]."""

    kind: ClassVar[str] = "spawn"
    workflow: str
    args: bytes
    id: str | None = None
    policy: Literal["cancel", "abandon", "terminate"] = "cancel"
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Join(Intention):
    """Wait for the end of a child and take its result."""

    kind: ClassVar[str] = "join"
    child: str
    keeper: Child[Any] | None = field(default=None, compare=False, repr=False)
    """Where the result stays when the record gives it away."""


@dataclass(frozen=True, slots=True)
class Send(Intention):
    """Send mail to an actor; goes on when it is stored."""

    kind: ClassVar[str] = "send"
    target: str
    channel: str
    payload: bytes
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class CancelChild(Intention):
    """Cancel (or terminate) a child; goes on after the commit that holds it."""

    kind: ClassVar[str] = "cancel-child"
    child: str
    reason: str = ""
    terminate: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint(Intention):
    """Commit now, then go on."""

    kind: ClassVar[str] = "checkpoint"


@dataclass(frozen=True, slots=True)
class Fork(Intention):
    """Run awaitables as branches and wait for them as `WaitBranches` says. Answered at once: it never reaches a
    frame."""

    kind: ClassVar[str] = "fork"
    awaitables: tuple[Awaitable[Any], ...]
    mode: Literal["all", "outcomes", "race"] = "all"
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitBranches(Intention):
    """Wait for branches that run already.

    `one`: the task's own result; `all`: the list of results, the first error ends the wait; `outcomes`: results and
    errors in a list;
    `ended` and `first`: nothing, once all, or one, have ended; `race`: name and result of the first to end, once the
    others are cancelled.
    """

    kind: ClassVar[str] = "wait-branches"
    tasks: tuple[Task[Any], ...]
    mode: Literal["one", "all", "outcomes", "ended", "first", "race"] = "all"
    names: tuple[str, ...] = ()
    winner: int | None = None
    cancel: bool = True
    """A cancelled wait cancels the branches too, and ends when they have."""


@dataclass(frozen=True, slots=True, eq=False)
class Map(Intention):
    """Run a step for each of many items, a bounded number at a time. Compared by identity: it changes as it goes on."""

    kind: ClassVar[str] = "map"
    run: MapRun


@dataclass(frozen=True, slots=True)
class LeaveGroup(Intention):
    """Wait for the tasks of a group at the end of its block, which ended with `error` or with None."""

    kind: ClassVar[str] = "leave-group"
    group: TaskGroup
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class EnterTimeout(Intention):
    """Arm a time limit on the current branch."""

    kind: ClassVar[str] = "enter-timeout"
    scope: TimeoutScope


@dataclass(frozen=True, slots=True)
class LeaveTimeout(Intention):
    """Disarm it; answered with True when the limit was the reason for the cancellation that ends the block."""

    kind: ClassVar[str] = "leave-timeout"
    scope: TimeoutScope
    cancelled: bool


@dataclass(frozen=True, slots=True, eq=False)
class Park(Intention):
    """Wait for a place in a semaphore or lock of this actor. Compared by identity: two waiters of one semaphore are
    two."""

    kind: ClassVar[str] = "park"
    semaphore: Semaphore


KINDS: dict[str, type[Intention]] = {
    cls.kind: cls
    for cls in (
        Sleep,
        Call,
        Receive,
        Spawn,
        Join,
        Send,
        CancelChild,
        Checkpoint,
        Fork,
        WaitBranches,
        Map,
        LeaveGroup,
        EnterTimeout,
        LeaveTimeout,
        Park,
    )
}
"""The closed set. `Ask` and `Become` join it with the features that need them."""

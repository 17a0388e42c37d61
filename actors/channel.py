"""Channels: the names inside a mailbox that mail is sent to, with the type of what comes in."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable
from functools import lru_cache
from typing import Any, Generic, TypeVar, final, overload

from sojourn.broker.subjects import ChannelName, channel_name
from sojourn.codecs.data import Type
from sojourn.codecs.durations import Duration, duration
from sojourn.codecs.errors import PayloadError

from .errors import OnlyInWorkflow
from .inside import inside
from .intentions import Receive, owed

T = TypeVar("T")
D = TypeVar("D")


class _Missing:
    """The absence of a default, told apart from None."""

    def __repr__(self) -> str:
        return "<no default>"


_MISSING = _Missing()


@lru_cache(maxsize=1024)
def _cached_type(annotation: Any) -> Type:
    return Type(annotation)


def _type_of(annotation: Any) -> Type:
    """Building a converter is dear and a channel is rebuilt with every frame that waits on it, so converters
    are kept by annotation.
    """
    try:
        return _cached_type(annotation)
    except TypeError:  # an annotation that cannot be hashed, such as Annotated[int, [1]]
        return Type(annotation)


@final
class Channel(Generic[T]):
    """A named channel of a workflow: `approval = Channel("approval", Decision)`, then `await
    approval.receive(timeout="3d")`.

    The name is 1 to 128 characters of `A-Z a-z 0-9 _ = -` (else `InvalidName`). The type is checked here
    (`DataTypeError`); mail that does not fit it is dead-lettered and never reaches the workflow. Without a
    type any JSON value fits. Two channels are equal if name and type are.
    """

    __slots__ = ("_type", "annotation", "name")

    name: ChannelName
    annotation: Any
    """The type as it was given."""
    _type: Type

    @overload
    def __init__(self: Channel[Any], name: str) -> None: ...
    @overload
    def __init__(self, name: str, type: builtins.type[T]) -> None: ...
    @overload
    def __init__(self: Channel[Any], name: str, type: Any) -> None: ...
    def __init__(self, name: str, type: Any = Any) -> None:
        object.__setattr__(self, "name", channel_name(name))
        object.__setattr__(self, "annotation", type)
        object.__setattr__(self, "_type", _type_of(type))

    @property
    def type(self) -> Type:
        """Converts the channel's values to and from JSON."""
        return self._type

    @overload
    def receive(self, *, timeout: Duration | None = None) -> Awaitable[T]: ...
    @overload
    def receive(self, *, timeout: Duration | None = None, default: D) -> Awaitable[T | D]: ...
    def receive(self, *, timeout: Duration | None = None, default: Any = _MISSING) -> Awaitable[Any]:
        """Take the earliest mail of this channel; wait for it if there is none.

        After `timeout` (seconds, `timedelta` or text such as "3d") the `default` is returned, or
        `ReceiveTimeout` is raised if there is none. A cancelled receive puts its message back. Only inside a
        workflow.
        """
        if not inside():
            raise OnlyInWorkflow(
                f"Channel({self.name!r}).receive()",
                "from outside, send with client.handle(id).signal(channel, payload)",
            )
        seconds = None if timeout is None else duration(timeout)
        has_default = default is not _MISSING
        intention = Receive((self,), seconds, default if has_default else None, has_default)
        return owed(intention, f"{self.name}.receive")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"Channel({self.name!r}) cannot be changed ({name!r} was set); make another Channel"
        )

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Channel):
            return NotImplemented
        return self.name == other.name and bool(self.annotation == other.annotation)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        if self.annotation is Any:
            return f"Channel({self.name!r})"
        return f"Channel({self.name!r}, {getattr(self.annotation, '__name__', self.annotation)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # By value: a workflow may receive on a channel that is no global. Any is left out, for smaller
        # frames.
        return Channel, ((str(self.name),) if self.annotation is Any else (str(self.name), self.annotation))


def encode_mail(kind: Type, channel: str, value: Any) -> bytes:
    """A mail's payload, of the channel's type. Raises `PayloadError`, which names the channel."""
    try:
        return kind.encode(value)
    except PayloadError as error:
        error.of(f"mail on {channel}")
        raise

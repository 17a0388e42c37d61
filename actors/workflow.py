"""`@workflow`: a function whose suspended coroutine is durable."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, final, overload

from sojourn.codecs.data import Signature, Type
from sojourn.codecs.durations import Duration, duration

from .call_site import Site, binder, caller, warn_never_awaited
from .channel import Channel
from .channel_scan import channels_of
from .errors import DefinitionError
from .registry import Registry, check_definition, default_registry, definition_name, method_error

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

OnDefect = Literal["hold", "fail"]
Pin = Literal["code", "deployment"]


@final
class WorkflowCall(Awaitable[R_co], Generic[R_co]):
    """A call of a workflow that has not started. Immutable.

    Awaited in a workflow, or anywhere else, it runs inline: the function's own coroutine, with no frame of
    ours. `spawn` makes it a child, `client.start` an actor. Never used, it warns (`NeverAwaited`).
    """

    __slots__ = ("_site", "_used", "args", "kwargs", "workflow")

    __sojourn__ = True

    workflow: Workflow[..., R_co]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    _site: Site | None
    _used: bool

    def __init__(
        self,
        workflow: Workflow[..., R_co],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        site: Site | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "workflow", workflow)
        put(self, "args", args)
        put(self, "kwargs", kwargs)
        put(self, "_site", site)
        put(self, "_used", site is None)

    def __await__(self) -> Generator[Any, Any, R_co]:
        return self.coroutine().__await__()

    def coroutine(self) -> Coroutine[Any, Any, R_co]:
        """The function's coroutine for these arguments, not started."""
        self.use()
        return self.workflow.fn(*self.args, **self.kwargs)

    def encoded(self) -> bytes:
        """The arguments as JSON, to be started elsewhere. Raises `PayloadError` with the path to what does
        not fit.
        """
        self.use()
        return self.workflow.signature.encode_args(self.args, dict(self.kwargs))

    def use(self) -> None:
        """Say that something came of this call."""
        object.__setattr__(self, "_used", True)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a call cannot be changed ({name!r} was set); make another")

    def __del__(self) -> None:
        if self._site is not None and not self._used:
            warn_never_awaited(f"{self.workflow.name}(...)", self._site)

    def __reduce__(self) -> tuple[Any, ...]:
        self.use()  # it lives on in the stored frame
        return WorkflowCall, (self.workflow, self.args, dict(self.kwargs))

    def __repr__(self) -> str:
        return f"<WorkflowCall of {self.workflow.name}, not started>"


class Workflow(Generic[P, R]):
    """A durable function, made by `@workflow`. Calling it makes a `WorkflowCall`; `fn` is the function
    itself.
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, Coroutine[Any, Any, R]]

    def __init__(
        self,
        fn: Callable[P, Coroutine[Any, Any, R]],
        *,
        name: str | None = None,
        on_defect: OnDefect = "hold",
        pin: Pin = "code",
        channels: Iterable[Channel[Any] | str] | None = None,
        grace: Duration = 60.0,
        raises: Iterable[type[BaseException]] = (),
        retention: Duration | None = None,
    ) -> None:
        _check_async(fn)
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = definition_name(fn, name)
        self.signature = Signature.of(fn)
        """Converts arguments and result to and from JSON."""
        self.on_defect: OnDefect = one_of("on_defect", on_defect, ("hold", "fail"), fn)
        self.pin: Pin = one_of("pin", pin, ("code", "deployment"), fn)
        self.grace = duration(grace)
        """Seconds that cleanup code has after a cancel."""
        self.raises = exception_types("raises", raises, fn)
        self.retention = None if retention is None else duration(retention)
        """Seconds that the record is kept after the end; None: the node's limit."""
        self._declared = None if channels is None else _declared(channels)

    @functools.cached_property
    def channels(self) -> Mapping[str, Type | None] | None:
        """The channels it may receive on, by name, with their types (None: any JSON); None as a whole when
        that cannot be told.

        Declared with `channels=`, or else read off the code and what it refers to, when first asked: by then
        the module is complete.
        """
        return self._declared if self._declared is not None else channels_of(self.fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> WorkflowCall[R]:
        """A call that has not started. Raises `TypeError` if the arguments do not fit the function."""
        self._bind(*args, **kwargs)
        return WorkflowCall(self, args, kwargs, caller())

    @functools.cached_property
    def _bind(self) -> Callable[..., None]:
        return binder(self.fn)

    def fingerprint(self) -> list[str]:
        """Identities of the function's code and of what is nested in it, with source lines (DESIGN 5)."""
        from sojourn.codecs.frames import fingerprint_of

        return fingerprint_of(self.fn)

    def __set_name__(self, owner: type, name: str) -> None:
        raise method_error("workflow", f"{owner.__qualname__}.{name}")

    def __reduce__(self) -> str:
        return self.__qualname__  # by reference, as functions are

    def __repr__(self) -> str:
        return f"<Workflow {self.name} ({self.__module__}:{self.__qualname__})>"


class WorkflowDecorator(Protocol):
    """What `@workflow(...)` with options returns."""

    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]:
        """Make the workflow."""


@overload
def workflow(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    on_defect: OnDefect = "hold",
    pin: Pin = "code",
    channels: Iterable[Channel[Any] | str] | None = None,
    grace: Duration = 60.0,
    raises: Iterable[type[BaseException]] = (),
    retention: Duration | None = None,
    registry: Registry | None = None,
) -> WorkflowDecorator: ...
def workflow(
    fn: Callable[..., Any] | None = None, /, *, registry: Registry | None = None, **options: Any
) -> Any:
    """Make an `async def` function of a module a durable workflow.

    - `name`: what stored work calls it; default the function's name. Keep it when you rename the function.
    - `on_defect`: what an unexpected exception does. "hold" quarantines the actor with its last good record,
      "fail" ends it.
    - `pin`: what must be unchanged to resume a frame. "code": the functions in the frame; "deployment":
      everything.
    - `channels`: those it receives on; default: found in its code.
    - `grace`: how long cleanup code may take after a cancel.
    - `raises`: exception classes (besides builtins) that keep their class when they end it.
    - `retention`: how long the record is kept after the end.

    Raises `DefinitionError` with the remedy for what is no plain `async def`, `DataTypeError` for parameters
    or results that cannot cross as data, `DuplicateName` if another function has the name.
    """

    def define(fn: Callable[..., Any]) -> Workflow[..., Any]:
        check_options("@workflow", Workflow, options, fn)
        made = Workflow(fn, **options)
        (default_registry if registry is None else registry).add(made)
        return made

    return define if fn is None else define(fn)


def one_of(option: str, value: Any, allowed: tuple[str, ...], fn: Callable[..., Any]) -> Any:
    """Check an option that is one of a few words. Raises `DefinitionError`."""
    if value not in allowed:
        words = " or ".join(f'"{word}"' for word in allowed)
        raise DefinitionError(f"{option}={value!r}", function=fn.__qualname__, remedy=f"expected {words}")
    return value


def check_options(decorator: str, made: type, options: Mapping[str, Any], fn: Any) -> None:
    """Check the options of a decorator against the class it makes. Raises `DefinitionError`."""
    from difflib import get_close_matches

    known = [p.name for p in inspect.signature(made).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options.keys() - set(known):
        near = get_close_matches(option, known, n=1)
        has = f"has {', '.join(known)} and registry"
        raise DefinitionError(
            f"{decorator} has no option `{option}`",
            function=getattr(fn, "__qualname__", repr(fn)),
            remedy=f"did you mean `{near[0]}`? It {has}" if near else f"it {has}",
        )


def exception_types(option: str, value: Any, fn: Callable[..., Any]) -> tuple[type[BaseException], ...]:
    """Check an option that lists exception classes. Raises `DefinitionError`."""
    classes = (value,) if isinstance(value, type) else tuple(value)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise DefinitionError(
                f"{option} holds {cls!r}",
                function=fn.__qualname__,
                remedy=f"{option}=[...] lists exception classes",
            )
    return classes


def _check_async(fn: Any) -> None:
    if isinstance(fn, Workflow):
        raise DefinitionError("@workflow is there twice", function=fn.__qualname__, remedy="remove one")
    if type(fn).__name__ == "Step" and type(fn).__module__ == f"{__package__}.step":
        raise DefinitionError(
            "@workflow is above @step",
            function=fn.__qualname__,
            remedy="a function is one or the other: remove one",
        )
    check_definition(fn, "workflow")
    if inspect.isasyncgenfunction(fn):
        raise DefinitionError(
            "is an async generator",
            function=fn.__qualname__,
            remedy="a workflow returns its result: replace `yield` by `return`",
        )
    if not inspect.iscoroutinefunction(fn):
        raise DefinitionError(
            "is a plain `def`",
            function=fn.__qualname__,
            remedy="write `async def`; if it has effects and awaits nothing, make it a @step instead",
        )


def _declared(channels: Iterable[Channel[Any] | str]) -> dict[str, Type | None]:
    named = [channels] if isinstance(channels, Channel | str) else list(channels)
    made = [channel if isinstance(channel, Channel) else Channel(channel) for channel in named]
    return {channel.name: None if channel.annotation is Any else channel.type for channel in made}

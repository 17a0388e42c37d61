"""`@step`: a function with effects, called from a workflow. It runs at least once; its result is recorded
once.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, final, overload

from sojourn.codecs.data import Signature
from sojourn.codecs.durations import Duration, duration

from .call_site import Site, binder, caller, warn_never_awaited
from .errors import DefinitionError
from .inside import inside
from .intentions import Call, Leaf
from .pickled import PickledSignature
from .registry import Registry, check_definition, default_registry, definition_name, method_error
from .retry import Retry
from .workflow import Workflow, check_options, exception_types, one_of

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Values = Literal["json", "pickle"]
RecordResult = Literal["with_next", "at_once"]
AnySignature: TypeAlias = Signature | PickledSignature

DEFAULT_TIMEOUT = 600.0
"""Seconds that one attempt may take."""


DEFAULT_QUEUE_TIMEOUT = 86_400.0
"""Seconds that an attempt of a queued step may wait for a worker: a backlog is what queues are for."""
_QUEUE = re.compile(r"[A-Za-z0-9_=-]{1,128}")


class _Overrides:
    """Options of one call that differ from the step's own."""

    __slots__ = ("attempts", "backoff", "queue", "queue_timeout", "timeout")

    def __init__(
        self,
        timeout: float | None = None,
        attempts: int | None = None,
        backoff: tuple[float, float] | None = None,
        queue: str | None = None,
        queue_timeout: float | None = None,
    ) -> None:
        self.timeout = timeout
        self.attempts = attempts
        self.backoff = backoff
        self.queue = queue
        self.queue_timeout = queue_timeout

    def __reduce__(self) -> tuple[Any, ...]:
        return _Overrides, (self.timeout, self.attempts, self.backoff, self.queue, self.queue_timeout)


_NO_OVERRIDES = _Overrides()


@final
class StepCall(Coroutine[Any, Any, R_co], Generic[R_co]):
    """A call of a step that has not run.

    Awaited inside a workflow it suspends the workflow; anywhere else it runs the function right there (sync
    functions in a thread). Which of the two is decided when it is awaited. It can be awaited once. Never
    awaited, it warns (`NeverAwaited`).
    """

    __slots__ = ("_args", "_encoded", "_iterator", "_kwargs", "_overrides", "_site", "_used", "step")

    __sojourn__ = True
    """Tells the engine to drive what `__await__` returns, not this object."""

    def __init__(
        self,
        step: Step[..., R_co],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        encoded: bytes | None = None,
        overrides: _Overrides = _NO_OVERRIDES,
        site: Site | None = None,
    ) -> None:
        self.step = step
        self._args = args
        self._kwargs = kwargs or {}
        self._encoded = encoded
        self._overrides = overrides
        self._site = site
        self._used = site is None
        self._iterator: Any = None

    @property
    def __name__(self) -> str:
        return self.step.__name__

    def __await__(self) -> Generator[Any, Any, R_co]:
        if self._iterator is not None:
            raise RuntimeError(
                f"this call of step {self.step.name!r} was awaited before; call the step again"
            )
        self._used = True
        self._iterator = self._suspend() if inside() else self._run()
        return cast("Generator[Any, Any, R_co]", self._iterator)

    def _suspend(self) -> Any:
        return self.intention().__await__()

    def intention(self) -> Call:
        """What a workflow that awaits this call yields. The call counts as used."""
        self._used = True
        options = self._overrides
        return Call(
            self.step.name,
            self.encoded(),
            options.timeout,
            options.attempts,
            options.backoff,
            options.queue or self.step.queue,
            options.queue_timeout,
        )

    def _run(self) -> Any:
        args, kwargs = self._args, self._kwargs
        if self._encoded is not None:
            args, kwargs = self.step.signature.decode_args(self._encoded)
        if self.step.is_async:
            return cast("Coroutine[Any, Any, R_co]", self.step.fn(*args, **kwargs)).__await__()
        return asyncio.to_thread(self.step.fn, *args, **kwargs).__await__()

    def encoded(self) -> bytes:
        """The arguments as they cross: JSON [args, kwargs]. Raises `PayloadError` with the path to what does
        not fit.
        """
        if self._encoded is None:
            self._encoded = self.step.signature.encode_args(self._args, self._kwargs)
        return self._encoded

    def send(self, value: Any) -> Any:
        """Run on, as a coroutine does."""
        return self._started().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise in the step, as a coroutine does."""
        return self._started().throw(*error)

    def close(self) -> None:
        """End it without a result."""
        self._used = True
        if self._iterator is not None:
            self._iterator.close()

    def _started(self) -> Any:
        if self._iterator is None:
            self.__await__()
        return self._iterator

    def __del__(self) -> None:
        if self._site is not None and not self._used:
            warn_never_awaited(f"{self.step.name}(...)", self._site)

    def __reduce__(self) -> tuple[Any, ...]:
        self._used = True  # it lives on in the stored frame
        leaf = self._iterator if isinstance(self._iterator, Leaf) else None
        return _restore_call, (self.step, self.encoded(), self._overrides, leaf)

    def __repr__(self) -> str:
        return f"<StepCall of {self.step.name}, {'not run' if self._iterator is None else 'awaited'}>"


def _restore_call(
    step: Step[..., Any], encoded: bytes, overrides: _Overrides, leaf: Leaf | None
) -> StepCall[Any]:
    call: StepCall[Any] = StepCall(step, encoded=encoded, overrides=overrides)
    call._iterator = leaf
    return call


class Step(Generic[P, R]):
    """A function with effects, made by `@step`. Calling it makes a `StepCall`; `fn` is the function itself."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, Any]

    def __init__(
        self,
        fn: Callable[P, Any],
        *,
        name: str | None = None,
        retry: Retry | int = Retry(),  # noqa: B008  # immutable
        timeout: Duration = DEFAULT_TIMEOUT,
        values: Values = "json",
        record: RecordResult = "with_next",
        raises: Iterable[type[BaseException]] = (),
        no_retry: Iterable[type[BaseException]] = (),
        queue: str | None = None,
        queue_timeout: Duration = DEFAULT_QUEUE_TIMEOUT,
    ) -> None:
        _check_function(fn)
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = definition_name(fn, name)
        self.is_async = inspect.iscoroutinefunction(fn)
        self.values: Values = one_of("values", values, ("json", "pickle"), fn)
        self.signature: AnySignature = Signature.of(fn) if values == "json" else PickledSignature(fn)
        """Converts arguments and result to and from what crosses."""
        self.retry = Retry.of(retry)
        self.timeout = _timeout(timeout)
        """Seconds that one attempt may take."""
        self.record: RecordResult = one_of("record", record, ("with_next", "at_once"), fn)
        self.raises = exception_types("raises", raises, fn)
        self.no_retry = exception_types("no_retry", no_retry, fn)
        self.queue = None if queue is None else _queue_name(queue, fn)
        """Queue whose workers run it; None: the node of the workflow does."""
        self.queue_timeout = duration(queue_timeout)
        """Seconds that an attempt may wait for a worker."""
        if queue is not None and values == "pickle":
            raise DefinitionError(
                f'queue={queue!r} with values="pickle"',
                function=fn.__qualname__,
                remedy="workers unpickle nothing: let arguments and result cross as data, or pass a reference",
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> StepCall[R]:
        """A call that has not run. Raises `TypeError` if the arguments do not fit the function; in a workflow
        also `PayloadError` if they cannot cross (they are copied here and now).
        """
        return self._call(args, kwargs, _NO_OVERRIDES, caller())

    def options(
        self,
        *,
        timeout: Duration | None = None,
        retry: Retry | int | None = None,
        queue: str | None = None,
        queue_timeout: Duration | None = None,
    ) -> StepWithOptions[P, R]:
        """The same step with other options, for one call: `run_checks.options(timeout="1h")(profile)`.

        `queue` must be one that a step of the app names (`NoSuchQueue` at the await otherwise).
        """
        policy = None if retry is None else Retry.of(retry)
        overrides = _Overrides(
            None if timeout is None else _timeout(timeout),
            None if policy is None else policy.attempts,
            None if policy is None else (policy.backoff.first, policy.backoff.most),
            None if queue is None else _queue_name(queue, self.fn),
            None if queue_timeout is None else duration(queue_timeout),
        )
        return StepWithOptions(self, overrides)

    def _call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], overrides: _Overrides, site: Site
    ) -> StepCall[R]:
        if inside():
            return StepCall(
                self, encoded=self.signature.encode_args(args, kwargs), overrides=overrides, site=site
            )
        self._bind(*args, **kwargs)
        return StepCall(self, args, kwargs, overrides=overrides, site=site)

    @functools.cached_property
    def _bind(self) -> Callable[..., None]:
        return binder(self.fn)

    def __set_name__(self, owner: type, name: str) -> None:
        raise method_error("step", f"{owner.__qualname__}.{name}")

    def __reduce__(self) -> str:
        return self.__qualname__  # by reference, as functions are

    def __repr__(self) -> str:
        return f"<Step {self.name} ({self.__module__}:{self.__qualname__})>"


@final
class StepWithOptions(Generic[P, R]):
    """A step with other options, made by `Step.options`."""

    __slots__ = ("_overrides", "step")

    def __init__(self, step: Step[P, R], overrides: _Overrides) -> None:
        self.step = step
        self._overrides = overrides

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> StepCall[R]:
        """A call with these options that has not run. Raises as the step's own."""
        return self.step._call(args, kwargs, self._overrides, caller())

    def __reduce__(self) -> tuple[Any, ...]:
        return StepWithOptions, (self.step, self._overrides)

    def __repr__(self) -> str:
        return f"<Step {self.step.name} with options>"


class StepDecorator(Protocol):
    """What `@step(...)` with options returns."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | int = Retry(),  # noqa: B008  # immutable
    timeout: Duration = DEFAULT_TIMEOUT,
    values: Values = "json",
    record: RecordResult = "with_next",
    raises: Iterable[type[BaseException]] = (),
    no_retry: Iterable[type[BaseException]] = (),
    queue: str | None = None,
    queue_timeout: Duration = DEFAULT_QUEUE_TIMEOUT,
    registry: Registry | None = None,
) -> StepDecorator: ...
def step(fn: Callable[..., Any] | None = None, /, *, registry: Registry | None = None, **options: Any) -> Any:
    """Make a function of a module, `async def` or plain `def`, a step.

    - `name`: what stored work calls it; default the function's name. Keep it when you rename the function.
    - `retry`: default 3 attempts, waiting 1 s to 30 s between them. Never retried: `Rejected`, `TypeError`,
      `Cancelled`, `no_retry=[...]`.
    - `timeout`: of one attempt; default 10 minutes.
    - `values`: "json" carries arguments and result by annotation; "pickle" carries anything that pickles.
    - `record`: "at_once" stores the result before the workflow goes on; by default it is stored with the next
      suspension.
    - `raises`: exception classes (besides builtins) that keep their class in the workflow; others become
      `StepFailed`.
    - `queue`: a worker of that queue runs it (`sojourn worker APP --queue NAME`) instead of the workflow's node.
    - `queue_timeout`: how long an attempt may wait for a worker, besides its `timeout`; default a day.

    Raises `DefinitionError` with the remedy for what is no plain function, `DataTypeError` for parameters or
    results that cannot cross as data, `DuplicateName` if another function has the name.
    """

    def define(fn: Callable[..., Any]) -> Step[..., Any]:
        check_options("@step", Step, options, fn)
        made: Step[..., Any] = Step(fn, **options)
        (default_registry if registry is None else registry).add(made)
        return made

    return define if fn is None else define(fn)


def _timeout(value: Duration) -> float:
    seconds = duration(value)
    if not seconds:
        raise ValueError(
            'timeout=0 leaves a step no time; give it seconds, a timedelta, or text such as "30s"'
        )
    return seconds


def _queue_name(queue: Any, fn: Callable[..., Any]) -> str:
    if not isinstance(queue, str) or _QUEUE.fullmatch(queue) is None:
        raise DefinitionError(
            f"queue={queue!r} is no name of a queue",
            function=fn.__qualname__,
            remedy="use 1 to 128 of the characters A-Z a-z 0-9 _ = -",
        )
    return queue


def _check_function(fn: Any) -> None:
    if isinstance(fn, Step):
        raise DefinitionError("@step is there twice", function=fn.__qualname__, remedy="remove one")
    if isinstance(fn, Workflow):
        raise DefinitionError(
            "@step is above @workflow",
            function=fn.__qualname__,
            remedy="a function is one or the other: remove one",
        )
    check_definition(fn, "step")
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise DefinitionError(
            "is a generator",
            function=fn.__qualname__,
            remedy="a step returns its result: replace `yield` by `return`",
        )

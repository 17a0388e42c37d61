"""`@lifespan`: resources (pools, clients) that are open for as long as a node runs steps; `resource(Type)`
gives them to steps.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, overload

from .errors import DefinitionError, NoSuchResource
from .registry import Registry, default_registry

T = TypeVar("T")


class Lifespan:
    """An async generator function that opens something, yields it once, and closes it. Made by `@lifespan`."""

    __name__: str
    __qualname__: str

    def __init__(self, fn: Callable[[], AsyncIterator[Any]]) -> None:
        if not inspect.isasyncgenfunction(fn):
            raise DefinitionError(
                "@lifespan serves async generator functions",
                function=getattr(fn, "__qualname__", repr(fn)),
                remedy="write `async def` with one `yield` of the resource: open before it, close after it",
            )
        required = [
            parameter.name
            for parameter in inspect.signature(fn).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if required:
            raise DefinitionError(
                f"a lifespan is called without arguments, this one needs {', '.join(required)}",
                function=fn.__qualname__,
                remedy="read settings inside it",
            )
        self.__module__, self.__name__, self.__qualname__ = fn.__module__, fn.__name__, fn.__qualname__
        self.__doc__ = fn.__doc__
        self.fn = fn
        self.name = f"{fn.__module__}:{fn.__qualname__}"

    def __repr__(self) -> str:
        return f"<Lifespan {self.name}>"


@overload
def lifespan(fn: Callable[[], AsyncIterator[Any]], /) -> Lifespan: ...
@overload
def lifespan(
    *, registry: Registry | None = None
) -> Callable[[Callable[[], AsyncIterator[Any]]], Lifespan]: ...
def lifespan(
    fn: Callable[[], AsyncIterator[Any]] | None = None, /, *, registry: Registry | None = None
) -> Any:
    """Open a resource before a node is ready and close it after its drain; steps get it with
    `resource(Type)`.

    @lifespan
    async def database() -> AsyncIterator[Pool]:
        async with create_pool(URL) as pool:
            yield pool
    """

    def define(fn: Callable[[], AsyncIterator[Any]]) -> Lifespan:
        made = Lifespan(fn)
        (default_registry if registry is None else registry).add(made)
        return made

    return define if fn is None else define(fn)


class Resources:
    """What the lifespans of a node have opened."""

    def __init__(self, opened: Iterable[object] = ()) -> None:
        self._opened = tuple(opened)

    def get(self, wanted: type[T]) -> T:
        """The one that is a `wanted` (the last opened, if several are). Raises `NoSuchResource` naming those
        there are.
        """
        for value in reversed(self._opened):
            if isinstance(value, wanted):
                return value
        raise NoSuchResource(_name(wanted), (_name(type(value)) for value in self._opened))

    def __len__(self) -> int:
        return len(self._opened)

    @staticmethod
    @asynccontextmanager
    async def open(lifespans: Iterable[Lifespan]) -> AsyncIterator[Resources]:
        """Open all in order, on the loop that steps run on; close them in reverse. One that fails to open
        closes those before it.
        """
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(asynccontextmanager(each.fn)()) for each in lifespans]
            yield Resources(opened)


resources_variable: ContextVar[Resources | None] = ContextVar("sojourn_resources", default=None)


def resource(wanted: type[T]) -> T:
    """The open resource of a type, in a step. Raises `NoSuchResource`: outside of steps there are none, so
    none ends up in a frame.
    """
    available = resources_variable.get()
    return (available or Resources()).get(wanted)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"

"""Workflows and steps by name. Stored work names them, so one name means one function for as long as anything
of it is stored.

The decorators add to `default_registry`, one per process: a node runs one app. Tests and tools that need
their own pass `registry=` to the decorators.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import DefinitionError, DuplicateName, NoSuchStep, NoSuchWorkflow

if TYPE_CHECKING:
    from .lifespan import Lifespan
    from .step import Step
    from .workflow import Workflow

T = TypeVar("T")


class Registry:
    """Workflows, steps and lifespans of one app."""

    def __init__(self, members: Iterable[Workflow[..., Any] | Step[..., Any]] = ()) -> None:
        self._workflows: dict[str, Workflow[..., Any]] = {}
        self._steps: dict[str, Step[..., Any]] = {}
        self._lifespans: dict[str, Lifespan] = {}
        for member in members:
            self.add(member)

    @property
    def workflows(self) -> Mapping[str, Workflow[..., Any]]:
        """All workflows by name, read-only."""
        return MappingProxyType(self._workflows)

    @property
    def steps(self) -> Mapping[str, Step[..., Any]]:
        """All steps by name, read-only."""
        return MappingProxyType(self._steps)

    @property
    def queues(self) -> frozenset[str]:
        """The queues that steps name with `queue=`."""
        return frozenset(step.queue for step in self._steps.values() if step.queue is not None)

    @property
    def lifespans(self) -> tuple[Lifespan, ...]:
        """All lifespans, in the order of their definition."""
        return tuple(self._lifespans.values())

    def add(self, member: Workflow[..., Any] | Step[..., Any] | Lifespan) -> None:
        """Add a definition. The same function again (a reloaded module) replaces the former; another raises
        `DuplicateName`.
        """
        from .lifespan import Lifespan
        from .workflow import Workflow

        if isinstance(member, Lifespan):
            self._lifespans[member.name] = member
        elif isinstance(member, Workflow):
            self._put(self._workflows, "workflow", member.name, member)
        else:
            self._put(self._steps, "step", member.name, member)

    @staticmethod
    def _put(table: dict[str, T], kind: str, name: str, member: T) -> None:
        former = table.get(name)
        if former is not None and _place(former) != _place(member):
            raise DuplicateName(kind, name, first=_place(former), second=_place(member))
        table[name] = member

    def workflow(self, name: str) -> Workflow[..., Any]:
        """The workflow of that name. Raises `NoSuchWorkflow` with the nearest names."""
        found = self._workflows.get(name)
        if found is None:
            raise NoSuchWorkflow(name, self._workflows)
        return found

    def step(self, name: str) -> Step[..., Any]:
        """The step of that name. Raises `NoSuchStep` with the nearest names."""
        found = self._steps.get(name)
        if found is None:
            raise NoSuchStep(name, self._steps)
        return found

    def __iter__(self) -> Iterator[Workflow[..., Any] | Step[..., Any]]:
        yield from self._workflows.values()
        yield from self._steps.values()

    def __repr__(self) -> str:
        return (
            f"<Registry: {len(self._workflows)} workflows, {len(self._steps)} steps, "
            f"{len(self._lifespans)} lifespans>"
        )

    @staticmethod
    def for_app(app: str | Any) -> Registry:
        """The registry of an app: "module", "module:attribute" or a module object.

        The module is imported, which registers what it defines and imports. An attribute names a `Registry`,
        or a function without arguments that returns one, or an iterable of workflows and steps, where one
        process holds several apps. Raises `DefinitionError`.
        """
        module_name, attribute = app.partition(":")[::2] if isinstance(app, str) else (app.__name__, "")
        module = importlib.import_module(module_name) if isinstance(app, str) else app
        if not attribute:
            return default_registry
        target: Any = module
        for part in attribute.split("."):
            try:
                target = getattr(target, part)
            except AttributeError:
                raise DefinitionError(
                    f"module {module_name!r} has no attribute {attribute!r}",
                    function=f"app {app!r}",
                    remedy="name a module, or a Registry in it",
                ) from None
        return _registry_of(target, app)


def _registry_of(target: Any, app: object) -> Registry:
    from .step import Step
    from .workflow import Workflow

    if isinstance(target, Registry):
        return target
    if isinstance(target, Workflow | Step):
        return default_registry
    if callable(target):
        target = target()
        if isinstance(target, Registry):
            return target
    if isinstance(target, Iterable):
        members = tuple(target)
        if members and all(isinstance(member, Workflow | Step) for member in members):
            return Registry(members)
    raise DefinitionError(
        f"expected a Registry or an iterable of workflows and steps, received {type(target).__qualname__}",
        function=f"app {app!r}",
        remedy="name the module alone to serve all it defines",
    )


def _place(member: object) -> str:
    return f"{member.__module__}:{getattr(member, '__qualname__', '?')}"


def check_definition(fn: Callable[..., Any], kind: str) -> None:
    """Refuse what neither @workflow nor @step can serve. Raises `DefinitionError` with the remedy."""
    if isinstance(fn, staticmethod | classmethod | property):
        raise DefinitionError(
            f"@{kind} is above @{type(fn).__name__}",
            function=getattr(fn, "__qualname__", repr(fn)),
            remedy=f"put @{kind} on a plain function of the module",
        )
    if isinstance(fn, type) or not hasattr(fn, "__code__") or not hasattr(fn, "__qualname__"):
        raise DefinitionError(
            f"@{kind} serves plain functions, received {type(fn).__qualname__}",
            function=getattr(fn, "__qualname__", repr(fn)),
            remedy=f"put @{kind} on a `def` of the module",
        )
    owner = fn.__qualname__.rpartition(".")[0]
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    if owner and not owner.endswith("<locals>") and names and names[0] in ("self", "cls"):
        raise method_error(kind, fn.__qualname__)


def method_error(kind: str, function: str) -> DefinitionError:
    """The error for a decorator on a method."""
    return DefinitionError(
        f"@{kind} is on a method",
        function=function,
        remedy=f"a {kind} is found again by module and name, without an instance: "
        "make it a plain function and pass what it needs as arguments",
    )


def definition_name(fn: Callable[..., Any], name: str | None) -> str:
    """The name a definition is registered under: the given one, else `__name__`, for nested functions
    `__qualname__`.
    """
    if name is None:
        return fn.__qualname__ if "." in fn.__qualname__ else fn.__name__
    if not name or len(name) > 128 or not name.isprintable():
        raise DefinitionError(
            f"name={name!r} is not a name",
            function=fn.__qualname__,
            remedy="use 1 to 128 printable characters",
        )
    return name


default_registry = Registry()
"""What the decorators add to unless told otherwise."""

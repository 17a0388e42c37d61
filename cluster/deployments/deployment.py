"""`deployment.<label>`: what one released version of the user's code is, as its nodes register it.

Two readers: `versions` compares identities, to tell which pins a deployment satisfies; `stack` prints the
source lines at which actors sleep, also when no node with that code lives and without unpickling anything. So
the identities of the workflows' and steps' code are stored, with those of every function and the shape of every
data class in the app's modules (a frame may stand in any of them), and the source text of every function in the
modules that define workflows and steps (helpers are awaited too).

A label names one version. Without one given it is drawn from the code itself, so the same code has the same
label on every node. Source text is bounded; what does not fit is left out, longest function first, and
`stack` then shows module and line number alone.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.errors import WrongLastSequence
from sojourn.broker.subjects import token
from sojourn.codecs import frames
from sojourn.codecs.data import UNDECODABLE
from sojourn.codecs.errors import SojournError
from sojourn.codecs.identity import CodeNotFound
from sojourn.codecs.shapes import shape_of

if TYPE_CHECKING:
    from sojourn.actors.registry import Registry

MAX_SOURCE_BYTES: Final = 384 * 1024
"""Of all source text together: the record must fit into one message of a server with default limits."""
MAX_CODE: Final = 4_000
"""Identities beyond those of workflows and steps; an app with more is known by these only."""
_KEY: Final = "deployment"


class Source(msgspec.Struct, frozen=True, array_like=True):
    """The text of one function."""

    module: str
    function: str
    """Qualified name."""
    first_line: int
    lines: tuple[str, ...]


class Deployment(msgspec.Struct, frozen=True):
    """The value of `deployment.<label>`."""

    label: str
    app: str
    python: str
    """Minor version ("3.11"): part of every identity."""
    workflows: dict[str, tuple[str, ...]]
    """By name, the identities of its code ("module:qualname#hash")."""
    steps: dict[str, tuple[str, ...]]
    sources: tuple[Source, ...] = ()
    left_out: int = 0
    """Functions whose text did not fit."""
    code: tuple[str, ...] = ()
    """Identities of all functions, and shapes of all data classes, in the app's modules: what pins may name."""

    def identities(self) -> frozenset[str]:
        """All identities of all workflows and steps."""
        return frozenset(one for group in (*self.workflows.values(), *self.steps.values()) for one in group)

    def lacks(self, pin: Iterable[str], ran_by: Deployment | None) -> tuple[str, ...]:
        """The parts of a pin that this deployment has to be taken to lack. `ran_by`: the one that stored the frame, if
        it is known.

        Of modules that are not the app's neither registers anything: they count as the same. A node finds out for
        certain when it restores the frame.
        """
        have = self.everything()
        missing = [part for part in pin if part not in have]
        if ran_by is None or not missing:
            return tuple(missing)
        apps = {part.partition(":")[0] for part in have | ran_by.everything()}
        return tuple(part for part in missing if part.partition(":")[0] in apps)

    def everything(self) -> frozenset[str]:
        """Every part of a pin that it is known to satisfy."""
        return self.identities() | frozenset(self.code)

    def source_line(self, module: str, line: int) -> str | None:
        """The text of a line of a module, without its indentation; None when it was not registered."""
        for source in self.sources:
            if source.module == module and 0 <= line - source.first_line < len(source.lines):
                return source.lines[line - source.first_line].strip()
        return None


class DeploymentDiffers(SojournError):
    """The label is taken by other code."""

    def __init__(self, label: str, functions: tuple[str, ...]) -> None:
        """`functions`: those whose identity differs."""
        super().__init__(label, functions)
        self.label = label
        self.functions = functions

    def __str__(self) -> str:
        """What differs, and what to do."""
        shown = ", ".join(self.functions[:5]) + (" ..." if len(self.functions) > 5 else "")
        return (
            f"deployment {self.label!r} was registered with other code ({shown} differ); a label names one "
            "version: give this one another --deployment, or none to have it drawn from the code"
        )


def describe(registry: Registry, *, app: str, label: str | None = None) -> Deployment:
    """What this process would register. `label` None: drawn from the code. Raises `InvalidName`."""
    workflows = {
        name: tuple(frames.fingerprint_of(one.fn)) for name, one in sorted(registry.workflows.items())
    }
    steps = {name: tuple(frames.fingerprint_of(one.fn)) for name, one in sorted(registry.steps.items())}
    modules = {one.fn.__module__ for one in registry.workflows.values()}
    modules |= {one.fn.__module__ for one in registry.steps.values()}
    code = sorted({one for name in _app_modules(modules) for one in _code(name)})[:MAX_CODE]
    sources, left_out = _bounded(sorted(_sources(modules), key=lambda one: (one.module, one.first_line)))
    return Deployment(
        label=token(label, "a deployment's label") if label else _label(workflows, steps),
        app=app,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        workflows=workflows,
        steps=steps,
        sources=sources,
        left_out=left_out,
        code=tuple(code),
    )


async def register(keys: ClusterKeys, deployment: Deployment) -> None:
    """Store it, if it is not there yet. Raises `DeploymentDiffers`, `BrokerError`."""
    value = msgspec.json.encode(deployment)
    for _ in range(3):
        found = await read(keys, deployment.label)
        if found is not None and found.identities() != deployment.identities():
            differing = found.identities() ^ deployment.identities()
            raise DeploymentDiffers(
                deployment.label, tuple(sorted({one.partition("#")[0] for one in differing}))
            )
        if found is not None:
            return
        try:
            await keys.put(_KEY, deployment.label, value=value, expect=0)
        except WrongLastSequence:
            continue  # another node of this version was faster
        return


async def read(keys: ClusterKeys, label: str) -> Deployment | None:
    """The deployment of that label, or None (also for what is not ours). Raises `BrokerError`, `InvalidName`."""
    entry = await keys.get(_KEY, label)
    return None if entry is None else _decoded(entry.value)


async def read_all(keys: ClusterKeys) -> dict[str, Deployment]:
    """All deployments by label. Raises `BrokerError`."""
    found = (_decoded(entry.value) for entry in (await keys.list(_KEY)).values())
    return {deployment.label: deployment for deployment in found if deployment is not None}


def _decoded(value: bytes) -> Deployment | None:
    """The deployment, or None for what is not ours: a foreign hand at the bucket must not stop the nodes."""
    try:
        return msgspec.json.decode(value, type=Deployment)
    except UNDECODABLE:
        return None


def _label(*groups: dict[str, tuple[str, ...]]) -> str:
    digest = hashlib.sha256()
    for group in groups:
        for name, identities in group.items():
            digest.update(f"{name}\n{identities}\n".encode())
    return f"d-{digest.hexdigest()[:12]}"


def _bounded(sources: list[Source]) -> tuple[tuple[Source, ...], int]:
    """As many functions as fit, the longest left out first."""
    size = {id(one): sum(len(line.encode()) for line in one.lines) for one in sources}
    total, left_out = sum(size.values()), set[int]()
    for one in sorted(sources, key=lambda one: -size[id(one)]):
        if total <= MAX_SOURCE_BYTES:
            break
        total -= size[id(one)]
        left_out.add(id(one))
    return tuple(one for one in sources if id(one) not in left_out), len(left_out)


def _sources(modules: set[str]) -> Iterator[Source]:
    for name in modules:
        module = sys.modules.get(name)
        if module is not None:
            for function in _functions(module):
                yield from _source(name, function)


def _app_modules(defining: set[str]) -> Iterator[str]:
    """Imported modules that are the app's: those that define, and what lies in the same package or folder."""
    packages = {name.partition(".")[0] for name in defining if "." in name} - {"sojourn"}
    folders = {folder for name in defining if "." not in name and (folder := _folder(name))}
    for name in tuple(sys.modules):
        beside = "." not in name and _folder(name) in folders
        if name in defining or name.partition(".")[0] in packages or beside:
            yield name


def _folder(name: str) -> str:
    file = getattr(sys.modules.get(name), "__file__", None)
    return os.path.dirname(file) if isinstance(file, str) else ""


def _code(name: str) -> Iterator[str]:
    """Identities and shapes that a module defines."""
    module = sys.modules.get(name)
    if module is None:
        return
    for function in _functions(module):
        try:
            yield from frames.fingerprint_of(function)
        except CodeNotFound:
            continue  # it cannot be found by a name, so no frame of it is ever stored
    for value in tuple(vars(module).values()):
        if isinstance(value, type) and value.__module__ == name and (shape := shape_of(value)) is not None:
            yield shape


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Functions and methods the module itself defines, decorated ones unwrapped."""
    seen: set[int] = set()
    for value in tuple(vars(module).values()):
        members: tuple[Any, ...] = (value,)
        if isinstance(value, type) and value.__module__ == module.__name__:
            members = tuple(vars(value).values())
        for member in members:
            function = inspect.unwrap(getattr(member, "__func__", member))
            if (
                isinstance(function, FunctionType)
                and function.__module__ == module.__name__
                and id(function) not in seen
            ):
                seen.add(id(function))
                yield function


def _source(module: str, function: FunctionType) -> Iterator[Source]:
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError, SyntaxError, IndexError):
        return  # no source file (frozen, typed in): line numbers must do
    yield Source(module, function.__qualname__, first, tuple(line.rstrip("\n") for line in lines))

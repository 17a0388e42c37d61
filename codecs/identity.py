"""Code identity: what must be equal for a stored frame to go on, and how code is found again by name.

Theory. Code is never stored. A frame holds for each of its code objects a reference that is also its
identity:

    module:qualified.name#0123456789abcdef

The hash covers what decides how a suspended frame goes on: the Python minor version, every instruction with
its offset, the *values* of its constants (typed: `1`, `1.0` and `True` differ), names, variable names,
argument counts, flags, the exception table, and all of that for nested code. It leaves out file, lines,
docstrings and the function's own name, so comments, reformatting and a declared rename change nothing. A
default of a nested function is a constant of the code around it; the defaults of the function itself have
been applied already and lie in the frame.

Code is found by module and qualified name, then confirmed by its hash, never by hash alone. The first part of
the qualified name, up to `<locals>`, is looked up in the module and unwrapped (`__wrapped__`, `partial`,
`staticmethod`, `property`, ...); nested code is found in the constants of that function by its qualified
name. Where an object is bound to another name than its own (`handler = lambda: ...`), the reference says so:
`module:handler=<lambda>#...`.

`register_moved` declares renames: `{"old.module:old_name": "new.module:new_name", "old.module":
"new.module"}`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .code_hash import identity as identity
from .unwrapping import attribute as attribute
from .unwrapping import nested_code as nested_code
from .unwrapping import plain_function as plain_function
from .unwrapping import unwrapped

_CACHE_LIMIT = 20_000

_moved: dict[str, str] = {}


@dataclass(slots=True, eq=False)
class Code:
    """A code object that was found by name in this process, as capture and restore need it."""

    code: types.CodeType
    reference: str  # module:name#hash
    function: types.FunctionType  # the module-level function or method it lies in, or is
    make: Callable[[], Any]  # a fresh coroutine (generator, async generator) of this code


@dataclass(frozen=True, slots=True)
class Missing:
    """A part of a pin that this process does not satisfy, and why in one sentence."""

    identity: str
    reason: str


class CodeNotFound(Exception):  # internal: turned into CannotSuspend or PinNotSatisfied at the seam
    """Code cannot be found by module and name. The message is the reason."""


class CannotCapture(Exception):  # internal: `diagnosis` turns it into CannotSuspend with the place
    """A value cannot be stored. The message is the remedy; `type_name` names what it is."""

    def __init__(self, type_name: str, remedy: str) -> None:
        self.type_name = type_name
        super().__init__(remedy)


_by_code: dict[int, Code] = {}
_by_reference: dict[str, tuple[Code, types.ModuleType, str, Any]] = {}


def forget() -> None:
    """Drop everything that was looked up: after modules were reloaded or renames declared."""
    _by_code.clear()
    _by_reference.clear()
    for clear in on_forget:
        clear()


on_forget: list[Callable[[], None]] = []
"""Called by `forget`: other modules' caches of what was looked up."""


def register_moved(moved: Mapping[str, str]) -> None:
    """Declare renames, each `"module:name"` or `"module"` to its new place. Frames stored under the old one resume here.

    Raises ValueError for a rename that mixes the two forms or leads back to itself.
    """
    for old, new in moved.items():
        if (":" in old) != (":" in new):
            raise ValueError(f"moved: {old!r} to {new!r}: both must be modules, or both `module:name`")
        if old == new:
            raise ValueError(f"moved: {old!r} leads to itself")
    _moved.update(moved)
    forget()


def renames_declared() -> bool:
    """Whether `present_name` could tell anything but what it is given."""
    return bool(_moved)


def present_name(module: str, name: str) -> tuple[str, str]:
    """Where `module:name` is now, by the declared renames (at most 16 in a row)."""
    for _ in range(16):
        renamed = _renamed(module, name)
        if renamed is None:
            break
        module, name = renamed
    return module, name


def _renamed(module: str, name: str) -> tuple[str, str] | None:
    if not _moved:
        return None
    head = name
    while head:
        new = _moved.get(f"{module}:{head}")
        if new is not None:
            new_module, _, new_name = new.partition(":")
            return new_module, new_name + name[len(head) :]
        head = head.rpartition(".")[0]
    return (_moved[module], name) if module in _moved else None


def code_of(code: types.CodeType, module_globals: dict[str, Any] | None = None) -> Code:
    """The `Code` for a code object met in a frame or function. Cached by the object itself.

    Raises CodeNotFound when the code cannot be reached by module and name.
    """
    known = _by_code.get(id(code))
    if known is not None and known.code is code and _runs_in(known, module_globals):
        return known
    module = (module_globals or {}).get("__name__")
    found = _find_reference(code, module, module_globals)
    if len(_by_code) >= _CACHE_LIMIT:
        _by_code.clear()
    _by_code[id(code)] = found
    return found


def _runs_in(known: Code, module_globals: dict[str, Any] | None) -> bool:
    """Whether that is the namespace: one code object can run in several, `exec` of the same code in two modules."""
    return module_globals is None or known.function.__globals__ is module_globals


def known_globals(code: types.CodeType) -> dict[str, Any] | None:
    """The namespace in which `code_of` has met this object before, or None."""
    known = _by_code.get(id(code))
    return known.function.__globals__ if known is not None and known.code is code else None


def _find_reference(code: types.CodeType, module_name: Any, module_globals: dict[str, Any] | None) -> Code:
    where = code.co_qualname
    if not isinstance(module_name, str):
        raise CodeNotFound(
            f"`{where}` runs in a namespace that is no module; define it in an importable module"
        )
    module = sys.modules.get(module_name)
    if module is None or (module_globals is not None and vars(module) is not module_globals):
        raise CodeNotFound(
            f"`{where}` does not run in the namespace of module `{module_name}`; define it in an importable module"
        )
    access = where.partition(".<locals>")[0]
    function = _function_with(attribute(module, access), code, where)
    name = where
    if function is None:
        bound = next(_bindings(module, code, where), None)
        if bound is None:
            raise CodeNotFound(
                f"`{where}` cannot be found again as `{module_name}.{access}`; "
                "define it at module level, in a class or in a function that is there"
            )
        access, function = bound
        name = f"{access}={where}"
    return _as_code(code, f"{module_name}:{name}{_ordinal(code, function)}#{identity(code)}", function)


def _ordinal(code: types.CodeType, function: types.FunctionType) -> str:
    """`|n` for the n-th of several nested code objects that are equal but for their lines (two `[await f(x)
    for x in y]`).
    """
    equal = _equal_code(function, code.co_qualname, identity(code))
    index = next((at for at, each in enumerate(equal) if each is code), 0)
    return f"|{index}" if index else ""


def _equal_code(function: types.FunctionType, where: str, wanted: str) -> list[types.CodeType]:
    found = [each for each in nested_code(function.__code__) if each.co_qualname == where]
    equal = [each for each in found if identity(each) == wanted]
    return equal or [each for each in map(_awaitable, found) if each is not None and identity(each) == wanted]


def _awaitable(code: types.CodeType) -> types.CodeType | None:
    """What `types.coroutine` makes of the code of a generator: a copy that may be awaited, which no constant is."""
    if not code.co_flags & inspect.CO_GENERATOR:
        return None
    return code.replace(co_flags=code.co_flags | inspect.CO_ITERABLE_COROUTINE)


def _bindings(
    module: types.ModuleType, code: types.CodeType, where: str
) -> Iterator[tuple[str, types.FunctionType]]:
    """Names in the module, or in its classes, that lead to `code` though they are not its own name."""
    for name, value in list(vars(module).items()):
        if isinstance(value, type):
            if value.__module__ != module.__name__:
                continue
            members = [(f"{name}.{inner}", member) for inner, member in list(vars(value).items())]
        else:
            members = [(name, value)]
        for path, member in members:
            function = _function_with(member, code, where)
            if function is not None and function.__module__ == module.__name__:
                yield path, function


def _function_with(found: Any, code: types.CodeType, where: str) -> types.FunctionType | None:
    """The function behind `found` that has `code` as its own or nested inside, or None."""
    for function in unwrapped(found):
        if function.__code__ is code:
            return function
    for function in unwrapped(found):
        if any(each is code for each in nested_code(function.__code__)):
            return function
    wanted = identity(code)
    return next((function for function in unwrapped(found) if _equal_code(function, where, wanted)), None)


def resolve(reference: str) -> Code:
    """The code object for a stored reference. Imports its module when needed. Cached while the module keeps its function.

    Raises CodeNotFound with the reason: which function, stored and present identity.
    """
    known = _by_reference.get(reference)
    if known is not None:
        found, module, root, value = known
        if sys.modules.get(module.__name__) is module and vars(module).get(root) is value:
            return found
    found, module, root = _look_up(reference)
    if len(_by_reference) >= _CACHE_LIMIT:
        _by_reference.clear()
    _by_reference[reference] = (found, module, root, vars(module).get(root))
    return found


def _look_up(reference: str) -> tuple[Code, types.ModuleType, str]:
    place, _, wanted = reference.rpartition("#")
    old_module, _, old_name = place.partition(":")
    module_name, name = present_name(old_module, old_name)
    module = import_module(module_name, place)
    path, _, ordinal = name.partition("|")
    access, equals, where = path.partition("=")
    where = where if equals else access
    access = access.partition(".<locals>")[0]
    present = None
    for function in unwrapped(attribute(module, access)):
        for equal in nested_code(function.__code__):
            if equal.co_qualname == where:
                present = identity(equal)  # for the message: one that is there
        found = _equal_code(function, where, wanted)
        if found:
            code = found[min(int(ordinal or 0), len(found) - 1)]
            known = _by_code.get(id(code))
            if known is None or known.code is not code or not _runs_in(known, function.__globals__):
                known = _as_code(code, f"{module_name}:{name}#{wanted}", function)
                _by_code[id(code)] = known
            return known, module, access.partition(".")[0]
    if present is not None:
        raise CodeNotFound(f"`{place}` has changed (stored identity {wanted}, present {present})")
    raise CodeNotFound(f"`{place}` was not found (stored identity {wanted})")


def import_module(module_name: str, place: str) -> types.ModuleType:
    """The module, imported when needed. Raises CodeNotFound, which names `place`, when it cannot be."""
    module = sys.modules.get(module_name)
    if module is not None:
        return module
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the module's own code raises, this process lacks it
        raise CodeNotFound(
            f"`{place}`: its module cannot be imported ({type(error).__name__}: {error})"
        ) from error


def _as_code(code: types.CodeType, reference: str, function: types.FunctionType) -> Code:
    return Code(code, reference, function, _maker(code, function))


class _Nothing:
    """Stands for the iterable of a generator expression until its slots are written."""

    def __iter__(self) -> _Nothing:
        return self

    def __aiter__(self) -> _Nothing:
        return self

    def __next__(self) -> Any:
        raise StopIteration

    async def __anext__(self) -> Any:
        raise StopAsyncIteration


_NOTHING = _Nothing()


def _maker(code: types.CodeType, function: types.FunctionType) -> Callable[[], Any]:
    """A function that returns a fresh coroutine of `code`, its arguments filled with None."""
    cells = tuple(types.CellType() for _ in code.co_freevars)
    # From 3.15 a generator expression asks its argument for an iterator before it is suspended for the first
    # time.
    positional = tuple(_NOTHING if name == ".0" else None for name in code.co_varnames[: code.co_argcount])
    make = types.FunctionType(code, function.__globals__, code.co_name, positional, cells)
    make.__qualname__ = code.co_qualname
    if code.co_kwonlyargcount:
        first = code.co_argcount
        make.__kwdefaults__ = dict.fromkeys(code.co_varnames[first : first + code.co_kwonlyargcount])
    return make

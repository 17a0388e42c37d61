"""Which channels a workflow may receive on, read off its code, so that mail for another can be refused with
the names of those it has.

The code of the function, and of the functions, classes and workflows it refers to by global name or closure,
is walked without running it. Found are `Channel` objects and constant names given to `receive`. A wrong "no"
would refuse mail that the workflow wants, so everything that cannot be told makes the answer "any channel"
(None): a name that is computed, a `.receive` on a value that is not a known channel, a channel made inside a
function, more code than the bound. `@workflow(channels=...)` says it outright.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from sojourn.codecs.data import Type

from .channel import Channel

MAX_CODE_OBJECTS = 2_000
"""More code than this is not walked: the answer is then "any"."""

_RECEIVE = ("receive", "receive_message")
_VERBS = f"{__package__}.verbs"
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_PADDING = ("CACHE", "NOP", "EXTENDED_ARG", "COPY_FREE_VARS", "RESUME")
_CALLS = ("PRECALL", "CALL", "CALL_KW")
_UNKNOWN = object()


class _CannotTell(Exception):  # ends the walk; not an error
    """The channels cannot be read off the code."""


def channels_of(fn: Callable[..., Any]) -> dict[str, Type | None] | None:
    """The channels by name, with their types (None: any JSON); None when they cannot be told."""
    walk = _Walk()
    try:
        walk.follow(fn)
        walk.run()
    except _CannotTell:
        return None
    return walk.found


class _Walk:
    """Follows references from one function; collects channels in `found`."""

    def __init__(self) -> None:
        self.found: dict[str, Type | None] = {}
        self._types: dict[str, Any] = {}
        self._todo: list[tuple[CodeType, Mapping[str, Any], Mapping[str, Any]]] = []
        self._followed: set[int] = set()
        self._keep: list[object] = []  # an id is only good while its object lives

    def run(self) -> None:
        walked = 0
        while self._todo:
            walked += 1
            if walked > MAX_CODE_OBJECTS:
                raise _CannotTell
            code, namespace, cells = self._todo.pop()
            self._read(code, namespace, cells)

    def follow(self, value: object) -> None:
        """Look into a value that the code can reach by name."""
        if isinstance(value, Channel):
            self._channel(value)
            return
        value = _unwrapped(value)
        if id(value) in self._followed:
            return
        self._followed.add(id(value))
        self._keep.append(value)
        if isinstance(value, FunctionType):
            if not _foreign(value.__module__):
                cells = _cells(value)
                self._todo.append((value.__code__, value.__globals__, cells))
                self._all(_annotated_classes(value))
        elif isinstance(value, type):
            if not _foreign(value.__module__):
                self._all(vars(value).values())
                self._all(value.__bases__)
        elif isinstance(value, list | tuple | set | frozenset):
            self._all(value)
        elif isinstance(value, dict):
            self._all(value.values())
        elif not isinstance(value, ModuleType) and not _foreign(type(value).__module__):
            self.follow(type(value))

    def _all(self, values: Iterable[object]) -> None:
        for value in tuple(values):
            self.follow(value)

    def _channel(self, channel: Channel[Any]) -> None:
        before = self._types.setdefault(channel.name, channel.annotation)
        if before is not channel.annotation and before != channel.annotation:
            self.found[channel.name] = None  # two types on one channel: which one, only the receive knows
        else:
            self.found[channel.name] = None if channel.annotation is Any else channel.type

    def _read(self, code: CodeType, namespace: Mapping[str, Any], cells: Mapping[str, Any]) -> None:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._todo.append((constant, namespace, cells))
        instructions = [i for i in dis.get_instructions(code) if i.opname not in _PADDING]
        position = 0
        while position < len(instructions):
            position = self._reference(code, instructions, position, namespace, cells)

    def _reference(
        self,
        code: CodeType,
        instructions: list[dis.Instruction],
        position: int,
        namespace: Mapping[str, Any],
        cells: Mapping[str, Any],
    ) -> int:
        """Read one instruction, and the attributes taken off what it loads; where to read on."""
        first = instructions[position]
        position += 1
        if first.opname in (*_ATTRIBUTES, "IMPORT_FROM") and first.argval in _RECEIVE:
            raise _CannotTell  # on a value that is not known by name
        if first.opname == "IMPORT_NAME" and not _foreign(str(first.argval)):
            raise _CannotTell  # an import inside the function: what it brings is in its locals
        if first.opname not in _LOADS:
            return position
        value = _lookup(str(first.argval), namespace, cells)
        while position < len(instructions) and instructions[position].opname in _ATTRIBUTES:
            name = str(instructions[position].argval)
            if name in _RECEIVE and isinstance(value, Channel):
                break
            position += 1
            if value is not _UNKNOWN and not isinstance(value, ModuleType):
                self.follow(value)
            value = _attribute(value, name)
            if value is _UNKNOWN and name in _RECEIVE:
                raise _CannotTell
        if _is_receive(value):
            self._constant_names(code, instructions, position, namespace, cells)
        elif value is Channel:
            raise _CannotTell  # made inside a function
        elif value is not _UNKNOWN:
            self.follow(value)
        if isinstance(value, Channel) and position < len(instructions):
            return position + (instructions[position].opname in _ATTRIBUTES)  # its own `.receive`
        return position

    def _constant_names(
        self,
        code: CodeType,
        instructions: list[dis.Instruction],
        position: int,
        namespace: Mapping[str, Any],
        cells: Mapping[str, Any],
    ) -> None:
        """The channels given to `receive`: each a constant name or a known channel, or it cannot be told."""
        for argument in _positional_arguments(instructions, position, code.co_consts):
            if argument.opname == "LOAD_CONST" and isinstance(argument.argval, str):
                self.found.setdefault(argument.argval, None)
                self._types.setdefault(argument.argval, Any)
            elif argument.opname not in _LOADS or not isinstance(
                _lookup(str(argument.argval), namespace, cells), Channel
            ):
                raise _CannotTell  # a known channel is collected where it is read as a reference


def _positional_arguments(
    instructions: list[dis.Instruction], position: int, consts: tuple[Any, ...]
) -> list[dis.Instruction]:
    """The instructions that make the positional arguments of the call whose function was just loaded, by
    following the stack.

    `made[n]` is the instruction that made the value in place n above the function. An f-string or a sum is
    made by an instruction that is no load, so it is told from a constant.
    """
    made: list[dis.Instruction] = []
    names: tuple[str, ...] = ()
    if position < len(instructions) and instructions[position].opname == "PUSH_NULL":
        position += 1
    for instruction in instructions[position:]:
        name, argument = instruction.opname, instruction.arg
        if name == "KW_NAMES":
            names = consts[argument or 0]  # 3.11 does not resolve it
        elif name == "CALL_KW" and made and argument == len(made) - 1:
            return made[: len(made) - 1 - len(made[-1].argval)]
        elif name in _CALLS and argument == len(made):
            return made[: len(made) - len(names)]
        if "JUMP" in name or "RETURN" in name or name == "CALL_FUNCTION_EX":
            break
        depth = len(made) + dis.stack_effect(instruction.opcode, argument)
        if depth < 0:
            break
        made = [*made[: depth - 1], *([instruction] * (depth - len(made[: depth - 1])))]
    raise _CannotTell


def _is_receive(value: object) -> bool:
    return isinstance(value, FunctionType) and value.__module__ == _VERBS and value.__name__ in _RECEIVE


def _lookup(name: str, namespace: Mapping[str, Any], cells: Mapping[str, Any]) -> Any:
    if name in cells:
        return cells[name]
    return namespace.get(name, _UNKNOWN)


def _attribute(value: Any, name: str) -> Any:
    """An attribute of a module or class, read without running descriptors or a module's `__getattr__` for
    what is not loaded.
    """
    if isinstance(value, ModuleType):
        found = vars(value).get(name, _UNKNOWN)
        if found is _UNKNOWN and value.__name__ == "sojourn":
            return getattr(value, name, _UNKNOWN)  # our own lazy names
        return found
    if isinstance(value, type):
        for cls in value.__mro__:
            if name in vars(cls):
                return vars(cls)[name]
    return _UNKNOWN


def _unwrapped(value: object) -> object:
    """The function or class behind a decorator's object. Steps are left out: they cannot receive."""
    for _ in range(16):
        if isinstance(value, staticmethod | classmethod | MethodType):
            value = value.__func__
        elif isinstance(value, property):
            return value.fget
        elif type(value).__module__ == f"{__package__}.workflow" and hasattr(value, "fn"):
            value = value.fn
        elif type(value).__module__ == f"{__package__}.step":
            return None
        elif isinstance(value, FunctionType) and hasattr(value, "__wrapped__"):
            # The wrapper may receive as well: both are walked, the wrapper through its closure.
            return value
        elif not isinstance(value, type) and hasattr(type(value), "func") and hasattr(value, "func"):
            value = value.func  # functools.partial
        else:
            return value
    return value


def _cells(fn: FunctionType) -> dict[str, Any]:
    cells = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            cells[name] = _UNKNOWN
    return cells


def _annotated_classes(fn: FunctionType) -> Iterator[object]:
    """Classes named in annotations: values that come in as arguments may have methods that receive."""
    for annotation in fn.__annotations__.values():
        if isinstance(annotation, str):
            yield fn.__globals__.get(annotation.split("[", 1)[0].split("|", 1)[0].strip())
        elif isinstance(annotation, type):
            yield annotation


def _foreign(module: str | None) -> bool:
    """Whether code is the standard library's or our own: neither receives on a user's channel by itself. (The
    installed examples are users' code.)
    """
    root, _, rest = (module or "").partition(".")
    return root in sys.stdlib_module_names or (root == "sojourn" and not rest.startswith("examples"))

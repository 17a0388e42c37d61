"""Frames: the suspended coroutines of one actor as bytes, and back.

A frame is `magic, format version, Python minor, length of the table, table, pickle`. The table lists the
references of all code in the frame (`identity`), one a line; it is read, and the code found, before anything
is unpickled. A frame of another format or Python is refused, never misread. Frames are read only after their
record's seal holds (`record`).
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from . import awaitables, coroutines, slots
from .coroutines import code_object
from .discard import discard
from .errors import CannotSuspend, FrameTooLarge, PinNotSatisfied, UnsupportedInterpreter
from .identity import (
    CannotCapture,
    Code,
    CodeNotFound,
    Missing,
    code_of,
    identity,
    nested_code,
    plain_function,
    register_moved,
    resolve,
)
from .layout import FINISHED, current
from .pickler import FramePickler, restore
from .record import SourceLine
from .shapes import check_shape

__all__ = [
    "CLOSING", "CannotSuspend", "Frame", "FrameTooLarge", "Missing", "PinNotSatisfied", "SourceLine", "UnsupportedInterpreter",
    "discard", "dump", "fingerprint_of", "identity", "load", "register_moved", "satisfied", "source_lines",
    "variable_sizes", "where",
]  # fmt: skip

CLOSING = awaitables.ATHROW
"""The type of what closes an async generator: `agen.aclose()`."""
SIZE_LIMIT = 512 * 1024
_MAGIC = b"SJ"
_FORMAT = 1
_HEAD = len(_MAGIC) + 6
_MINOR = sys.version_info.minor


@dataclass(frozen=True, slots=True)
class Frame:
    """A captured graph: its bytes, and the pin a process must satisfy to resume it (sorted identities and
    shapes).
    """

    data: bytes
    pin: tuple[str, ...]


def dump(root: object, *, size_limit: int = SIZE_LIMIT) -> Frame:
    """Capture everything suspended that `root` holds; what is read goes on as before, undisturbed.

    Raises CannotSuspend when a value alive across an await cannot be stored, FrameTooLarge over `size_limit`
    bytes, UnsupportedInterpreter on a Python whose frames are not known.
    """
    current()
    file = io.BytesIO()
    pickler = FramePickler(file)
    try:
        pickler.dump(root)
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        file = io.BytesIO()
        pickler = _again(root, file, pickler.visited, error)
    references = tuple([code.reference for code in pickler.codes.values()])
    head, pin = _head_and_pin(references, frozenset(pickler.shapes))
    data = head + file.getvalue()
    if len(data) > size_limit:
        raise FrameTooLarge(len(data), size_limit, variable_sizes(root))
    return Frame(data, pin)


def _again(root: object, file: io.BytesIO, visited: list[Any], error: Exception) -> FramePickler:
    """Capture another way what was nested too deep; raises CannotSuspend, with the reason, when nothing helps."""
    from .deep import InnermostFirst, is_too_deep
    from .diagnosis import explain

    pickler = FramePickler(file)
    if is_too_deep(error):
        try:
            pickler.dump(InnermostFirst(root))
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as still:
            visited, error = pickler.visited or visited, still
        else:
            return pickler
    raise explain(root, visited, error) from error


@lru_cache(maxsize=4096)
def _head_and_pin(references: tuple[str, ...], shapes: frozenset[str]) -> tuple[bytes, tuple[str, ...]]:
    """What stands before the pickle, and the pin: the same for each frame of the same code and classes."""
    table = "\n".join(references).encode()
    head = _MAGIC + bytes((_FORMAT, _MINOR)) + len(table).to_bytes(4, "little") + table
    return head, tuple(sorted({*references, *shapes}))


def references_of(data: bytes) -> list[str]:
    """The references of all code in a frame, without unpickling.

    Raises PinNotSatisfied for another format or Python.
    """
    if len(data) < _HEAD or data[:2] != _MAGIC or data[2] != _FORMAT:
        raise PinNotSatisfied([], ["the frame has a format that this version of Sojourn does not read"])
    if data[3] != _MINOR:
        raise PinNotSatisfied([], [f"the frame was stored by Python 3.{data[3]}, this is Python 3.{_MINOR}"])
    size = int.from_bytes(data[4:_HEAD], "little")
    if size > len(data) - _HEAD:
        raise PinNotSatisfied([], ["the frame is cut short"])
    return _table(data[_HEAD : _HEAD + size])


@lru_cache(maxsize=1024)
def _lines(table: bytes) -> tuple[str, ...]:
    return tuple(table.decode().split("\n")) if table else ()


def _table(table: bytes) -> list[str]:
    try:
        return list(_lines(table))
    except UnicodeDecodeError:
        raise PinNotSatisfied([], ["the frame's table of code is not readable"]) from None


def load(
    data: bytes, pin: Sequence[str] = (), *, dropped: Callable[[AsyncGenerator[Any, Any]], None] | None = None
) -> object:
    """Restore what `dump` captured: fresh coroutines that stand where the captured ones stood.

    `dropped` is called with each restored async generator that is dropped before it has ended, as the finalizer of
    `sys.set_asyncgen_hooks` is with those begun under it.

    Raises PinNotSatisfied, before anything is restored, when this process lacks code or shapes that the frame
    needs; any other error of unpickling is raised as PinNotSatisfied too, since it means the same here.
    """
    current()
    codes = _codes(references_of(data), pin)
    body = memoryview(data)[_HEAD + int.from_bytes(data[4:_HEAD], "little") :]
    try:
        return restore(body, codes, dropped)
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        raise PinNotSatisfied([], [f"restoring failed here: {type(error).__name__}: {error}"]) from error


def _codes(references: list[str], pin: Sequence[str]) -> list[Code]:
    """The code of a frame's table, when this process satisfies the pin, too."""
    codes: list[Code] = []
    try:
        codes = [resolve(reference) for reference in references]
        missing = satisfied([part for part in pin if part not in references])
    except CodeNotFound:
        missing = satisfied((*pin, *(each for each in references if each not in pin)))
    if missing:
        raise PinNotSatisfied([each.identity for each in missing], [each.reason for each in missing])
    return codes


def satisfied(pin: Iterable[str]) -> list[Missing]:
    """What of `pin` this process lacks;

    empty when it can resume such a frame. Imports modules when needed; cached.
    """
    return [missing for part in pin if (missing := _missing(part)) is not None]


def _missing(part: str) -> Missing | None:
    if "~" in part and "#" not in part:
        reason = check_shape(part)
        return None if reason is None else Missing(part, reason)
    try:
        resolve(part)
    except CodeNotFound as error:
        return Missing(part, str(error))
    return None


def fingerprint_of(function: Any) -> list[str]:
    """The references of a function's code and of all code nested in it, as they would stand in a pin;

    sorted.
    """
    return sorted(source_lines(function))


def source_lines(function: Any) -> dict[str, SourceLine]:
    """By reference, where each code object of a function starts in its source:

    for `stack` without the code alive.
    """
    plain = plain_function(function)
    found = {}
    for code in nested_code(plain.__code__):
        named = code_of(code, plain.__globals__)
        module = named.reference.partition(":")[0]
        found[named.reference] = SourceLine(module, code.co_qualname, code.co_firstlineno)
    return found


def where(coroutine: Any) -> tuple[SourceLine, ...]:
    """The lines at which a suspended coroutine and what it awaits stand, outermost first.

    Disturbs nothing.
    """
    lines = []
    seen: set[int] = set()
    current_one = coroutine
    while current_one is not None and id(current_one) not in seen:
        seen.add(id(current_one))
        if type(current_one) in awaitables.TYPES:
            current_one = awaitables.behind(current_one)
        elif type(current_one) in coroutines.KINDS and slots.kind_of(current_one) != FINISHED:
            lines.append(line_of(current_one))
            current_one = _awaited(current_one)
        else:
            break
    return tuple(lines)


def _awaited(target: Any) -> Any:
    if type(target) is types.CoroutineType:
        return target.cr_await
    return target.gi_yieldfrom if type(target) is types.GeneratorType else target.ag_await


def line_of(target: Any) -> SourceLine:
    """The line at which a coroutine, generator or async generator stands."""
    code = code_object(target)
    lasti = slots.lasti_of(target, code)
    known = _lines_of_code.get((id(code), lasti))
    if known is not None and known[0] is code:
        return known[1]
    line = _line_of(target, code, lasti)
    if len(_lines_of_code) >= _MAX_LINES:
        _lines_of_code.clear()
    _lines_of_code[id(code), lasti] = code, line
    return line


_MAX_LINES = 8192
_lines_of_code: dict[tuple[int, int], tuple[types.CodeType, SourceLine]] = {}
"""By code object and offset: asked at every suspension. (A code object compares by its contents, so not by itself.)"""


def _line_of(target: Any, code: types.CodeType, lasti: int) -> SourceLine:
    namespace = coroutines.globals_of(target)
    module = (
        namespace.get("__name__", "")
        if namespace
        else coroutines.found_code(target).reference.partition(":")[0]
    )
    return SourceLine(str(module), code.co_qualname, slots.line_at(code, lasti))


def variable_sizes(root: object) -> dict[str, int]:
    """Bytes by `function.variable`, each pickled alone, so shared values count for each;

    about right, for people.
    """
    from .diagnosis import variables_of

    sizes: dict[str, int] = {}
    for function, variable, value in variables_of(root):
        name = f"{function}.{variable or '<temporary>'}"
        sizes[name] = sizes.get(name, 0) + _size(value)
    return sizes


def _size(value: Any) -> int:
    file = io.BytesIO()
    try:
        FramePickler(file).dump(value)
    except (CannotCapture, pickle.PicklingError, TypeError, AttributeError):
        return 0
    return file.tell()

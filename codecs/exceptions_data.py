"""Exceptions as data, and back, without ever looking up a class by a name that came in a message.

An exception keeps its class when the receiver can name it itself: a builtin (the table below is made from
this interpreter's own), or one of the classes that the step declared (`raises=[...]`). Every other one
arrives as what it was: type, message, notes and the traceback's text, for the caller to wrap.

Of an exception of a known class its `args` and attributes cross as JSON. It is rebuilt as pickle would, by
`__new__` and its state: an `__init__` with parameters of its own does not run, since what they were is not
recorded.
"""

from __future__ import annotations

import base64
import builtins
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from sojourn.codecs.annotations import hints_of_class
from sojourn.codecs.errors import DataTypeError, PayloadError
from sojourn.codecs.record import ErrorInfo
from sojourn.codecs.traceback_text import traceback_text
from sojourn.codecs.value_type import Type

MAX_MESSAGE: Final = 4 * 1024
"""Characters of a message or note; the rest is cut."""
_MAX_NOTES: Final = 8
_MAX_DATA: Final = 16 * 1024
_MAX_NESTED: Final = 32
_MAX_DEPTH: Final = 4
"""Exception groups inside exception groups."""

_BUILTINS: Final = {
    f"builtins:{name}": cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type)
    and issubclass(cls, Exception)
    and cls.__name__ == name
    # These two steer iteration: thrown into a coroutine they turn into a RuntimeError without a word of why.
    and cls not in (StopIteration, StopAsyncIteration)
}

_any: Final = Type(Any)


class _State(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `ErrorInfo.data` holds for an exception of a known class."""

    args: tuple[msgspec.Raw, ...] = ()
    base64: tuple[int, ...] = ()
    """Which of `args` were bytes."""
    attributes: dict[str, msgspec.Raw] = {}
    exceptions: tuple[ErrorInfo, ...] = ()
    """Members of an exception group."""


_decode_state: Final = msgspec.json.Decoder(_State).decode
_NO_DATA: Final = msgspec.Raw(b"null")


def describe_exception(error: BaseException, *, declared: Sequence[type[BaseException]] = ()) -> ErrorInfo:
    """Return `error` as data. `declared` are the classes that may keep their class at the receiver, beside
    builtins.
    """
    try:
        return _describe(error, tuple(declared), depth=0)
    except (
        BaseException
    ) as broken:  # an exception whose own attributes raise, `SystemExit` included: it still crosses
        text = f"<it cannot be described: {type(broken).__name__}>"
        return ErrorInfo(type=type_name(type(error)), message=text)


def words(text: str, limit: int = MAX_MESSAGE) -> str:
    """`text` cut to `limit` characters, as text that has UTF-8."""
    # Lone surrogates (file names, mostly) have no UTF-8.
    text = text[: limit + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def words_of(value: object) -> str:
    """`str(value)`, bounded, whatever that raises."""
    try:
        return words(str(value))
    except BaseException:  # a user's __str__ may raise anything, and must not end the node with it
        return f"<{type(value).__name__}>"


def rebuild_exception(
    info: ErrorInfo, *, declared: Sequence[type[BaseException]] = ()
) -> BaseException | None:
    """Return an exception of the class that `info` names if it is a builtin or one of `declared`; None for
    any other, and when its state does not fit the class as it is here: then the caller wraps `info` in an
    exception of its own.

    Notes come back as notes; the traceback stays text.
    """
    return _rebuild(info, tuple(declared))


def type_name(cls: type) -> str:
    """Return "module:qualname", for display and for comparing with declared classes."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _describe(error: BaseException, declared: tuple[type[BaseException], ...], depth: int) -> ErrorInfo:
    return ErrorInfo(
        type=type_name(type(error)),
        message=words(_text_of(error)),
        traceback=traceback_text(error) if depth == 0 else "",
        data=_state_of(error, declared, depth) if _may_keep_class(error, declared) else _NO_DATA,
        notes=_notes_of(error),
    )


def _may_keep_class(error: BaseException, declared: tuple[type[BaseException], ...]) -> bool:
    """By identity: a class that only calls itself `builtins.ValueError` is not one."""
    cls = type(error)
    return cls in declared or _BUILTINS.get(type_name(cls)) is cls


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # a user's __str__ may raise anything; the error itself must still cross
        return f"<its text cannot be made: {type(broken).__name__}>"


def _notes_of(error: BaseException) -> tuple[str, ...]:
    """Its notes; what was put in their place by hand is left out."""
    notes = getattr(error, "__notes__", ())
    return tuple(map(words_of, notes[:_MAX_NOTES])) if isinstance(notes, list | tuple) else ()


def _state_of(error: BaseException, declared: tuple[type[BaseException], ...], depth: int) -> msgspec.Raw:
    if isinstance(error, BaseExceptionGroup):
        if depth >= _MAX_DEPTH or len(error.exceptions) > _MAX_NESTED:
            return _NO_DATA
        members = tuple(_describe(member, declared, depth + 1) for member in error.exceptions)
        return _raw(_State(args=(_raw(error.message),), exceptions=members))
    args = _constructor_args(error)
    state = _State(
        args=tuple(map(_argument, args)),
        base64=tuple(number for number, argument in enumerate(args) if isinstance(argument, bytes)),
        attributes=dict(_attributes(error)) if type(error) in declared else {},
    )
    raw = _raw(state)
    if len(bytes(raw)) > _MAX_DATA:
        raw = _raw(_State(args=(_raw(words(_text_of(error))),)))
    return raw


def _constructor_args(error: BaseException) -> tuple[Any, ...]:
    """`args`; for an `OSError` with its file names, which `args` leaves out."""
    if isinstance(error, OSError) and type_name(type(error)) in _BUILTINS:
        reduced = error.__reduce__()
        return tuple(reduced[1])
    return error.args


def _argument(value: Any) -> msgspec.Raw:
    """One of `args` as JSON; what is no JSON value is said in words, so that at least the message stays."""
    if isinstance(value, bytes):
        return _raw(base64.b64encode(value).decode())
    try:
        return msgspec.Raw(_any.encode(value))
    except PayloadError:
        return _raw(words_of(value))


def _attributes(error: BaseException) -> Iterator[tuple[str, msgspec.Raw]]:
    """Attributes that are data by their annotation in the class; private ones and others are left out."""
    types = _attribute_types(type(error))
    for name, value in vars(error).items():
        if name.startswith("_"):
            continue
        try:
            yield name, msgspec.Raw(types.get(name, _any).encode(value))
        except PayloadError:
            continue


_types_of_class: Final[WeakKeyDictionary[type, dict[str, Type]]] = WeakKeyDictionary()


def _attribute_types(cls: type) -> dict[str, Type]:
    """The annotated attributes of a declared class; those that cannot cross as data are not taken along."""
    types = _types_of_class.get(cls)
    if types is None:
        types = {}
        with contextlib.suppress(DataTypeError):
            for name, annotation in hints_of_class(cls).items():
                with contextlib.suppress(DataTypeError):
                    types[name] = Type(annotation, where=f"attribute `{name}` of `{cls.__qualname__}`")
        _types_of_class[cls] = types
    return types


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _rebuild(info: ErrorInfo, declared: tuple[type[BaseException], ...]) -> BaseException | None:
    known = _BUILTINS.get(info.type) or next((cls for cls in declared if type_name(cls) == info.type), None)
    if known is None or bytes(info.data) == b"null":
        return None
    try:
        state = _decode_state(info.data)
        error = _construct(known, state, declared)
    except Exception:  # __new__ of a class that has changed since may raise anything
        return None
    if error is not None:
        for note in info.notes:
            error.add_note(note)
    return error


def _construct(
    cls: type[BaseException], state: _State, declared: tuple[type[BaseException], ...]
) -> BaseException | None:
    args = tuple(_argument_back(raw, number in state.base64) for number, raw in enumerate(state.args))
    if issubclass(cls, BaseExceptionGroup):
        members = [_rebuild(member, declared) for member in state.exceptions]
        if any(member is None for member in members):
            return None
        group: Callable[..., BaseException] = cls
        return group(*args, members)
    if cls in _BUILTINS.values():
        # Some keep their facts in C fields that only the constructor sets; where it wants other types, the
        # message is what is left.
        with contextlib.suppress(TypeError):
            return cls(*args)
        return None
    error = cls.__new__(cls, *args)
    error.args = args
    types = _attribute_types(cls)
    for name, raw in state.attributes.items():
        vars(error)[name] = types.get(name, _any).decode(bytes(raw))
    return error


def _argument_back(raw: msgspec.Raw, is_bytes: bool) -> Any:
    value = _any.decode(bytes(raw))
    return base64.b64decode(value) if is_bytes else value

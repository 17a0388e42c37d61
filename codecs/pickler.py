"""The pickler of frames: one object graph, aliasing kept, code by reference.

Theory. `FramePickler` is the C pickler (protocol 5) with `reducer_override`, which C asks for every object
that is not of a basic type. What it decides for a type is remembered in a table. Objects that every frame
needs (the functions that rebuild coroutines, cells, exceptions) are in the pickler's memo before it starts,
so each costs two bytes instead of a name; the unpickler's memo is filled in the same order. `_KNOWN` is
therefore part of the format: what a frame holds is numbered after it, so any change of it, also at its end, is a new
format version.

References to code are collected in a table beside the pickle, so a reader can tell what a frame needs, and at
which code it stands, without unpickling.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import io
import pickle
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from . import awaitables, coroutines, exceptions, functions, iterators, itertools_fields, type_parameters
from .discard import discard
from .enums import reduce_member, stores_by_name
from .globals import (
    global_value,
    reduce_context_variable,
    reduce_sentinel,
    stateless_reducer,
)
from .heirs import heir_reducer
from .identity import CannotCapture, Code, present_name, renames_declared
from .keyed import keyed_reducer
from .rings import PatientUnpickler, is_ring
from .shapes import shape_of


def make_suspended(reference: int) -> Any:
    """Stands in a frame for a fresh coroutine of the code with that number."""
    raise NotImplementedError("filled in by each load")


# In this order they fill the first places of the memo. Any change is a new format version.
_KNOWN: tuple[Any, ...] = (
    make_suspended,
    coroutines.fill,
    functions.make_function,
    functions.fill_function,
    functions.named_function,
    types.CellType,
    functions.fill_cell,
    types.MethodType,
    exceptions.make_exception,
    exceptions.fill_exception,
    awaitables.await_of,
    awaitables.send_of,
    awaitables.throw_of,
    awaitables.next_of,
    iterators.dict_iterator,
    iterators.dict_view,
    itertools_fields.make_itertools,
    itertools_fields.fill_itertools,
    global_value,
    exceptions.traceback_of,
    functions.import_module,
)
_SUSPENDED, _FUNCTION, _NAMED = 0, 2, 4  # these three are bound to each load

Reducer = Callable[["FramePickler", Any], Any]


class FramePickler(pickle.Pickler):
    """Pickles one graph. `codes` are the code objects met, in order;

    `shapes` those of the data classes met.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 5)
        self.codes: dict[int, Code] = {}
        self.order: dict[int, int] = {}
        self.shapes: set[str] = set()
        self.visited: list[Any] = []
        self.memo = _MEMO

    def reference(self, code: Code) -> int:
        """The number of a code object in this frame's table."""
        number = self.order.setdefault(id(code), len(self.order))
        self.codes[number] = code
        return number

    def reducer_override(self, value: Any) -> Any:
        """Decide how a value is stored; NotImplemented leaves it to pickle."""
        kind = type(value)
        try:
            reducer = _REDUCERS[kind]
        except KeyError:
            reducer = _learn(kind)
        return NotImplemented if reducer is None else reducer(self, value)


def _seed() -> Any:
    pickler = pickle.Pickler(io.BytesIO(), 5)
    pickler.memo = {id(value): (index, value) for index, value in enumerate(_KNOWN)}
    return pickler.memo


_MEMO = _seed()


# This stands before each pickle that is loaded: it leaves `_KNOWN` in the unpickler's memo, in the same places.
# (Its `memo` cannot be assigned: CPython's setter takes the values but forgets how many there are.)
_PREFIX = pickle.PROTO + b"\x05"
for _index in range(len(_KNOWN)):
    _PREFIX += pickle.BININT1 + bytes((_index,)) + pickle.BINPERSID + pickle.MEMOIZE + pickle.POP


class _Table:
    """The code of one frame by number.

    Apart from the unpickler, whose memo holds its methods: else that were a cycle.
    """

    def __init__(self, codes: Sequence[Code]) -> None:
        self.codes = codes
        self.made: list[Any] = []

    def suspended(self, number: int) -> Any:
        fresh = self.codes[number].make()
        self.made.append(fresh)
        return fresh

    def function(self, number: int, closure: tuple[types.CellType, ...] | None) -> types.FunctionType:
        code = self.codes[number]
        return types.FunctionType(code.code, code.function.__globals__, code.code.co_name, None, closure)

    def named(self, number: int) -> types.FunctionType:
        return self.codes[number].function


class _Restoring:
    """What each unpickler of a frame does; it stands before one of pickle's. `codes` is the frame's table of code."""

    def __init__(self, body: bytes | memoryview, codes: Sequence[Code]) -> None:
        super().__init__(io.BytesIO(b"".join((_PREFIX, body))))  # type: ignore[call-arg]  # of pickle's class
        table = _Table(codes)
        places = list(_KNOWN)
        places[_SUSPENDED], places[_FUNCTION], places[_NAMED] = table.suspended, table.function, table.named
        self.persistent_load = places.__getitem__  # for `_PREFIX`
        self._made = table.made

    def restore(self, dropped: Callable[[Any], None] | None) -> Any:
        """Load the graph. When that fails, what was restored so far is dropped in silence."""
        try:
            graph = self.load()  # type: ignore[attr-defined]  # of pickle's class
            if dropped is not None:
                coroutines.tell_when_dropped(self._made, dropped)
            return graph
        except BaseException:
            discard(*self._made)
            raise


class FrameUnpickler(_Restoring, pickle.Unpickler):
    """Restores one graph, all in C."""


class _Renaming:
    """Looks globals up by the declared renames; where there are none, C does it alone, in a tenth of the time."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(*present_name(module, name))  # type: ignore[misc]  # of pickle's class


class _RenamingUnpickler(_Renaming, FrameUnpickler):
    pass


class _PatientUnpickler(_Renaming, _Restoring, PatientUnpickler):
    pass


def restore(
    body: bytes | memoryview, codes: Sequence[Code], dropped: Callable[[Any], None] | None = None
) -> Any:
    """Load the graph of a frame; `codes` is its table of code. `dropped`: see `frames.load`."""
    unpickler = _RenamingUnpickler if renames_declared() else FrameUnpickler
    try:
        return unpickler(body, codes).restore(dropped)
    except Exception as error:
        if is_ring(error):
            with contextlib.suppress(Exception):  # the first one tells
                return _PatientUnpickler(body, codes).restore(dropped)
        raise


# -- how each type is stored -------------------------------------------------------------------------------


def _reduce_suspended(pickler: FramePickler, target: Any) -> Any:
    held = coroutines.module_name(target, pickler.visited[0] if pickler.visited else None)
    if held is not None:
        raise CannotCapture(
            type_name(type(target)),
            f"a module holds it as `{held}` for all; use that name where it is needed",
        )
    pickler.visited.append(target)
    code = coroutines.found_code(target)
    return (
        make_suspended,
        (pickler.reference(code),),
        coroutines.capture(target, code),
        None,
        None,
        coroutines.fill,
    )


def _reduce_exception(_: FramePickler, value: BaseException) -> Any:
    return exceptions.reduce_exception(value)


def _reduce_traceback(_: FramePickler, value: types.TracebackType) -> Any:
    return exceptions.traceback_of, (exceptions.traceback_entries(value),)


def _refuse(remedy: str) -> Reducer:
    def refuse(_: FramePickler, value: Any) -> Any:
        raise CannotCapture(type_name(type(value)), remedy)

    return refuse


def _refuse_finalizer(_: FramePickler, value: Any) -> Any:
    """`diagnosis` names what it belongs to."""
    raise pickle.PicklingError("it would call its function when this copy is dropped")


def type_name(kind: type) -> str:
    """The name of a class as an error shows it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _pinned(kind: type, reducer: Reducer | None) -> Reducer | None:
    """The reducer, that also notes the shape of a class that has one."""
    shape = shape_of(kind)
    if shape is None:
        return reducer

    def reduce(pickler: FramePickler, value: Any) -> Any:
        pickler.shapes.add(shape)
        return NotImplemented if reducer is None else reducer(pickler, value)

    return reduce


_REDUCERS: dict[type, Reducer | None] = {
    **dict.fromkeys(coroutines.KINDS, _reduce_suspended),
    **dict.fromkeys(awaitables.TYPES, awaitables.reduce_awaitable),
    types.FunctionType: functions.reduce_function,
    types.CellType: functions.reduce_cell,
    types.MethodType: functions.reduce_method,
    types.ModuleType: functions.reduce_module,
    type: functions.reduce_class,
    property: functions.reduce_property,
    staticmethod: functions.reduce_wrapped,
    classmethod: functions.reduce_wrapped,
    super: functions.reduce_super,
    functools.cached_property: functions.reduce_cached_property,
    functools.partialmethod: functions.reduce_partialmethod,
    types.TracebackType: _reduce_traceback,
    types.MappingProxyType: iterators.reduce_mapping_proxy,
    **dict.fromkeys(iterators.DICT_ITERATORS, iterators.reduce_dict_iterator),
    iterators.ORDERED_ITERATOR: iterators.reduce_ordered_iterator,
    **dict.fromkeys(iterators.DICT_VIEWS, iterators.reduce_dict_view),
    **dict.fromkeys(itertools_fields.TYPES, itertools_fields.reduce_itertools),
    **dict.fromkeys(type_parameters.TYPES, type_parameters.reduce_type_parameter),
    object: reduce_sentinel,
    contextvars.ContextVar: reduce_context_variable,
    types.CodeType: _refuse("code is never stored; keep the function instead"),
    types.FrameType: _refuse("frames are never stored; keep what you need of it as text"),
    weakref.finalize: _refuse_finalizer,
}
_FIXED = frozenset(_REDUCERS)
_TYPE_LIMIT = 20_000

_IN_LOOP = "it belongs to an event loop; use Sojourn's counterpart, or keep it inside a step"


def _learn(kind: type) -> Reducer | None:
    """Decide once how instances of a class are stored."""
    if len(_REDUCERS) >= _TYPE_LIMIT:
        for each in [each for each in _REDUCERS if each not in _FIXED]:
            del _REDUCERS[each]
    reducer = _decide(kind)
    _REDUCERS[kind] = reducer
    return reducer


def _decide(kind: type) -> Reducer | None:
    if issubclass(kind, BaseException):
        return _pinned(kind, _reduce_exception)
    if issubclass(kind, type):
        return functions.reduce_class
    if issubclass(kind, types.ModuleType):
        return functions.reduce_module
    top = kind.__module__.partition(".")[0]
    if top in ("asyncio", "_asyncio"):
        return _refuse(_IN_LOOP)
    if kind.__module__ in ("_frozen_importlib", "importlib.machinery", "_frozen_importlib_external"):
        return _refuse("this is a module's dictionary; import the module inside the function that needs it")
    if stores_by_name(kind):
        return reduce_member
    return _pinned(kind, heir_reducer(kind) or keyed_reducer(kind)) or stateless_reducer(kind)

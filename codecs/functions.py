"""Functions, methods, cells, classes and modules in a frame: by reference, never by value.

A function that is found under its own name goes by that name. A nested function, a lambda or a function
behind a decorator goes by the reference of its code (`identity`) with what is its own: cells, defaults,
attributes. So no module dictionary and no code object ever gets into a frame. A class defined in a function
is made anew by cloudpickle's skeleton, its methods going the same way as every function; within one process
it comes back as the same class.
"""

from __future__ import annotations

import builtins
import enum
import functools
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .globals import global_value, is_named, name_of_function, place_in
from .identity import CannotCapture, CodeNotFound, code_of

if TYPE_CHECKING:
    from .pickler import FramePickler


def reduce_function(pickler: FramePickler, function: types.FunctionType) -> Any:
    """By its own name when that leads to it, else by the reference of its code."""
    if is_named(function):
        return NotImplemented
    name = name_of_function(function) if function.__closure__ else None
    if name is not None:
        return global_value, (function.__module__, name)
    try:
        code = code_of(function.__code__, function.__globals__)
    except CodeNotFound as error:
        raise CannotCapture("function", str(error)) from error
    if code.function is function:
        return named_function, (pickler.reference(code),)
    closure = function.__closure__
    state: tuple[Any, ...] = (
        function.__defaults__, function.__kwdefaults__, dict(function.__dict__), _names(function)
    )  # fmt: skip
    parameters = getattr(function, "__type_params__", ())  # from 3.12
    shown = _shown(function)
    if parameters or shown:
        state = (*state, parameters, shown) if shown else (*state, parameters)
    return make_function, (pickler.reference(code), closure), state, None, None, fill_function


def _names(function: types.FunctionType) -> tuple[str, str, str] | None:
    code = function.__code__
    names = function.__name__, function.__qualname__, function.__module__
    own = code.co_name, code.co_qualname, function.__globals__.get("__name__")
    return None if names == own else names


def _shown(function: types.FunctionType) -> dict[str, Any]:
    """What a function shows and its code does not tell: annotations, and a docstring that it was given."""
    shown: dict[str, Any] = {}
    if function.__doc__ != _written_docstring(function.__code__):
        shown["doc"] = function.__doc__
    annotate = getattr(function, "__annotate__", None)  # from 3.14: a function that computes them
    if type(annotate) is types.FunctionType and annotate.__closure__ is None:
        shown["annotate"] = annotate
    elif annotations := _annotations(function):
        shown["annotations"] = {name: _storable(value) for name, value in annotations.items()}
    return shown


_HAS_DOC = 0x4000000  # CO_HAS_DOCSTRING, from 3.13


def _written_docstring(code: types.CodeType) -> str | None:
    """The docstring in the source of a function."""
    if sys.version_info >= (3, 13) and not code.co_flags & _HAS_DOC:
        return None
    first = code.co_consts[0] if code.co_consts else None
    return first if type(first) is str else None


def _annotations(of: Any) -> dict[str, Any]:
    try:
        evaluated: dict[str, Any] = of.__annotations__
        return evaluated
    except Exception:  # from 3.14 they are computed here, and may name what is not there
        import annotationlib  # type: ignore[import-not-found, unused-ignore]  # CPython 3.14 and later only

        found: dict[str, Any] = annotationlib.get_annotations(of, format=annotationlib.Format.STRING)
        return found


def _storable(annotation: Any) -> Any:
    """An annotation, as text where it names a class that cannot be stored: nobody may ever look at it."""
    if not _is_stuck(annotation):
        return annotation
    return annotation.__qualname__ if isinstance(annotation, type) else repr(annotation)


def _is_stuck(annotation: Any) -> bool:
    parts = getattr(annotation, "__args__", None)
    if isinstance(parts, tuple) and any(_is_stuck(part) for part in parts):
        return True
    return (
        isinstance(annotation, type)
        and "<locals>" in annotation.__qualname__
        and _has_generated_methods(annotation)
        and place_in(annotation.__module__, annotation) is None
    )


def named_function(reference: Any) -> Any:
    """Stands in a frame for a function that is found by its code."""
    raise NotImplementedError("filled in by each load")


def make_function(reference: Any, closure: Any) -> Any:
    """Stands in a frame for a function made around code that is found by name."""
    raise NotImplementedError("filled in by each load")


def fill_function(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    """Give a fresh function its defaults, attributes and names, and what it shows."""
    defaults, keyword_defaults, attributes, names, *more = state
    function.__defaults__ = defaults
    function.__kwdefaults__ = keyword_defaults
    function.__dict__.update(attributes)
    if more and more[0]:
        function.__type_params__ = more[0]  # type: ignore[attr-defined]  # from 3.12
    shown = more[1] if len(more) > 1 else {}
    if "doc" in shown:
        function.__doc__ = shown["doc"]
    if "annotations" in shown:
        function.__annotations__ = shown["annotations"]
    if "annotate" in shown:
        function.__annotate__ = shown["annotate"]  # type: ignore[attr-defined]  # from 3.14
    if names is not None:
        function.__name__, function.__qualname__, function.__module__ = names


def reduce_cell(_: FramePickler, cell: types.CellType) -> Any:
    """In two phases: a cell may hold the function that holds it."""
    try:
        content = cell.cell_contents
    except ValueError:
        return types.CellType, ()
    return types.CellType, (), (content,), None, None, fill_cell


def fill_cell(cell: types.CellType, state: tuple[Any]) -> None:
    """Put the content back into a cell."""
    cell.cell_contents = state[0]


def reduce_method(_: FramePickler, method: types.MethodType) -> Any:
    """By function and object: a method's name may lead elsewhere."""
    return types.MethodType, (method.__func__, method.__self__)


def reduce_module(_: FramePickler, module: types.ModuleType) -> Any:
    """A module bound to a local by an import goes by its name."""
    if sys.modules.get(module.__name__) is not module:
        raise CannotCapture("module", f"module `{module.__name__}` cannot be imported by its name")
    return import_module, (module.__name__,)


def import_module(name: str) -> types.ModuleType:
    """Restores a module held in a local."""
    __import__(name)
    return sys.modules[name]


def reduce_class(_: FramePickler, kind: type) -> Any:
    """By name, its own or the one that its module holds it under (a class decorator's); a class defined in a function by its
    parts; one of C that only `types` knows (`mappingproxy`) by its name there.
    """
    if "<locals>" not in kind.__qualname__:
        hidden = kind.__module__ == "builtins" and not hasattr(builtins, kind.__qualname__)
        name = _NAMES_IN_TYPES.get(kind) if hidden else None
        return NotImplemented if name is None else (global_value, ("types", name))
    held = place_in(kind.__module__, kind)
    if held is not None:
        return global_value, held
    if _has_generated_methods(kind):
        raise CannotCapture(
            kind.__qualname__,
            "its methods are generated, so their code is nowhere to be found again; define the class at module level",
        )
    if _is_made_with_arguments(kind):
        raise CannotCapture(
            kind.__qualname__,
            "its metaclass wants arguments, which are not kept; define the class at module level",
        )
    from cloudpickle import cloudpickle  # type: ignore[import-untyped]  # it has no stubs

    skeleton, arguments, state, *_ = cloudpickle._dynamic_class_reduce(kind)
    space = state[0]
    space["__qualname__"] = kind.__qualname__  # which cloudpickle forgets
    for name, value in list(space.items()):
        if type(value) is types.MemberDescriptorType and value.__objclass__ is kind:
            del space[name]  # a private slot: its class makes it
    if sys.version_info >= (3, 14) and (
        annotations := _annotations(kind)
    ):  # what computes them holds the class's dictionary
        space["__annotations__"] = {name: _storable(value) for name, value in annotations.items()}
    if not issubclass(kind, enum.Enum):
        if "__slots__" in space:
            arguments[3]["__slots__"] = space["__slots__"]  # which cloudpickle sets when it is too late
        return make_class, (skeleton, arguments[4], arguments), (state, {}), None, None, fill_class
    # cloudpickle leaves out other names for a member, and what its `__init__` gave it.
    members = {name: member._value_ for name, member in kind.__members__.items()}
    for name in members:
        space.pop(name, None)
    arguments = (*arguments[:3], members, *arguments[4:])
    kept = {name: given for name, member in kind.__members__.items() if (given := _given(member))}
    return make_class, (skeleton, arguments[5], arguments), (state, kept), None, None, fill_class


def make_class(skeleton: Callable[..., type], known_as: str, arguments: tuple[Any, ...]) -> type:
    """A class that was defined in a function: the one that is there already in this process, or one without its contents."""
    from cloudpickle import cloudpickle

    known: type | None = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(known_as)
    if known is not None:
        return known
    try:
        return skeleton(*arguments)
    except Exception:
        if skeleton is not cloudpickle._make_skeleton_class:
            raise
        try:
            return _without_init_subclass(skeleton, *arguments)
        except TypeError:
            cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.pop(known_as, None)  # half made
            raise


def _without_init_subclass(
    skeleton: Callable[..., type], metaclass: type, name: str, bases: tuple[Any, ...], *more: Any
) -> type:
    """A class whose base does not hear of it: it asks for what the class statement gave, or for what stands in the class."""
    own = types.resolve_bases(bases)
    deaf = _DeafWithAttributes if any(base.__dictoffset__ for base in own) else _Deaf
    made = skeleton(metaclass, name, (deaf, *bases), *more)
    made.__bases__ = own
    return made


class _Deaf:
    """Stands before a base for as long as a class is made. Bases are exchanged only for those of one layout."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        return


class _DeafWithAttributes:
    def __init_subclass__(cls) -> None:
        return


def fill_class(kind: Any, contents: tuple[Any, dict[str, dict[str, Any]]]) -> None:
    """Give a class its contents, and the members of an enumeration their attributes."""
    from cloudpickle import cloudpickle

    state, kept = contents
    if getattr(kind, "__annotate__", None) is not None:  # from 3.14: it is there already, and computes them
        state[0].pop("__annotations__", None)
    cloudpickle._class_setstate(kind, state)
    for name, given in kept.items():
        vars(kind[name]).update(given)


_OF_A_MEMBER = frozenset(("_value_", "_name_", "__objclass__", "_sort_order_"))


def _given(member: enum.Enum) -> dict[str, Any]:
    return {name: value for name, value in vars(member).items() if name not in _OF_A_MEMBER}


def _has_generated_methods(kind: type) -> bool:
    """Whether a class is a data class of some library, a named tuple or a typed dictionary: made by `exec`, in no code object."""
    marks = ("__dataclass_fields__", "__attrs_attrs__", "__struct_fields__", "model_fields", "__total__")
    return any(mark in vars(kind) for mark in marks) or (issubclass(kind, tuple) and "_fields" in vars(kind))


def _is_made_with_arguments(kind: type) -> bool:
    """Whether a class statement like that of `kind` fails without the arguments that its metaclass was given."""
    metaclass: Any = type(kind)
    return wants_more(metaclass.__new__, 4) or wants_more(metaclass.__init__, 4)


def wants_more(function: Any, given: int) -> bool:
    """Whether a Python function cannot be called with so many arguments by position, and no others."""
    if not isinstance(function, types.FunctionType):
        return False
    code = function.__code__
    needed = code.co_argcount - len(function.__defaults__ or ())
    return needed > given or code.co_kwonlyargcount > len(function.__kwdefaults__ or ())


_KNOWN_TO_PICKLE = (type(None), type(...), type(NotImplemented))
_NAMES_IN_TYPES = {
    kind: name
    for name, kind in reversed(vars(types).items())
    if isinstance(kind, type) and kind not in _KNOWN_TO_PICKLE
}


def reduce_property(_: FramePickler, value: property) -> Any:
    """Part of a class defined in a function."""
    return property, (value.fget, value.fset, value.fdel, value.__doc__)


def reduce_wrapped(_: FramePickler, value: staticmethod[..., Any] | classmethod[Any, ..., Any]) -> Any:
    """Part of a class defined in a function."""
    return type(value), (value.__func__,)


def reduce_cached_property(_: FramePickler, value: functools.cached_property[Any]) -> Any:
    """Part of a class defined in a function; without the lock that 3.11 gives it."""
    return functools.cached_property, (value.func,), {"attrname": value.attrname, "__doc__": value.__doc__}


def reduce_partialmethod(_: FramePickler, value: functools.partialmethod[Any]) -> Any:
    """Part of a class defined in a function."""
    return partialmethod_of, (value.func, value.args, dict(value.keywords))


def partialmethod_of(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Restores a `partialmethod`: from 3.14 it cannot be made empty."""
    return functools.partialmethod(function, *arguments, **keywords)


def reduce_super(_: FramePickler, value: super) -> Any:
    """`super()` kept in a variable."""
    parts: Any = value  # typeshed leaves these attributes out
    return super, (parts.__thisclass__, parts.__self__)

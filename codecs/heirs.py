"""Instances that pickle would put together by asking their class, or the instance itself, once more.

pickle calls a class with what its base takes, hands items to `append`, `extend` or `__setitem__`, and looks for
`__setstate__` on an instance that has no attributes yet. What a class adds to its base then runs again at each move (`class
Cents(int)` that multiplies by 100 does so once more), or fails where no node can help; and where a base has a `__reduce__` or
`__getstate__` of its own (`defaultdict`, `date`, a class with slots by attrs), what its heir keeps besides is left out.

So instances of classes that override any of this are taken apart and put together by the base, with all they keep. A value
(hashable: a number, a text, a date) is asked of the class first, as pickle does, for the class may keep one instance of each;
what comes is taken when it equals what was stored. Who says how it is stored (`__reduce__`, `__getnewargs__`,
`__setstate__`) is believed.
"""

from __future__ import annotations

import copy
import copyreg
import dataclasses
import dis
import enum
import sys
import types
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from .functions import wants_more
from .globals import reduce_stateless

if TYPE_CHECKING:
    from .pickler import FramePickler

_VALUES: tuple[Any, ...] = (int, float, complex, str, bytes, tuple, frozenset)
_METHODS: dict[Any, tuple[str, ...]] = {
    list: ("__iter__", "append", "extend"),
    dict: ("items", "__setitem__"),
}
_NEW_OBJECT: Any = copyreg.__newobj__  # type: ignore[attr-defined]  # typeshed leaves it out


def heir_reducer(kind: type) -> Callable[[FramePickler, Any], Any] | None:
    """How instances of `kind` are stored where pickle's way would run its code again or lose something, else None."""
    if not _is_written(kind) or issubclass(kind, (enum.Enum, type)) or kind in copyreg.dispatch_table:
        return None
    if hasattr(kind, "__struct_fields__") and hasattr(kind, "__struct_config__"):
        return _reduce_struct if hasattr(kind, "__post_init__") or kind.__dictoffset__ else None
    owner = _owner(kind, "__reduce_ex__", "__reduce__")
    if owner is not object:
        return None if _is_written(owner) else _reduce_heir
    if _sets_its_dictionary(kind):
        return _reduce_sharing
    base = next((each for each in kind.__mro__ if each in _VALUES or each in _METHODS), object)
    if base in _VALUES:
        return _reduce_heir if _makes_itself(kind) else None
    if any(_is_written(_owner(kind, name)) for name in _METHODS.get(base, ())):
        return _reduce_heir
    return _reduce_asked if _answers(kind) or _forgets(kind) else None


def _is_written(kind: type) -> bool:
    """Whether a class is the user's or a library's, and no part of Python."""
    return kind.__module__.partition(".")[0] not in sys.stdlib_module_names and kind.__module__ != "builtins"


def _owner(kind: type, *names: str) -> type:
    """The class that an instance of `kind` has one of these methods from."""
    return next((each for each in kind.__mro__ if any(name in vars(each) for name in names)), object)


def _makes_itself(kind: type) -> bool:
    """Whether a value's class has a `__new__` and does not say what to call it with."""
    order = kind.__mro__.index
    makes, tells = _owner(kind, "__new__"), _owner(kind, "__getnewargs__", "__getnewargs_ex__")
    return _is_written(makes) and order(makes) < order(tells)


def _answers(kind: type) -> bool:
    """Whether an instance might answer when it is asked for `__setstate__`, refuse to be given its slots, or cannot be made."""
    if hasattr(kind, "__setstate__") or hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__"):
        return False
    asked = hasattr(kind, "__getattr__") or _owner(kind, "__getattribute__") is not object
    kept = _owner(kind, "__setattr__") is not object and any(
        "__slots__" in vars(each) for each in kind.__mro__
    )
    return asked or kept or _needs_arguments(kind)


def _needs_arguments(kind: type) -> bool:
    """Whether a plain class cannot be made by `__new__` without arguments."""
    return wants_more(kind.__new__, 1)


def _sets_its_dictionary(kind: type) -> bool:
    """Whether a method sets `self.__dict__`: to the instance itself, say, or to one that all instances share."""
    if not kind.__dictoffset__ or hasattr(kind, "__setstate__") or _owner(kind, "__getstate__") is not object:
        return False
    methods = (member for each in kind.__mro__ if _is_written(each) for member in vars(each).values())
    return any(
        isinstance(member, types.FunctionType)
        and "__dict__" in member.__code__.co_names
        and any(
            each.opname == "STORE_ATTR" and each.argval == "__dict__" for each in dis.get_instructions(member)
        )
        for member in methods
    )


def _forgets(kind: type) -> bool:
    """Whether a class has attributes that the `__getstate__` made for its base does not know: that of attrs or of a dataclass."""
    base = _owner(kind, "__getstate__")
    if not _is_made(base):
        return False
    heirs = kind.__mro__[: kind.__mro__.index(base)]
    members = (member for each in heirs for member in vars(each).values())
    return (bool(kind.__dictoffset__) and not base.__dictoffset__) or any(map(_is_slot, members))


def _is_slot(member: Any) -> bool:
    return type(member) is types.MemberDescriptorType


def has_made_state(kind: type) -> bool:
    """Whether instances are stored by the `__getstate__` that attrs or `dataclass` made for their slots, and by nothing else."""
    by_default = _owner(kind, "__reduce_ex__", "__reduce__") is object
    return by_default and _is_made(_owner(kind, "__getstate__"))


def _is_made(base: type) -> bool:
    """Whether attrs or `dataclass` wrote the `__getstate__` of that class."""
    made = vars(base).get("__getstate__")
    if "__attrs_attrs__" in vars(base):
        return isinstance(made, types.FunctionType) and made.__code__.co_name == "slots_getstate"
    return made is not None and made is _DATACLASS_STATE


_DATACLASS_STATE = getattr(dataclasses, "_dataclass_getstate", None)


# -- taking apart ------------------------------------------------------------------------------------------


def _reduce_heir(_: FramePickler, value: Any) -> Any:
    kind = type(value)
    reduced = value.__reduce_ex__(5)
    if type(reduced) is not tuple or reduced[0] not in (_NEW_OBJECT, kind):
        return reduced
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    owner = _owner(kind, "__reduce_ex__", "__reduce__")
    base = owner
    if make is _NEW_OBJECT:
        base = next(each for each in kind.__mro__ if each in _VALUES or each in _METHODS)
        arguments = (tuple(tuple.__iter__(value)),) if base is tuple else arguments[1:]
        items = [*list.__iter__(value)] if base is list else None
        pairs = [*dict.items(value)] if base is dict else None
    own = None if _is_attributes(state) else _attributes(value, base)
    contents = (base, state, own, items and list(items), pairs and list(pairs))
    if base.__hash__ is None:
        return make_heir, (base, kind, arguments), contents, None, None, fill_heir
    return make_value, (base, kind, make is kind, arguments), contents, None, None, fill_heir


def _is_attributes(state: Any) -> bool:
    """Whether what the base tells of an instance are its attributes already."""
    return type(state) is dict or (type(state) is tuple and len(state) == 2 and type(state[1]) is dict)


def _attributes(value: Any, base: type) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What an heir keeps besides its base: its dictionary, and the slots of the classes before the base."""
    kept = dict(_dictionary(value)) if type(value).__dictoffset__ else {}
    slots = dict(_slots(value, base))
    return (kept, slots) if kept or slots else None


def _dictionary(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    return found


def _slots(value: Any, base: type) -> Iterator[tuple[str, Any]]:
    for each in type(value).__mro__:
        if each is base:
            break
        for name, descriptor in vars(each).items():
            if _is_slot(descriptor):
                try:
                    yield name, descriptor.__get__(value)
                except AttributeError:  # not set
                    continue


def _reduce_asked(pickler: FramePickler, value: Any) -> Any:
    reduced = value.__reduce_ex__(5)
    if type(reduced) is not tuple or reduced[0] is not _NEW_OBJECT:
        return reduced
    make, arguments, state, *more = reduced
    kind = type(value)
    if _forgets(kind):
        own = _attributes(value, _owner(kind, "__getstate__")) or ()
        return make, arguments, (state, *own), *(more or (None, None)), set_both
    if _needs_arguments(kind):
        make, arguments = object_of, (kind,)
    if state is None:
        return (make, arguments, None, *more) if any(more) else reduce_stateless(pickler, value)
    return make, arguments, state, *(more or (None, None)), set_state


def _reduce_sharing(_: FramePickler, value: Any) -> Any:
    reduced = value.__reduce_ex__(5)
    if type(reduced) is not tuple or reduced[0] is not _NEW_OBJECT or type(reduced[2]) is tuple:
        return reduced
    make, arguments, _state, *more = reduced
    return make, arguments, _dictionary(value), *(more or (None, None)), set_dictionary


def _reduce_struct(_: FramePickler, value: Any) -> Any:
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    kept = _dictionary(value) if type(value).__dictoffset__ else None
    return make_struct, (type(value), fields), kept or None


# -- putting together --------------------------------------------------------------------------------------


def make_heir(base: type, kind: type, arguments: tuple[Any, ...]) -> Any:
    """An instance of `kind` that its base makes."""
    made = base.__new__(kind, *arguments)
    if base.__init__ is not object.__init__:  # type: ignore[misc]  # of the base, whatever the heir has
        base.__init__(made, *arguments)  # type: ignore[misc]  # likewise
    return made


def make_value(base: Any, kind: type, called: bool, arguments: tuple[Any, ...]) -> Any:
    """A value as its class makes it, when that equals the one that was stored; else as its base does."""
    try:
        told = arguments[0] if base is tuple and hasattr(kind, "_fields") else arguments
        made = kind(*told) if called else kind.__new__(kind, *told)
        if type(made) is kind and base.__eq__(made, base(*arguments)) is True:
            return made
    except Exception:  # a class that takes other arguments, or does anything at all with these
        pass
    return make_heir(base, kind, arguments)


def fill_heir(made: Any, contents: tuple[Any, ...]) -> None:
    """Give an instance what its base tells of it, its own attributes, and its items, by the methods of the base."""
    base, state, own, items, pairs = contents
    if state is not None:
        set_state(made, state)
    if own is not None:
        set_attributes(made, *own)
    if items:
        base.extend(made, items)
    for key, value in pairs or ():
        base.__setitem__(made, key, value)


def set_state(made: Any, state: Any) -> None:
    """As pickle does it, but ask the class for `__setstate__`, and set slots past a `__setattr__`."""
    setter = getattr(type(made), "__setstate__", None)
    if setter is not None:
        setter(made, state)
        return
    attributes, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
    set_attributes(made, attributes or {}, slots or {})


def set_attributes(made: Any, attributes: dict[str, Any], slots: dict[str, Any]) -> None:
    """Put attributes where they were, whatever the class does when one is set."""
    if attributes:
        _dictionary(made).update((sys.intern(name), value) for name, value in attributes.items())
    for name, value in slots.items():
        object.__setattr__(made, name, value)


def set_both(made: Any, state: tuple[Any, ...]) -> None:
    """What the `__getstate__` of the base knows, and the attributes and slots that it does not."""
    known, attributes, slots = (*state, {}, {})[:3]
    set_state(made, known)
    set_attributes(made, attributes, slots)


def set_dictionary(made: Any, kept: Any) -> None:
    """The very dictionary that the instance had: others may have it too, or be it."""
    object.__setattr__(made, "__dict__", kept)


def object_of(kind: type) -> Any:
    """An empty instance of a plain class whose `__new__` wants arguments."""
    return object.__new__(kind)


def make_struct(kind: Any, fields: dict[str, Any]) -> Any:
    """A msgspec struct with these fields, without its `__post_init__`: that was called when it was made."""
    made = copy.copy(_blank(kind))
    for name, value in fields.items():
        msgspec.structs.force_setattr(made, name, value)
    return made


@lru_cache(maxsize=512)
def _blank(kind: Any) -> Any:
    """An instance to copy. msgspec offers no way to make one in silence, so an heir makes it, which is then told its class."""
    space = {"__post_init__": _Quiet.__post_init__, "__module__": kind.__module__}
    heir: Any = type(kind)(kind.__name__, (_Quiet, kind), space)
    blank = heir(**dict.fromkeys(kind.__struct_fields__))
    object.__dict__["__class__"].__set__(blank, kind)
    return blank


class _Quiet:
    """Stands before the class, so that a base that keeps a list of its heirs hears of none."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        return

    def __post_init__(self) -> None:
        return

"""Instances with a hash of their own, which may stand in a set or be a key of what they hold: nodes that know each other.

pickle gives an object its attributes after everything in them is restored. In a ring the set is filled before, and asks for a
hash of what has no attributes yet: that fails, or is silently wrong when the class has a default for one. So the attributes
that cannot lead back are given at once, when the object is made: numbers, texts and the like, of which hashes are made.
"""

from __future__ import annotations

import copyreg
import dataclasses
import datetime
import decimal
import enum
import types
import uuid
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .globals import has_slots, is_default, is_plain, reduce_stateless
from .heirs import has_made_state

if TYPE_CHECKING:
    from .pickler import FramePickler

_ATOMS = frozenset(
    (
        int, float, complex, str, bytes, bool, type(None), decimal.Decimal, datetime.date, datetime.datetime, datetime.time,
        datetime.timedelta, uuid.UUID,
    )
)  # fmt: skip


def keyed_reducer(kind: type) -> Callable[[FramePickler, Any], Any] | None:
    """How instances of `kind` are stored when Python code makes their hash; None for others, and for a class that says itself how it
    is stored.
    """
    if not isinstance(kind.__hash__, types.FunctionType) or kind in copyreg.dispatch_table:
        return None
    if hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__"):
        return None
    if hasattr(kind, "__setstate__"):
        return _reduce_fields if has_made_state(kind) else None
    if is_plain(kind):
        return _reduce_plain
    return _reduce_slots if is_default(kind) and has_slots(kind) else None


def _reduce_plain(pickler: FramePickler, value: Any) -> Any:
    kept = value.__dict__
    if not kept:
        return reduce_stateless(pickler, value)
    early = _early(kept)
    if len(early) in (0, len(kept)):
        return NotImplemented
    rest = {name: each for name, each in kept.items() if name not in early}
    return make_keyed, (type(value), early), (tuple(kept), rest), None, None, fill_keyed


def _reduce_slots(_: FramePickler, value: Any) -> Any:
    state = value.__getstate__()
    if type(state) is not tuple:
        return NotImplemented  # no slot is set
    attributes, slots = state
    early, in_slots = _early(attributes or {}), _early(slots)
    if not early and (not in_slots or (not attributes and len(in_slots) == len(slots))):
        return NotImplemented
    rest = {name: each for name, each in slots.items() if name not in in_slots}
    if not attributes:
        return make_keyed, (type(value), in_slots), (None, rest)
    others = {name: each for name, each in attributes.items() if name not in early}
    return (
        make_slotted,
        (type(value), early, in_slots),
        (tuple(attributes), others, rest),
        None,
        None,
        fill_slotted,
    )


def _reduce_fields(_: FramePickler, value: Any) -> Any:
    """Slots of which `dataclass` or attrs makes the state."""
    kept = _fields(value)
    early = _early(kept)
    if len(early) in (0, len(kept)):
        return NotImplemented
    return make_keyed, (type(value), early), value.__getstate__()


def _early(kept: dict[str, Any]) -> dict[str, Any]:
    """The attributes that cannot lead back to who has them."""
    return {name: each for name, each in kept.items() if _is_atom(each)}


def _is_atom(value: Any, levels: int = 3) -> bool:
    kind: type = type(value)
    if kind in _ATOMS or isinstance(value, enum.Enum):
        return True
    parts = _parts_of(kind) if levels else None
    return parts is not None and all(_is_atom(each, levels - 1) for each in parts(value))


@lru_cache(maxsize=1024)
def _parts_of(kind: type) -> Callable[[Any], Iterable[Any]] | None:
    """What gives everything that is stored of an instance, if anything does."""
    if kind in (tuple, frozenset) or (issubclass(kind, tuple) and not kind.__dictoffset__):
        return iter
    if kind in copyreg.dispatch_table:
        return None
    if is_plain(kind):
        return lambda value: value.__dict__.values()
    return (lambda value: _fields(value).values()) if has_made_state(kind) else None


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a data class."""
    kind = type(value)
    names = [each.name for each in getattr(kind, "__attrs_attrs__", None) or dataclasses.fields(kind)]
    return {name: getattr(value, name, None) for name in names}


def make_keyed(kind: Any, early: dict[str, Any]) -> Any:
    """A fresh instance that has these attributes already."""
    made = kind.__new__(kind)
    if is_plain(kind):
        made.__dict__.update(early)  # past a property of that name
        return made
    for name, each in early.items():
        object.__setattr__(made, name, each)
    return made


def fill_keyed(made: Any, state: tuple[tuple[str, ...], dict[str, Any]]) -> None:
    """The others, in the order in which they were."""
    names, rest = state
    kept = made.__dict__
    every = {**kept, **rest}
    kept.clear()
    kept.update((name, every[name]) for name in names)


def make_slotted(kind: Any, attributes: dict[str, Any], slots: dict[str, Any]) -> Any:
    """A fresh instance that has these attributes and slots already."""
    made = kind.__new__(kind)
    made.__dict__.update(attributes)
    for name, each in slots.items():
        object.__setattr__(made, name, each)
    return made


def fill_slotted(made: Any, state: tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]) -> None:
    """The others, the attributes in the order in which they were."""
    names, rest, slots = state
    fill_keyed(made, (names, rest))
    for name, each in slots.items():
        object.__setattr__(made, name, each)

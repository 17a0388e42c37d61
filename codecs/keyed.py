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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .globals import is_plain, reduce_stateless
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
    """How instances of `kind` are stored when Python code makes their hash and their attributes are known: those of a plain class, or
    slots by `dataclass` or attrs. None for others, and for a class that says itself how it is stored.
    """
    if not isinstance(kind.__hash__, types.FunctionType) or kind in copyreg.dispatch_table:
        return None
    if hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__"):
        return None
    if hasattr(kind, "__setstate__"):
        return _reduce_slots if has_made_state(kind) else None
    return _reduce_plain if is_plain(kind) else None


def _reduce_plain(pickler: FramePickler, value: Any) -> Any:
    kept = value.__dict__
    if not kept:
        return reduce_stateless(pickler, value)
    early = _early(kept)
    if len(early) == len(kept):
        return NotImplemented
    rest = {name: each for name, each in kept.items() if name not in early}
    return make_keyed, (type(value), early), (tuple(kept), rest), None, None, fill_keyed


def _reduce_slots(_: FramePickler, value: Any) -> Any:
    kind = type(value)
    names = [each.name for each in getattr(kind, "__attrs_attrs__", None) or dataclasses.fields(kind)]
    kept = {name: getattr(value, name, None) for name in names}
    early = _early(kept)
    return NotImplemented if len(early) == len(kept) else (make_keyed, (kind, early), value.__getstate__())


def _early(kept: dict[str, Any]) -> dict[str, Any]:
    """The attributes that cannot lead back to who has them."""
    return {name: each for name, each in kept.items() if _is_atom(each)}


def _is_atom(value: Any, levels: int = 3) -> bool:
    kind = type(value)
    if kind in _ATOMS or isinstance(value, enum.Enum):
        return True
    return kind in (tuple, frozenset) and levels > 0 and all(_is_atom(each, levels - 1) for each in value)


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

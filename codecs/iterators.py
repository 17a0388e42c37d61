"""Iterators and views of the standard library that do not pickle by themselves, or not faithfully."""

from __future__ import annotations

import collections
import ctypes
import gc
import types
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .identity import CannotCapture

if TYPE_CHECKING:
    from .pickler import FramePickler

_EMPTY: dict[Any, Any] = {}
_DICT_WAYS: tuple[Any, ...] = (
    lambda d: iter(d),
    lambda d: iter(d.values()),
    lambda d: iter(d.items()),
    lambda d: reversed(d),
    lambda d: reversed(d.values()),
    lambda d: reversed(d.items()),
)
_WAY_OF = {type(way(_EMPTY)): index for index, way in enumerate(_DICT_WAYS)}


def reduce_dict_iterator(_: FramePickler, iterator: Any) -> Any:
    """By its dictionary and how far it is:

    so it still sees the dictionary, and still notices that it has changed.
    """
    way = _WAY_OF[type(iterator)]
    held = [each for each in gc.get_referents(iterator) if isinstance(each, dict)]
    if not held:
        return dict_iterator, (way, _EMPTY, 0)
    try:
        remaining = len(iterator.__reduce__()[1][0])
    except RuntimeError:
        raise CannotCapture(
            type(iterator).__name__,
            "its dictionary has changed size, so the loop over it would fail; loop over a copy",
        ) from None
    return dict_iterator, (way, held[0], len(held[0]) - remaining)


def dict_iterator(way: int, of: dict[Any, Any], taken: int) -> Any:
    """Restores an iterator over a dictionary."""
    iterator = _DICT_WAYS[way](of)
    for _ in range(taken):
        next(iterator)
    return iterator


# CPython's one iterator of an OrderedDict starts, after its head, with what it gives: 2 keys, 4 values, 6 both; 1 more backwards.
_ORDERED_WAYS: dict[int, Any] = {
    2: lambda d: iter(d.keys()),
    4: lambda d: iter(d.values()),
    6: lambda d: iter(d.items()),
    3: lambda d: reversed(d.keys()),
    5: lambda d: reversed(d.values()),
    7: lambda d: reversed(d.items()),
}


def _ordered_way(iterator: Any) -> int:
    return ctypes.c_int.from_address(id(iterator) + 16).value


@lru_cache(maxsize=1)
def _is_as_expected() -> bool:
    sample = collections.OrderedDict(a=1)
    return all(_ordered_way(way(sample)) == number for number, way in _ORDERED_WAYS.items())


def reduce_ordered_iterator(_: FramePickler, iterator: Any) -> Any:
    """By its dictionary, what it gives, and how far it is; its own `__reduce__` gives what the dictionary holds now."""
    if not _is_as_expected():
        raise CannotCapture(
            "odict_iterator", "this Python keeps it in a way that is not known; loop over a list of it"
        )
    held = [each for each in gc.get_referents(iterator) if isinstance(each, collections.OrderedDict)]
    if not held:
        return NotImplemented  # it has ended
    try:
        remaining = len(iterator.__reduce__()[1][0])
    except RuntimeError:
        raise CannotCapture(
            "odict_iterator", "its dictionary has changed, so the loop over it would fail; loop over a copy"
        ) from None
    return ordered_iterator, (_ordered_way(iterator), held[0], len(held[0]) - remaining)


def ordered_iterator(way: int, of: Any, taken: int) -> Any:
    """Restores an iterator over an OrderedDict."""
    iterator = _ORDERED_WAYS[way](of)
    for _ in range(taken):
        next(iterator)
    return iterator


ORDERED_ITERATOR: type = type(iter(collections.OrderedDict()))

_VIEWS: tuple[Any, ...] = (dict.keys, dict.values, dict.items)
_VIEW_OF = {type(view(_EMPTY)): index for index, view in enumerate(_VIEWS)}


def reduce_dict_view(_: FramePickler, view: Any) -> Any:
    """`d.keys()`, `d.values()`, `d.items()` kept in a variable: they go on seeing their dictionary."""
    mapping = gc.get_referents(view)[0]
    return dict_view, (_VIEW_OF[type(view)], mapping)


def dict_view(which: int, of: dict[Any, Any]) -> Any:
    """Restores a view of a dictionary."""
    return _VIEWS[which](of)


def reduce_mapping_proxy(_: FramePickler, proxy: types.MappingProxyType[Any, Any]) -> Any:
    """A read-only view of a mapping."""
    return types.MappingProxyType, (gc.get_referents(proxy)[0],)


DICT_ITERATORS = tuple(_WAY_OF)
DICT_VIEWS = tuple(_VIEW_OF)

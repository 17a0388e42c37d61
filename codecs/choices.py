"""What a value of an enum or a `Literal` may be, where a decoder refused one: it says the path and not the choices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec.inspect as types

_TOKEN: Final = re.compile(r"\.(?P<name>\w+)|\[(?P<index>\d+|\.\.\.)\]")
_SHOWN: Final = 10


def choices(annotation: Any, path: str) -> str:
    """The values in words, `'red', 'blue'`, for a path without its `$`; empty when they are not found."""
    try:
        found: Sequence[types.Type] = [types.type_info(annotation)]
    except Exception:  # a class of the user's may raise anything, and this only makes an error's text better
        return ""
    for token in _TOKEN.finditer(path):
        found = [inner for one in _members(found) for inner in _inside(one, token["name"], token["index"])]
    values = list(dict.fromkeys(repr(value) for one in _members(found) for value in _values(one)))
    more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return ", ".join(values[:_SHOWN]) + more


def _members(found: Sequence[types.Type]) -> Iterator[types.Type]:
    for one in found:
        if isinstance(one, types.UnionType):
            yield from _members(one.types)
        elif isinstance(one, types.Metadata):
            yield from _members((one.type,))
        else:
            yield one


def _inside(one: types.Type, name: str | None, index: str | None) -> Iterator[types.Type]:
    """Types of what lies in a value of this type under a field's name, or an index (`...`: under a key)."""
    if name is not None:
        yield from (field.type for field in getattr(one, "fields", ()) if field.encode_name == name)
    elif isinstance(one, types.DictType):
        yield one.value_type
    elif isinstance(one, types.TupleType) and index != "...":
        yield from one.item_types[int(index or 0) :][:1]
    elif isinstance(one, types.CollectionType):
        yield one.item_type


def _values(one: types.Type) -> Iterator[Any]:
    if isinstance(one, types.EnumType):
        yield from (member.value for member in one.cls)
    elif isinstance(one, types.LiteralType):
        yield from one.values

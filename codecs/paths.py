"""How errors say where in a value something is: `$.args[0].address["street name"]`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

_MAX_LEVELS: Final = 128
"""How deep a search goes: values may be cyclic."""
_MAX_KEY: Final = 40


def member(key: object) -> str:
    """Return how a path names the member `key`: `.name`, or quoted and cut when it is no identifier."""
    text = str(key)
    return f".{text}" if text.isidentifier() and len(text) <= _MAX_KEY else f"[{text[:_MAX_KEY]!r}]"


def find_path(
    value: Any, wanted: Callable[[Any], bool], path: str = "$", levels: int = _MAX_LEVELS
) -> str | None:
    """Return the path of the first item inside `value`, keys included, for which `wanted` holds.

    Looks through containers and the fields of data classes.
    """
    if wanted(value):
        return path
    if levels == 0 or isinstance(value, (str, bytes)):
        return None
    for place, item in _items(value, path):
        found = find_path(item, wanted, place, levels - 1)
        if found is not None:
            return found
    return None


def _items(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{path} (a key)", key
            yield path + member(key), item
    elif isinstance(value, (Sequence, Set)):
        for number, item in enumerate(value):
            yield f"{path}[{number}]", item
    else:
        for name, item in fields_of(value):
            yield f"{path}.{name}", item


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass, msgspec struct, attrs or pydantic object; nothing for other objects."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif hasattr(value, "__attrs_attrs__"):
        names = [attribute.name for attribute in value.__attrs_attrs__]
    else:
        names = list(getattr(value, "__struct_fields__", None) or getattr(value, "__dict__", None) or ())
    for name in names:
        yield name, getattr(value, name, None)

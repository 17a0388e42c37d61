"""Members of an enumeration: by their name, since `auto()` gives another value when a member is added before them.

pickle stores the value, and would silently restore another member where the values have moved. The value goes along where it
is plain: a member that was renamed is found by it, as before.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pickler import FramePickler

_PLAIN = frozenset((int, str, bytes, float, bool, type(None)))


def stores_by_name(kind: type) -> bool:
    """Whether `kind` is an enumeration that does not say itself how its members are stored."""
    return issubclass(kind, enum.Enum) and getattr(kind.__reduce_ex__, "__module__", "") == "enum"


def reduce_member(_: FramePickler, member: Any) -> Any:
    """A member by its name; a combination of flags by their names."""
    kind, value = type(member), member._value_
    plain = value if type(value) in _PLAIN else None
    if member._name_ in kind.__members__:
        return member_of, (kind, member._name_, plain)
    if not isinstance(member, enum.Flag):
        return NotImplemented
    names = tuple(each._name_ for each in kind if each._value_ & value and each._value_ | value == value)
    rest = value
    for name in names:
        rest &= ~kind[name]._value_
    return flags_of, (kind, names, rest, value)


def member_of(kind: Any, name: str, value: Any) -> Any:
    """Restores a member. Raises ValueError when neither its name nor its value is there."""
    member = kind.__members__.get(name)
    return kind(value) if member is None else member


def flags_of(kind: Any, names: tuple[str, ...], rest: int, value: int) -> Any:
    """Restores a combination of flags; `rest` are bits without a name."""
    if not all(name in kind.__members__ for name in names):
        return kind(value)
    for name in names:
        rest |= kind[name]._value_
    return kind(rest)

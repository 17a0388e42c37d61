"""Classes that inherit from values and containers and change how they are made: strange programs, as `strange_programs`."""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import random
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, ClassVar, NamedTuple

import msgspec
from frame_programs import tick
from strange_programs import PROGRAMS, Log
from strange_programs import program as strange


class Cents(int):
    def __new__(cls, euros: int) -> Any:
        return super().__new__(cls, euros * 100)


class Shout(str):
    def __new__(cls, text: str) -> Any:
        return super().__new__(cls, text + "!")


class Twice(tuple[Any, ...]):
    def __new__(cls, items: Any) -> Any:
        return super().__new__(cls, [*items, *items])


class Turned(complex):
    def __new__(cls, number: complex) -> Any:
        return super().__new__(cls, number * 1j)


class Symbol(str):
    known: ClassVar[dict[str, Any]] = {}

    def __new__(cls, name: str) -> Any:
        return cls.known.setdefault(name, super().__new__(cls, name))


class Pair(NamedTuple):
    x: int
    y: int


class Scaled(Pair):
    def __new__(cls, x: int, y: int = 1) -> Any:
        return super().__new__(cls, x * 2, y * 2)


class Length(int):
    def __new__(cls, number: int, unit: str) -> Any:
        made = super().__new__(cls, number)
        made.unit = unit
        return made


class Money(Decimal):
    def __new__(cls, amount: str, currency: str = "EUR") -> Any:
        made = super().__new__(cls, Decimal(amount) * 2)
        made.currency = currency
        return made


class Weeks(timedelta):
    def __new__(cls, number: int) -> Any:
        return super().__new__(cls, weeks=number)


class Third(Fraction):
    def __new__(cls, number: int) -> Any:
        return super().__new__(cls, number, 3)


class Noted(date):
    pass


class Pathed(PurePosixPath):
    pass


class Owned(collections.defaultdict[str, list[int]]):
    def __init__(self, owner: str) -> None:
        super().__init__(list)
        self.owner = owner


class Votes(collections.Counter[str]):
    pass


class Dice(random.Random):
    pass


class Tags(set[str]):
    def __init__(self, owner: str, *tags: str) -> None:
        super().__init__(tags)
        self.owner = owner


class Wrapping(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, ("wrapped", value))


class ReadOnly(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("read only")


class Counting(dict[str, Any]):
    def __init__(self) -> None:
        self.writes = 0

    def __setitem__(self, key: str, value: Any) -> None:
        self.writes += 1
        super().__setitem__(key, value)


class Journal(list[Any]):
    def append(self, item: Any) -> None:
        super().append(("appended", item))

    def extend(self, items: Any) -> None:
        super().extend(("extended", item) for item in items)


class Window(collections.deque[int]):
    def __init__(self, size: int) -> None:
        super().__init__(maxlen=size)
        self.size = size


class Proxy:
    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class Nothing:
    """A null object: it answers every call with itself."""

    def __init__(self) -> None:
        self.kept = [1]

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


class SlottedProxy:
    __slots__ = ("_wrapped",)

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class Immutable:
    __slots__ = ("__hidden", "x")

    def __init__(self, x: int) -> None:
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "_Immutable__hidden", [x])

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)

    def hidden(self) -> Any:
        return self.__hidden


class Wanting:
    def __new__(cls, x: int) -> Any:
        made = super().__new__(cls)
        made.y = x + 1
        return made


class Normal(msgspec.Struct):
    total: int
    seen: list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.total > 50:
            raise ValueError(self.total)
        self.total *= 10
        self.seen.append("made")


class Listed(msgspec.Struct):
    x: int
    known: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Listed.known[cls.__name__] = cls

    def __post_init__(self) -> None:
        self.x += 1


class Heir(Listed, tag=True):
    y: list[int]


class Recent(collections.OrderedDict[str, int]):
    def __init__(self, size: int = 1, /, **items: int) -> None:
        self.size = size
        super().__init__(**items)

    def __getitem__(self, key: str) -> int:
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: int) -> None:
        super().__setitem__(key, value)
        if len(self) > self.size:
            self.popitem(last=False)


class Attributes(dict[str, Any]):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]  # as many do


class Registered(int):
    def __new__(cls, number: int) -> Any:
        return super().__new__(cls, number * 2)


def _registered(number: int) -> Any:
    made = int.__new__(Registered, number)
    made.how = "registered"  # type: ignore[attr-defined]
    return made


copyreg.pickle(Registered, lambda it: (_registered, (int(it),)))


class Strict(msgspec.Struct, kw_only=True, frozen=True, dict=True, weakref=True):
    a: int
    b: int = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    x: int


class Loose(Fixed):
    pass


def program(name: str, make: Callable[[], Any], look: Callable[[Any], Any]) -> None:
    async def held(log: Log) -> Any:
        value = CASES[name][0]()
        await tick("held")
        again = value
        log.append(CASES[name][1](value))
        await tick("again")
        return CASES[name][1](again), type(again).__name__, again is value

    CASES[name] = make, look
    globals()[name] = PROGRAMS[name] = held


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {}


def _with(value: Any, **attributes: Any) -> Any:
    for name, each in attributes.items():
        object.__setattr__(value, name, each)
    return value


program("a_number_made_anew", lambda: Cents(5), int)
program("a_text_made_anew", lambda: Shout("a"), str.__str__)
program("a_tuple_made_anew", lambda: Twice([1, [2]]), list)
program("a_complex_made_anew", lambda: Turned(2), complex)
program("a_text_of_which_there_is_one", lambda: Symbol("a"), lambda it: it is Symbol("a"))
program("a_named_tuple_made_anew", lambda: Scaled(1, 2), list)
program("a_number_with_a_unit", lambda: Length(5, "m"), lambda it: (int(it), it.unit))
program("a_decimal_with_a_currency", lambda: Money("5", "USD"), lambda it: (str(it), it.currency))
program("a_duration_made_otherwise", lambda: Weeks(2), str)
program("a_fraction_made_otherwise", lambda: Third(5), str)
program("a_date_with_a_note", lambda: _with(Noted(2026, 1, 2), note=[1]), lambda it: (str(it), it.note))
program("a_path_without_a_note", lambda: Pathed("a/b"), lambda it: (str(it), hash(it) == hash(Pathed("a/b"))))
program(
    "a_dictionary_with_an_owner",
    lambda: _put(Owned("me"), "a", [1]),
    lambda it: (dict(it), it["b"], it.owner),
)
program(
    "votes_with_a_topic", lambda: _with(Votes("abca"), topic="t"), lambda it: (dict(it), it.topic, it["z"])
)
program("dice_with_a_name", lambda: _with(Dice(7), name="n"), lambda it: (it.random(), it.name))
program("tags_with_an_owner", lambda: Tags("me", "a", "b"), lambda it: (sorted(it), it.owner))
program("items_that_are_wrapped", lambda: _put(Wrapping(), "a", 1), dict)
program("items_that_cannot_be_set", lambda: ReadOnly(a=1), dict)
program("items_that_are_counted", lambda: _put(Counting(), "a", 1), lambda it: (dict(it), it.writes))
program("entries_that_are_marked", lambda: _appended(Journal(), 1), list)
program("a_window_with_a_size", lambda: _appended(Window(2), 1), lambda it: (list(it), it.maxlen, it.size))
program("a_proxy", lambda: Proxy([1]), lambda it: (it.count(1), it._wrapped))
program("a_null_object", Nothing, lambda it: (it.kept, it.anything() is it))
program("a_proxy_with_slots", lambda: SlottedProxy([1]), lambda it: (it.count(1), it._wrapped))
program("slots_that_cannot_be_set", lambda: Immutable(3), lambda it: (it.x, it.hidden()))
program("a_class_that_wants_an_argument", lambda: Wanting(3), lambda it: it.y)
program("a_struct_that_changes_itself", lambda: Normal(5), lambda it: (it.total, it.seen))
program("a_struct_past_its_own_check", lambda: _with_field(Normal(5), "total", 99), lambda it: it.total)
program("a_struct_with_a_dictionary", lambda: _noted(Strict(a=1)), lambda it: (it.a, it.b, it.__dict__))
program(
    "a_struct_whose_base_lists_its_heirs",
    lambda: Heir(1, [2]),
    lambda it: (it.x, it.y, Listed.known == {"Heir": Heir}),
)
program(
    "what_was_used_last", lambda: _put(Recent(2, a=1, b=2), "a", 3), lambda it: (list(it.items()), it.size)
)
program("items_as_attributes", lambda: Attributes(a=1), lambda it: (it.a, dict(it)))
program("a_registered_way", lambda: _with(Registered(2), how="registered"), lambda it: (int(it), it.how))
program("attributes_beside_slots", lambda: _with(Loose(1), extra=[2]), lambda it: (it.x, it.extra))


def _put(mapping: Any, key: str, value: Any) -> Any:
    mapping[key] = value
    return mapping


def _appended(items: Any, item: Any) -> Any:
    items.append(item)
    return items


def _with_field(struct: Any, name: str, value: Any) -> Any:
    setattr(struct, name, value)
    return struct


def _noted(struct: Any) -> Any:
    struct.__dict__["note"] = [3]
    return struct


class Node:
    weight = 0  # a hash made too early is wrong, not an error

    def __init__(self, name: str, weight: int) -> None:
        self.peers: set[Any] = set()
        self.name, self.weight = name, weight
        self.table: dict[Any, Any] = {self: [self]}

        self.__dict__["hidden"] = 5

    @property
    def hidden(self) -> int:
        return int(self.__dict__["hidden"]) + 1

    def __hash__(self) -> int:
        return hash((self.weight, getattr(self, "name", "")))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and (self.name, self.weight) == (other.name, other.weight)


@dataclasses.dataclass(frozen=True)
class Key:
    held: list[Any] = dataclasses.field(default_factory=list, compare=False)
    number: int = 0
    path: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class SlottedKey:
    held: list[Any] = dataclasses.field(default_factory=list, compare=False)
    number: int = 0


def _ring() -> Any:
    one, two = Node("one", 1), Node("two", 2)
    one.peers.add(two)
    two.peers |= {one, two}
    return one


def _in_itself(key: Any) -> Any:
    key.held.append({key: key})
    return key


program(
    "nodes_that_know_each_other",
    _ring,
    lambda it: [
        (each.name, it in each.peers, each.table[each][0] is each, list(vars(each)))
        for each in (it, *it.peers)
    ],
)
program(
    "a_key_in_itself",
    lambda: _in_itself(Key(number=5, path=("a",))),
    lambda it: (it in it.held[0], it.held[0][it] is it, it.number, it.path),
)
program(
    "a_slotted_key_in_itself",
    lambda: _in_itself(SlottedKey(number=5)),
    lambda it: (it in it.held[0], it.held[0][it] is it),
)


class Itself(dict[str, Any]):
    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


class Same:
    kept: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.__dict__ = self.kept


class Alike:
    def __init__(self, other: Any = None) -> None:
        if other is not None:
            self.__dict__ = other.__dict__


@strange
async def dictionaries_that_are_shared(log: Log) -> Any:
    itself, same, other, one = Itself(a=1), Same(), Same(), Alike()
    two = Alike(one)
    same.x = one.x = 1  # type: ignore[attr-defined]  # they take any
    await tick("held")
    itself.b = same.y = one.y = 2  # type: ignore[attr-defined]  # likewise
    await tick("again")
    itself["c"] = 3
    seen: list[Any] = [other, two]
    return dict(itself), itself.c, [(each.x, each.y) for each in seen], itself.__dict__ is itself  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class Id:
    number: int


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Vertex:
    name: Any
    peers: set[Any] = dataclasses.field(default_factory=set, compare=False)


class SlottedNode:
    __slots__ = ("_SlottedNode__seen", "__weakref__", "name", "peers", "unset")

    def __init__(self, name: Any) -> None:
        self.peers: set[Any] = set()
        self.name = name
        self.__seen = [name]

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SlottedNode) and self.name == other.name


class MixedNode(SlottedNode):
    """With a dictionary besides: what is in it has an order, and one name is shown by a property."""

    def __init__(self, name: Any) -> None:
        self.group = [1]
        self.number = 3
        super().__init__(name)
        vars(self)["shown"] = 5

    @property
    def shown(self) -> int:
        return self.number

    def __hash__(self) -> int:
        return hash((self.name, self.number))


def _slotted_ring(kind: Any, one: Any, two: Any) -> Any:
    first, second = kind(one), kind(two)
    first.peers.add(second)
    second.peers |= {first, second}
    return first


def _look_at_ring(node: Any) -> Any:
    return [(each.name, node in each.peers, getattr(each, "__dict__", None)) for each in (node, *node.peers)]


program(
    "data_classes_with_slots_that_know_each_other", lambda: _slotted_ring(Vertex, "a", "b"), _look_at_ring
)
program("slotted_nodes_that_know_each_other", lambda: _slotted_ring(SlottedNode, "a", "b"), _look_at_ring)
program("mixed_nodes_that_know_each_other", lambda: _slotted_ring(MixedNode, "a", "b"), _look_at_ring)
program(
    "nodes_by_an_id_of_their_own",
    lambda: _slotted_ring(Vertex, Id(1), (Fixed(2), Pair(1, 2))),
    _look_at_ring,
)


@dataclasses.dataclass(slots=True, frozen=True)
class Extended(Fixed):
    y: Any = None


class Tagged(Extended):
    __slots__ = ("note", "unset")


class TaggedMore(Tagged):
    pass


program(
    "slots_beside_those_of_a_data_class",
    lambda: _with(Tagged(1, 2), note=[3]),
    lambda it: (it, it.note, hasattr(it, "unset")),
)
program(
    "slots_and_attributes_beside_those_of_a_data_class",
    lambda: _with(TaggedMore(1, 2), note=[3], more=[4]),
    lambda it: (it, it.note, vars(it)),
)


class Card:
    def __init__(self, name: str, owner: Any) -> None:
        self.name, self.owner = name, owner

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Card) and self.name == other.name


class Owner:
    """Its hash is that of something which leads back to it."""

    def __init__(self, name: str) -> None:
        self.peers: set[Any] = {1}
        self.table: dict[Any, Any] = collections.OrderedDict(first=1)
        self.card = Card(name, self)

    def __hash__(self) -> int:
        return hash(self.card)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Owner) and self.card == other.card


def _owners() -> Any:
    one, two = Owner("one"), Owner("two")
    one.peers |= {one, two}
    two.peers |= {one, 2}
    two.table.update({one: "one", "middle": 2, two: one.table, one.card: 3})
    one.table["last"] = two
    return one


program(
    "owners_by_what_leads_back",
    _owners,
    lambda it: (
        it in it.peers,
        [it in each.peers for each in it.peers if each != 1],
        [str(key) if type(key) is str else key.__class__ for key in it.table["last"].table],
        it.table["last"].table[it],
        list(it.table),
    ),
)

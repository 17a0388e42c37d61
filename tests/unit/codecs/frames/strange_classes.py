"""Classes that are made in a function and held across its awaits: strange programs, as `strange_programs`."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import inspect
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from frame_programs import tick
from strange_programs import Log, program


@program
async def an_enum_of_a_function(log: Log) -> Any:
    class Colour(enum.Enum):
        RED = 1
        BLUE = "b"

        def shout(self) -> str:
            return self.name.lower()

    held = [Colour.RED, Colour.BLUE]
    await tick("held")
    same = held[0] is Colour.RED, Colour(1) is held[0], Colour["BLUE"] is held[1]
    await tick("again")
    return same, [each.shout() for each in held]


@program
async def an_exception_of_a_function(log: Log) -> Any:
    class Oops(Exception):
        def __init__(self, code: int) -> None:
            self.code = code

    try:
        raise Oops(3)
    except Oops as error:
        await tick("handling")
        try:
            raise
        except Oops as again:
            return again.code, again is error, await tick("again")


@program
async def an_abstract_class_of_a_function(log: Log) -> Any:
    class Abstract(abc.ABC):
        @abc.abstractmethod
        async def go(self) -> Any: ...

        @property
        def name(self) -> str:
            return "named"

        @staticmethod
        def static() -> str:
            return "static"

        @classmethod
        def of_class(cls) -> str:
            return cls.__name__

    class Concrete(Abstract):
        shared: ClassVar[int] = 3

        async def go(self) -> Any:
            return await tick("go"), super().name, __class__.__name__, self.shared  # type: ignore[name-defined]

    concrete = Concrete()
    await tick("held")
    gone = await concrete.go()
    try:
        Abstract()  # type: ignore[abstract]
    except TypeError:
        log.append("abstract")
    return (
        gone,
        concrete.static(),
        concrete.of_class(),
        Concrete.__mro__[1] is Abstract,
        isinstance(concrete, Abstract),
    )


@program
async def a_metaclass_of_a_function(log: Log) -> Any:
    class Meta(type):
        def __new__(cls, name: str, bases: Any, space: Any, **options: Any) -> Any:
            made: Any = super().__new__(cls, name, bases, space)
            made.options = options
            return made

    class Made(metaclass=Meta, tag=5):
        options: Any

    made = Made()
    await tick("held")
    await tick("again")
    return type(Made).__name__, Made.options, isinstance(made, Made)


@program
async def special_classes_of_a_function(log: Log) -> Any:
    class Descriptor:
        def __set_name__(self, owner: Any, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            return "got", self.name

    class Slotted:
        given = Descriptor()
        __slots__ = ("__dict__", "x")

    class Missing(dict[Any, Any]):
        def __missing__(self, key: Any) -> Any:
            return key * 2

    class Rows(list[Any]):
        def __init__(self, *values: Any) -> None:
            super().__init__(*values)
            self.tag = "tagged"

    class Like(Protocol):
        def method(self) -> int: ...

    class Named(str):
        pass

    slotted: Any = Slotted()
    slotted.x, slotted.y = 1, 2
    rows, missing, named = Rows([1]), Missing(a=1), Named("named")
    rows.append(rows)
    await tick("held")
    await tick(Like.__name__)
    return (
        slotted.given,
        slotted.x,
        slotted.y,
        rows.tag,
        rows[1] is rows,
        missing["z"],
        named,
        type(named) is Named,
    )


@program
async def a_generic_class_of_a_function(log: Log) -> Any:
    T = TypeVar("T")

    class Holding(Generic[T]):
        def __init__(self, value: T) -> None:
            self.value = value

    held, of_text = Holding[int](3), Holding[str]
    await tick("held")
    await tick(T.__name__)
    return held.value, of_text("a").value, of_text.__args__[0].__name__  # type: ignore[attr-defined]


@program
async def decorated_twice_in_a_function(log: Log) -> Any:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper(*args: Any, **options: Any) -> Any:
            log.append("wrapper")
            return await function(*args, **options), await tick("decorated")

        wrapper.extra = [log]  # type: ignore[attr-defined]
        return wrapper

    @decorate
    @decorate
    async def work(x: int = 3) -> Any:
        return x, await tick("work")

    await tick("held")
    return await work(), work.__name__, work.extra[0] is log, work.__wrapped__.__wrapped__.__name__


@program
async def other_names_and_attributes_of_members(log: Log) -> Any:
    class Planet(enum.Enum):
        EARTH = (3, "blue")
        MARS = (4, "red")
        HOME = (3, "blue")  # noqa: PIE796  # another name for it

        def __init__(self, place: int, colour: str) -> None:
            self.place, self.colour = place, colour

    class Right(enum.Flag):
        READ = enum.auto()
        WRITE = enum.auto()
        BOTH = READ | WRITE

    class Kind(enum.StrEnum):
        ONE = enum.auto()

    planet, right, kind = Planet.HOME, Right.READ | Right.WRITE, Kind.ONE
    await tick("held")
    await tick("again")
    return (
        planet is Planet.EARTH, planet.colour, list(Planet.__members__), Planet((4, "red")).place, right is Right.BOTH,
        right.name, (~Right.READ).name, kind is Kind("one"), f"{kind}",
    )  # fmt: skip


@program
async def private_slots_of_a_function(log: Log) -> Any:
    class Slotted:
        __slots__ = ("__hidden", "__weakref__", "unset")

        def __init__(self) -> None:
            self.__hidden = 1

        def hidden(self) -> int:
            return self.__hidden

    held = Slotted()
    await tick("held")
    await tick("again")
    return held.hidden(), hasattr(held, "unset")


@program
async def slots_of_a_function(log: Log) -> Any:
    class Base:
        __slots__ = "one"

    class Slotted(Base):
        __slots__ = {"two": "the second"}  # what says what each is for

    class Open(Slotted):
        __slots__ = ("__dict__", "three")

    held, opened = Slotted(), Open()
    held.one = held.two = [held]  # type: ignore[attr-defined]  # slots
    opened.three, opened.four = 3, 4  # type: ignore[attr-defined]  # likewise
    await tick("held")
    try:
        held.three = 3  # type: ignore[attr-defined]  # there is none
    except AttributeError:
        log.append("no such slot")
    await tick("again")
    return held.one is held.two, hasattr(held, "__dict__"), vars(opened), inspect.getdoc(Slotted.two)  # type: ignore[attr-defined]  # a slot


Told = TypeVar("Told")


class Plugin:
    """Wants an argument, and something that stands in the class."""

    label = ""

    def __init_subclass__(cls, *, label: str, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.label = f"{label} {cls.name}"  # type: ignore[attr-defined]  # that is the point


@program
async def classes_whose_base_asks_what_they_are(log: Log) -> Any:
    class Named(Plugin, abc.ABC, label="a"):
        __slots__ = ("one",)
        name = "named"

        @abc.abstractmethod
        async def told(self) -> Any: ...

    class Leaf(Named, Generic[Told], label="b"):
        name = "leaf"

        async def told(self) -> Any:
            return super().label, self.label, await tick("told")

    held = Leaf[int]()
    held.one = held  # type: ignore[attr-defined]  # a slot
    await tick("held")
    return (
        await held.told(), held.one is held, Leaf.__mro__.index(Plugin), Named.__bases__ == (Plugin, abc.ABC),  # type: ignore[attr-defined]  # a slot
        Leaf in Named.__subclasses__(), isinstance(held, Plugin),
    )  # fmt: skip


def decorated(kind: Any) -> Any:
    class Decorated(kind):  # type: ignore[misc]  # whatever class it is
        def twice(self) -> Any:
            return super().value() * 2

    return Decorated


@decorated
class Valued:
    def __init__(self, n: int) -> None:
        self.n = n

    def value(self) -> int:
        return self.n


def made() -> Any:
    @dataclasses.dataclass
    class Point:
        x: int

    class Colour(enum.Enum):
        RED = 1

    class Oops(Exception):
        pass

    return Point, Colour, Oops


Point, Colour, Oops = made()


@program
async def classes_that_a_function_made_for_a_module(log: Log) -> Any:
    held: list[Any] = [Valued(3), Point(4), Colour.RED, Oops("o"), Point]
    await tick("held")
    same = [isinstance(one, kind) for one, kind in zip(held, (Valued, Point, Colour, Oops), strict=False)]
    try:
        raise held[3]
    except Oops as error:
        await tick("handling")
        same.append(error is held[3])
    return same, held[0].twice(), held[1] == Point(4), held[2] is Colour.RED, held[4] is Point


class Level(enum.IntFlag, boundary=enum.KEEP):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    OBJECT = object()
    LIST = [1]  # noqa: RUF012  # a value, not an attribute
    CALL = enum.member(len)


@program
async def members_of_every_kind(log: Log) -> Any:
    held = [Level.LOW | Level.HIGH, Level(9), Level(0), Odd.OBJECT, Odd.LIST, Odd.CALL]
    await tick("held")
    await tick("again")
    return held[0] is Level(3), int(held[1]), held[2] is Level(0), [one is Odd[one.name] for one in held[3:]]


@program
async def what_classes_are_given_by_functools(log: Log) -> Any:
    class Given:
        count = 0

        def times(self, by: int, plus: int = 0) -> int:
            return by * 2 + plus

        twice = functools.partialmethod(times, 2, plus=1)

        @functools.cached_property
        def cached(self) -> list[int]:
            """Told."""
            type(self).count += 1
            return [type(self).count]

    given, other = Given(), Given()
    first = given.cached
    await tick("held")
    await tick("again")
    return given.twice(), given.cached is first, other.cached, Given.cached.__doc__, Given.cached.attrname

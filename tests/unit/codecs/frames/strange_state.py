"""State that lies where one does not look for it: strange programs, as `strange_programs`."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from frame_programs import tick
from strange_programs import PROGRAMS, Log, program

# -- values known by their identity ----------------------------------------------------------------------


class _Missing:
    __slots__ = ()


MISSING = _Missing()


class Outer:
    class Inner:
        EMPTY = object()

        class Innermost:
            NONE = object()


class _Unset:
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 5


class _Equal:
    def __hash__(self) -> int:
        return 6


UNSET, UNEQUAL = _Unset(), _Equal()


class Only:
    one: ClassVar[Any] = None

    def __new__(cls) -> Any:
        if cls.one is None:
            cls.one = super().__new__(cls)
        return cls.one


@program
async def values_known_by_their_identity(log: Log) -> Any:
    held = [MISSING, Outer.Inner.EMPTY, Outer.Inner.Innermost.NONE, Only(), UNSET, UNEQUAL]
    await tick("held")
    known = [MISSING, Outer.Inner.EMPTY, Outer.Inner.Innermost.NONE, Only(), UNSET, UNEQUAL]
    await tick("again")
    return [one is other for one, other in zip(held, known, strict=True)]


_latest: Any = None


@program
async def a_value_that_a_global_was_bound_to(log: Log) -> Any:
    global _latest
    mark = _latest = object()
    await tick("bound")
    await tick("again")
    return type(mark).__name__


# -- exceptions ------------------------------------------------------------------------------------------


class Coded(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> Any:
        return Coded, (self.code, self.args[0])


class Shown(OSError):
    @property
    def errno(self) -> int:  # type: ignore[override]  # it hides what the base keeps
        return 5


class Grouped(ExceptionGroup[Exception]):
    def __new__(cls, message: str, errors: list[Exception], code: int = 0) -> Any:
        made = super().__new__(cls, message, errors)
        made.code = code
        return made

    def derive(self, errors: Any) -> Any:
        return Grouped(self.message, errors, self.code)  # type: ignore[attr-defined]


CASES: dict[str, tuple[Callable[[], BaseException], Callable[[Any], Any]]] = {
    "its_own_reduce": (lambda: Coded(3, "t"), lambda it: (it.code, it.args)),
    "a_field_hidden": (
        lambda: Shown(2, "no", "file"),
        lambda it: (it.errno, it.strerror, it.filename, str(it)),
    ),
    "written_so_far": (lambda: BlockingIOError(11, "b", 7), lambda it: (it.errno, it.characters_written)),
    "nothing_written": (lambda: BlockingIOError(11, "b"), lambda it: hasattr(it, "characters_written")),
    "a_group": (
        lambda: Grouped("m", [ValueError(1), KeyError(2)], 7),
        lambda it: (it.code, repr(it.exceptions), repr(it.subgroup(KeyError)), it.subgroup(KeyError).code),
    ),
}


def _handled(name: str) -> None:
    async def handling(log: Log) -> Any:
        make = CASES[name][0]
        try:
            raise make()
        except Exception as error:
            error.add_note("noted")
            await tick("handling")
            log.append((CASES[name][1](error), error.__notes__))
            await tick("again")
            try:
                raise
            except Exception as again:
                return CASES[name][1](again), again is error, again.__notes__, str(again)

    PROGRAMS[f"an_exception_with_{name}"] = globals()[f"an_exception_with_{name}"] = handling


for _name in CASES:
    _handled(_name)


# -- what functions show ---------------------------------------------------------------------------------


@program
async def annotations_and_docstrings_of_functions(log: Log) -> Any:
    def search(text: str, limit: int = 5, *, tags: list[str] | None = None) -> dict[str, int]:
        """Look for a text."""
        return {text: limit}

    def wrapping(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            """Not shown."""
            return function(*args, **options)

        return wrapper

    @wrapping
    def buy(price: float) -> bool:
        """Buy it."""
        return price > 1

    def plain() -> None: ...

    plain.__doc__ = "given"
    tools = [search, buy, plain]
    await tick("held")
    seen = [(str(inspect.signature(each)), each.__doc__, sorted(each.__annotations__)) for each in tools]
    await tick("again")
    return seen, [each.__doc__ for each in tools], buy(2), inspect.signature(buy).return_annotation


# -- generators that are dropped half way, in something ---------------------------------------------------


def counting(log: Log) -> Iterator[int]:
    try:
        yield from range(9)
    finally:
        log.append("closed")


@contextlib.contextmanager
def managing(log: Log) -> Iterator[int]:
    yield from counting(log)


HOLDERS: dict[str, Callable[[Log], Any]] = {
    "islice": lambda log: itertools.islice(counting(log), 5),
    "map": lambda log: map(str, counting(log)),
    "zip": lambda log: zip(*[counting(log)] * 2, strict=False),
    "enumerate": lambda log: enumerate(counting(log)),
    "chain": lambda log: itertools.chain(counting(log), "a"),
    "next": lambda log: counting(log).__next__,
    "send": lambda log: functools.partial(counting(log).send, None),
    "list": lambda log: [counting(log), 1],
    "pair": lambda log: ("a", [counting(log)]),
    "dictionary": lambda log: {"a": counting(log)},
    "manager": lambda log: managing(log),
}


async def drops_half_way(log: Log, name: str) -> None:
    held: Any = HOLDERS[name](log)
    first = (
        next(held) if hasattr(held, "__next__") else held() if callable(held) and name != "manager" else None
    )
    if name in ("list", "pair", "dictionary"):
        inner = held[0] if name == "list" else held[1][0] if name == "pair" else held["a"]
        next(inner)
        del inner
    elif name == "manager":
        held.__enter__()
    del first
    await tick(name)
    log.append("last line")


@program
async def generators_dropped_half_way_in_something(log: Log) -> Any:
    for name in list(HOLDERS):
        log.append(name)
        await drops_half_way(log, name)
    return len(log)


@program
async def loops_over_ordered_dictionaries_that_change(log: Log) -> Any:
    ordered = collections.OrderedDict(a=1, b=2, c=3)
    ways = (
        ordered.items, ordered.values, ordered.keys, ordered.__iter__, ordered.__reversed__,
        lambda: reversed(ordered.items()), lambda: reversed(ordered.values()),
    )  # fmt: skip
    for number, way in enumerate(ways):
        for each in way():
            log.append(each)
            ordered[["c", "a"][number > 3]] = number
            await tick(number)
    ended = iter(ordered)
    list(ended)
    await tick("ended")
    return list(ended), list(ordered.items())


# -- what a module holds ---------------------------------------------------------------------------------


def numbering() -> Callable[[], int]:
    numbers = itertools.count()
    source = (number for number in numbers)
    return lambda: next(source)


next_number = numbering()
NUMBERS = (number for number in itertools.count())


@program
async def a_function_that_another_made_for_a_module(log: Log) -> Any:
    held = next_number
    held()
    unread = NUMBERS
    next(unread)
    await tick("held")
    assert next(NUMBERS) >= 0  # neither copied nor ended
    known = held is next_number
    await tick("again")
    return known, held is next_number, held() + 1 == next_number()

# ruff: noqa: B008, B023, B905, C406, C416, F632, F841, N806, PIE800, RUF012, RUF021, UP030, UP031  # strange on purpose
"""The strangest legal Python, each program suspended in the middle of it. Each takes a log and awaits `tick(label)`.

A plain module, importable by this name in a fresh process too. Newer syntax is in `strange_312`, `strange_314`, `strange_315`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import operator
import random
import re
import sys
import types
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from frame_programs import Awaited, Managed, numbers, old_tick, shown, tick

Log = list[Any]
Program = Callable[[Log], Awaitable[Any]]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


# -- scopes ---------------------------------------------------------------------------------------------


@program
async def classes_in_functions_with_walrus(log: Log) -> Any:
    first = await tick("before")

    class Odd:
        squares = [x * x for x in range(3)]
        later = staticmethod(lambda: [y for x in range(4) if (y := x * 2) > 2])
        kind = first

        async def method(self) -> Any:
            got = [total := 0, *[total := total + x async for x in numbers(3)]]
            return got, total, __class__.__name__, self.kind, await tick("in a method")  # type: ignore[name-defined]

    odd = Odd()
    await tick("held")
    return odd.squares, odd.later(), await odd.method(), (last := await tick("walrus")), last


@program
async def unbound_cells(log: Log) -> Any:
    def reads() -> Any:
        try:
            return cell
        except NameError as error:
            return type(error).__name__, error.name

    await tick("not bound yet")
    log.append(reads())
    cell = await tick("bound now")
    log.append(reads())
    del cell
    await tick("deleted")
    log.append(reads())
    cell = 7
    return reads()


@program
async def a_global_written_after_a_move(log: Log) -> Any:
    global _written
    _written = await tick("before")
    log.append(_written)
    _written += await tick("between")
    return globals()["_written"]


_written = 0


@program
async def mangled_and_unicode_names(log: Log) -> Any:
    class Private:
        async def method(self, __hidden: int = 3) -> Any:
            __local, größe, ナ = 5, await tick("unicode"), 2
            nested = [__local + x for x in [__hidden, größe] if await tick("mangled") or True]
            return nested, ナ

    return await Private().method()


@program
async def shadowing_comprehensions(log: Log) -> Any:
    x, y = "outer x", ["outer y"]
    got = [(x, [x for x in range(x)], (lambda: x)()) for x in range(3) if await tick(x) or True]
    pairs = {x: [y async for y in numbers(x)] for x in range(2)}
    closures = [lambda: x for x in range(2)]
    await tick(x)
    return got, pairs, [each() for each in closures], x, y


@program
async def a_lambda_with_an_async_default(log: Log) -> Any:
    late = lambda x=[i async for i in numbers(3)], *, y={await tick("k"): await tick("v")}: (x, y)  # noqa: E731
    await tick("held")
    return (
        late(),
        late([1], y=2),
        (lambda *a, z=(await tick("z"),): (a, z))(await tick("a"), *[await tick("b")]),
    )


# -- statements -----------------------------------------------------------------------------------------


class Shape(NamedTuple):
    kind: str
    size: int


@program
async def match_with_suspending_guards(log: Log) -> Any:
    async def matched(subject: Any) -> Any:
        match subject:
            case {"a": [first, {"b": deep}], **rest} if await tick("deep") and not rest:
                return "deep", first, deep
            case {"a": [first, *_], **rest} if await tick("rest"):
                return "rest", first, rest
            case Shape(kind="box" | "cube" as kind, size=size) if await tick("shape") > size:
                return kind, size
            case [Shape() as one, (2 | 3) as number, *others] if others or await tick("list"):
                return one, number, others
            case str() | bytes() as text if len(text) == await tick("text"):
                return "text", text
            case -1 | 1.5 | None | True:
                return "literal", await tick("literal")
            case _ if given := await tick("any"):
                return "any", given
        return "nothing"

    subjects = (
        {"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}], "c": 3}, Shape("box", 1), Shape("cube", 99), [Shape("x", 1), 2],
        [Shape("x", 1), 3, 4], "x" * 7, b"", None, -1, object,
    )  # fmt: skip
    for subject in subjects:
        log.append(await matched(subject))
    return len(log)


class Failing(Managed):
    async def __aenter__(self) -> str:
        self.log.append(("enters", self.name, await tick("enters")))
        raise LookupError(self.name)


@program
async def the_second_of_several_managers_fails_while_it_enters(log: Log) -> Any:
    try:
        async with (
            Managed(log, "one") as one,
            Managed(log, "two") as two,
            Failing(log, "three"),
            Managed(log, await tick("never")),
        ):
            log.append("never")
    except LookupError as error:
        await tick("caught")
        log.append((shown(error), one, two, sys.exc_info()[1] is error))
    async with Managed(log, await tick("target")) as log[0], Managed(log, "swallows", True) as (*letters,):
        await tick(tuple(letters))
        raise KeyError(letters)
    return log


@program
async def groups_in_groups(log: Log) -> Any:
    try:
        try:
            raise BaseExceptionGroup(
                "out", [ValueError(1), ExceptionGroup("in", [KeyError(2), OSError(3)]), KeyboardInterrupt(4)]
            )
        except* ValueError as group:
            log.append(("values", shown(group), await tick("values")))
            try:
                raise ExceptionGroup("again", [TypeError(5), LookupError(6)])
            except* TypeError as inner:
                log.append(("types", shown(inner), await tick("types")))
                raise
            except* LookupError as inner:
                log.append(("lookups", shown(inner), await tick("lookups")))
                raise ZeroDivisionError(7) from inner
            finally:
                log.append(("finally", await tick("finally")))
        except* (KeyError, OSError) as group:
            log.append(("others", shown(group), len(group.exceptions), await tick("others")))
            raise
    except BaseExceptionGroup as error:
        error.add_note("noted")
        await tick("outside")
        log.append((shown(error), error.__notes__, shown(error.subgroup(KeyboardInterrupt) or error)))
        left, right = error.split(KeyError)
        await tick("split")
        return shown(left or error), shown(right or error)
    return "never"


@program
async def targets_that_suspend(log: Log) -> Any:
    data: Any = {"list": [0, 1, 2, 3], "space": types.SimpleNamespace(n=[1, 2])}
    data["list"][await tick(0) % 4] += await tick(1)
    data["space"].n[await tick(2) % 2], *data["rest"] = await tick(3), *[await tick(4), 5]
    (await holder(data)).total = await tick(5)
    del data["list"][await tick(6) % 2 : await tick(7) % 3]
    for data["each"] in [1, await tick(8)]:
        await tick("for")
    assert await tick(9), await tick("never")
    data["list"][:] = [x async for x in numbers(2)]
    data["space"].n @= (await tick(10),) if False else Matrix([2])
    return {key: value for key, value in data.items() if key != "space"}, data["space"].n, data["space"].total


async def holder(data: Any) -> Any:
    await tick("holder")
    return data["space"]


class Matrix(list[int]):
    def __rmatmul__(self, other: Any) -> Any:
        return [*other, *self]


@program
async def else_of_everything(log: Log) -> Any:
    async for number in numbers(2):
        if number > 100:
            break
    else:
        log.append(await tick("for else"))
    for _ in range(2):
        try:
            await tick("try")
        except KeyError:
            log.append("never")
        else:
            log.append(await tick("else"))
            continue
        finally:
            log.append(await tick("finally"))
    while await tick("while") < 30:
        pass
    else:
        log.append(await tick("while else"))
    async for number in numbers(3):
        async for other in numbers(2):
            if other:
                break
        else:
            log.append("never")
        if number == 10:
            break
    return number, other


@program
async def text_that_suspends(log: Log) -> Any:
    width, value = 12, 3.14159
    return [
        f"{await tick(1)!r:>{await tick(2) + 4}}|{value:{width}.{await tick(3) - 1}f}|{await tick(4)=}",
        f"{(lambda: 5)()}{[x async for x in numbers(2)]}{{{await tick(5)}}}",
        "%s %s" % (await tick(6), await tick(7)),
        b"%d" % await tick(8),
        "{0[k]} {1!r}".format({"k": await tick(9)}, await tick(10)),
    ]


@program
async def operators_of_every_kind(log: Log) -> Any:
    return [
        not await tick(1) or await tick(2) and await tick(3),
        await tick(4) if await tick(5) else await tick(6),
        1 < await tick(7) != await tick(8) in [await tick(9), 8] is not None,
        -(await tick(10)) ** +(await tick(11)) // ~(await tick(12)),
        [*[await tick(13)], *(await tick(14),), *{await tick(15)}, *{await tick(16): 1}],
        {**{"a": await tick(17)}, "b": await tick(18), **dict([("c", await tick(19))])},
        (await tick(20), *range(await tick(21) % 3))[:: -(await tick(22))],
        {await tick(23) for _ in range(2)} | {1, 2} - {await tick(24)},
        max([await tick(25)], [await tick(26)], key=lambda pair: (pair, (yield_free := 1))[0]),
        "ab"[await tick(27) % 2], await tick(28) @ Matrix([1]) if False else ..., (await tick(29)).__class__,
    ]  # fmt: skip


# -- classes, methods, callables -----------------------------------------------------------------------


class Root:
    def __init__(self, log: Log) -> None:
        self.log = log

    async def act(self, n: int) -> Any:
        return "root", n, await tick("root")

    @classmethod
    async def make(cls, log: Log) -> Any:
        await tick("make")
        return cls(log)

    async def __call__(self, n: int) -> Any:
        return "called", n, await tick("called")

    def __await__(self) -> Generator[Any, Any, Any]:
        one = yield "awaiting"
        two = yield from old_tick("delegating")
        return one, two

    def __aiter__(self) -> Any:
        self.left = 3
        return self

    async def __anext__(self) -> Any:
        self.left -= 1
        if self.left < 0:
            raise StopAsyncIteration
        return await tick(("next", self.left))

    @functools.cached_property
    def cached(self) -> Any:
        return object.__new__(Root)

    @functools.singledispatchmethod
    async def dispatched(self, value: Any) -> Any:
        return "any", await tick("any")

    @dispatched.register
    async def _(self, value: int) -> Any:
        return "int", await tick("int")

    twice = functools.partialmethod(act, 2)


class Left(Root):
    async def act(self, n: int) -> Any:
        before = await tick("left before")
        return "left", before, await super().act(n), __class__.__name__  # type: ignore[name-defined]


class Right(Root):
    async def act(self, n: int) -> Any:
        async def inner() -> Any:
            return await super(Right, self).act(n), [await super(Right, self).act(x) for x in range(2)]

        return "right", await inner(), await tick("right after")

    @classmethod
    async def make(cls, log: Log) -> Any:
        made = await super().make(log)
        await tick("made")
        return made


class Meta(type):
    async def __call__(cls, *args: Any) -> Any:  # a class whose instances must be awaited
        made = super().__call__(*args)
        await tick("meta")
        return made


class Diamond(Left, Right):
    async def act(self, n: int) -> Any:
        kept = super()
        await tick("super is held")
        return await kept.act(n), super().__thisclass__.__name__


class Strange(metaclass=Meta):
    def __init__(self, n: int) -> None:
        self.n = n


@program
async def methods_of_a_diamond(log: Log) -> Any:
    diamond: Any = await Diamond.make(log)
    held = (
        diamond.act,
        functools.partial(Left.act, diamond),
        functools.partial(diamond.act, n=9),
        operator.methodcaller("act", 5),
    )
    cached = diamond.cached
    await tick("held")
    results = [await held[0](1), await held[1](2), await held[2](), await held[3](diamond)]
    results += [await diamond.twice(), await diamond(3), await diamond, [x async for x in diamond]]
    results += [await diamond.dispatched(1), await diamond.dispatched("x"), cached is diamond.cached]
    strange: Any = await Strange(4)  # type: ignore[misc]
    return results, strange.n, type(strange).__name__


class Waiting:
    """`__await__` returns an iterator of its own, which is not a generator."""

    def __init__(self, labels: list[Any]) -> None:
        self.labels = labels

    def __await__(self) -> Any:
        return WaitingIterator(self)


class WaitingIterator:
    def __init__(self, waiting: Waiting) -> None:
        self.waiting, self.at = waiting, 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.at == len(self.waiting.labels):
            raise StopIteration(self.at)
        self.at += 1
        return self.waiting.labels[self.at - 1]

    def send(self, value: Any) -> Any:
        return next(self)


@program
async def awaitables_of_every_kind(log: Log) -> Any:
    @types.coroutine
    def old(n: int) -> Generator[Any, Any, Any]:
        got = yield from old_tick(n)
        more = yield from Waiting([1, 2]).__await__()
        return got, more

    class Deferred:
        def __init__(self, coroutine: Any) -> None:
            self.coroutine = coroutine

        def __await__(self) -> Any:
            return self.coroutine.__await__()

    async def later(n: int) -> Any:
        return n, await tick("later")

    held = (
        Deferred(later(1)),
        later(2),
        old(3),
        Awaited("x"),
        Waiting(["a", "b"]),
        anext(numbers(2)),
        anext(numbers(0), "none"),
    )
    await tick("held")
    return [await each for each in held]


# -- generators -----------------------------------------------------------------------------------------


def half(log: Log) -> Generator[Any, Any, Any]:
    try:
        got = yield 1
        log.append(("got", got))
        yield from [2, 3]
        inner = yield from deeper(log)
        yield inner
    except KeyError as error:
        log.append(("thrown", error.args))
        yield "after throw"
    finally:
        log.append("half closed")


def deeper(log: Log) -> Generator[Any, Any, str]:
    try:
        yield "d1"
        yield "d2"
    finally:
        log.append("deeper closed")
    return "deeper returned"


@program
async def generators_half_consumed(log: Log) -> Any:
    one, two, three, four = half(log), half(log), half(log), half(log)
    seen = [next(one), one.send("sent"), next(two), two.throw(KeyError("k"))]
    await tick("held")
    seen += [next(one), next(one)]
    await tick("in deeper")
    seen += [next(one), next(one), next(one, "exhausted")]
    shared = (each for each in three)
    zipped, mapped = zip(shared, shared), map(str, four)
    seen += [next(zipped), next(mapped)]
    await tick("zipped")
    seen += [*zipped, *itertools.islice(mapped, 2)]
    await tick("closing")
    four.close()
    return seen, next(mapped, "closed"), next(two, "ended")


async def talkative(log: Log) -> Any:
    heard = "nothing"
    while True:
        try:
            heard = yield heard, await tick("talks")
        except KeyError as error:
            heard = ("thrown", error.args[0], await tick("handles"))
        except GeneratorExit:
            log.append(("closing", await tick("closes")))
            return


@program
async def async_generators_spoken_to(log: Log) -> Any:
    source = talkative(log)
    seen = [await source.asend(None), await source.asend("one"), await source.athrow(KeyError("k"))]
    pending = source.asend("two")
    await tick("pending")
    seen.append(await pending)
    piped = ((x, await tick("piped")) async for x in numbers(3) if await tick("if"))
    async for each in piped:
        seen.append(each)
        if each[0] == 10:
            break
    await tick("left")
    await piped.aclose()
    await source.aclose()
    return seen


# -- exceptions ----------------------------------------------------------------------------------------


def raises_again() -> None:
    raise  # what is handled where this is called


class Loaded(Exception):
    def __init__(self, code: int, *, extra: Any) -> None:
        super().__init__(f"code {code}")
        self.code, self.extra = code, extra


@program
async def what_is_being_handled(log: Log) -> Any:
    def generating() -> Iterator[Any]:
        try:
            raise OSError("in the generator")
        except OSError:
            yield type(sys.exc_info()[1]).__name__
            yield type(sys.exc_info()[1]).__name__

    try:
        try:
            raise Loaded(3, extra=[log])
        except Loaded as error:
            source = generating()
            log.append((next(source), type(sys.exc_info()[1]).__name__))
            await tick("in both")
            log.append((next(source), sys.exc_info()[1] is error, error.extra[0] is log, error.code))
            try:
                await tick("nested")
                raises_again()
            except Loaded as again:
                log.append((again is error, await tick("again")))
            try:
                raise KeyError("new") from await returned(error)
            except KeyError as new:
                await tick("caused")
                log.append((new.__cause__ is error, new.__context__ is error, new.__suppress_context__))
                new.__context__ = None
            raises_again()
    except Loaded as error:
        error.add_note("one")
        traceback = error.__traceback__
        await tick("outside")
        names = []
        while traceback is not None:
            names.append((traceback.tb_frame.f_code.co_name, traceback.tb_lineno))
            traceback = traceback.tb_next
        return names, error.__notes__, sys.exc_info()[1] is error
    return "never"


async def returned(value: Any) -> Any:
    await tick("returned")
    return value


# -- values --------------------------------------------------------------------------------------------


class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2
    BOTH = LOW | HIGH


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    name: str
    parts: tuple[Any, ...] = ()
    table: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)


class Text(str):
    __slots__ = ("mark",)
    mark: Any


class Locked:
    def __init__(self) -> None:
        object.__setattr__(self, "value", 1)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("read only")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"made up {name}"


@program
async def values_of_every_kind(log: Log) -> Any:
    nan, text = float("nan"), Text("text")
    text.mark = [nan]
    default: Any = collections.defaultdict(list, {"k": [text]})
    chain = collections.ChainMap({"a": 1}, default)
    moment, rng = datetime(2026, 11, 29, tzinfo=UTC), random.Random(7)
    rng.random()
    frozen = Frozen(name="n", parts=(text, nan), table={"self": default})
    every = [
        nan, text, default, chain, Level.BOTH, Level.LOW | Level.HIGH, frozen, Decimal("1.10"), Fraction(1, 3), moment, timedelta(1),
        uuid.UUID(int=5), PurePosixPath("a/b"), re.compile("a+", re.I), collections.deque([1, 2], maxlen=2), 1 << 70, -0.0, 1j,
        collections.Counter("abca"), collections.OrderedDict(b=1, a=2), types.SimpleNamespace(n=nan), slice(1, None, 2), range(9)[2:5],
        frozenset({1, (2, 3)}), bytearray(b"ab"), type(None), Ellipsis, NotImplemented, int, list[int], dict[str, "Level"], Locked(),
        types.MappingProxyType({"a": 1}), operator.attrgetter("a.b"), Any, "".join,
    ]  # fmt: skip
    await tick("held")
    same = (
        every[1] is text is frozen.parts[0],
        text.mark[0] != nan != frozen.parts[1],
        every[4] is Level.BOTH is every[5],
        every[2] is frozen.table["self"],
    )
    chain["b"], default["new"] = 2, [1]
    found: Any = every
    locked = next(each for each in found if type(each) is Locked)
    plain = [
        repr(each) for each in found if type(each).__name__ not in ("Locked", "builtin_function_or_method")
    ]
    await tick("looked at")
    same = *same, text.mark is every[1].mark, chain.maps[1] is default
    return same, plain, rng.random(), (locked.value, locked.other), default["more"]


@contextlib.contextmanager
def swallowing(log: Log, *kinds: type[BaseException]) -> Iterator[Any]:
    try:
        yield kinds
    except kinds as error:
        log.append(shown(error))


class Resource(contextlib.AsyncContextDecorator):
    def __init__(self, log: Log) -> None:
        self.log = log

    async def __aenter__(self) -> Resource:
        self.log.append(await tick("decorated in"))
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.log.append(await tick("decorated out"))


@contextlib.asynccontextmanager
async def nested_managers(log: Log) -> AsyncIterator[Any]:
    async with Managed(log, "a") as a, contextlib.aclosing(numbers(3)) as source:
        async for number in source:
            yield a, number
            break


@program
async def managers_of_every_kind(log: Log) -> Any:
    resource = Resource(log)

    @resource
    async def decorated(n: int) -> Any:
        return n, await tick("decorated")

    with swallowing(log, KeyError, ZeroDivisionError) as kinds, contextlib.ExitStack() as stack:
        stack.enter_context(swallowing(log, ValueError))
        stack.callback(log.append, "called")
        stack.push(lambda kind, error, traceback: log.append(kind and kind.__name__))
        log.append([kind.__name__ for kind in kinds])
        await tick("inside")
        raise KeyError(await decorated(1))
    async with contextlib.AsyncExitStack() as stack2:
        one = await stack2.enter_async_context(nested_managers(log))
        moved_on = stack2.pop_all()
        await tick("popped")
    async with moved_on, contextlib.nullcontext(5) as five:
        await tick(five)
    return one, five

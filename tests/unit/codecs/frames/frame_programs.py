"""Async functions that suspend in every place the language has. Each takes a log and awaits `tick(label)`.

A plain module, importable by this name in a fresh process too: frames find their code in it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import operator
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any, NamedTuple

Log = list[Any]
Program = Callable[[Log], Awaitable[Any]]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


class Tick:
    """A leaf awaitable: its iterator lies on the stack of what awaits it."""

    def __init__(self, label: Any, started: bool = False) -> None:
        self.label = label
        self.started = started

    def __reduce__(self) -> Any:
        return Tick, (self.label, self.started)

    def __await__(self) -> Tick:
        return self

    def __iter__(self) -> Tick:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        if not self.started:
            self.started = True
            return self.label
        raise StopIteration(value)

    def throw(self, error: BaseException) -> Any:
        raise error

    def close(self) -> None:
        pass


def tick(label: Any = "tick") -> Tick:
    return Tick(label)


@types.coroutine
def old_tick(label: Any) -> Generator[Any, Any, Any]:
    return (yield label)


class Awaited:
    """An object whose `__await__` is a generator."""

    def __init__(self, label: Any) -> None:
        self.label = label

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self.label)


# -- statements -----------------------------------------------------------------------------------


@program
async def conditions(log: Log) -> Any:
    if await tick("a"):
        log.append("then")
    elif await tick("b"):
        log.append("elif")
    else:
        await tick("else")
        log.append("else")
    return log


@program
async def loops(log: Log) -> Any:
    total = 0
    for i in range(3):
        for j in [10, 20]:
            total += i * j
            value = await tick((i, j))
            if value == 4:
                continue
            if value == 6:
                break
        else:
            log.append(("no break", await tick("else")))
    while await tick("while") < 12:
        total += 1
    else:
        log.append("while ended")
    return total


@program
async def matching(log: Log) -> Any:
    for subject in ({"k": [1, 2, 3]}, (4, 5), "text", Point(1, 2), 7):
        match subject:
            case {"k": [first, *rest]} if await tick("guard"):
                log.append((first, rest))
            case Point(x=px, y=py):
                log.append((px, await tick("point"), py))
            case (a, b):
                log.append(a + await tick("tuple") + b)
            case str() as text:
                log.append(text + str(await tick("str")))
            case _:
                log.append(await tick("other"))
    return log


@program
async def handlers(log: Log) -> Any:
    try:
        await tick("before")
        raise KeyError("first")
    except KeyError as error:
        log.append(("caught", error.args, sys.exc_info()[1] is error))
        await tick("inside except")
        log.append(sys.exc_info()[1] is error)
        try:
            await tick("nested")
            raise ValueError("second")
        except ValueError as second:
            await tick("nested except")
            log.append((second.__context__ is error, sys.exc_info()[1] is second))
        log.append(sys.exc_info()[1] is error)
        await tick("after nested")
        log.append(sys.exc_info()[1] is error)
    else:
        log.append("never")
    finally:
        log.append(await tick("finally"))
    log.append(sys.exc_info()[1] is None)
    return log


@program
async def bare_raise(log: Log) -> Any:
    try:
        try:
            raise LookupError("again", await tick("argument"))
        except LookupError as error:
            error.add_note("noted before")
            await tick("handling")
            error.add_note("noted after")
            raise
    except LookupError as error:
        log.append((error.args, error.__notes__))
        raise RuntimeError("from") from error


@program
async def raise_in_finally(log: Log) -> Any:
    try:
        try:
            raise OSError(2, "no such thing", "name")
        finally:
            log.append(type(sys.exc_info()[1]).__name__)
            await tick("finally")
            log.append(sys.exc_info()[1].errno)  # type: ignore[union-attr]
            raise TypeError("replaces")
    except TypeError as error:
        return error.__context__.filename, error.__context__.errno  # type: ignore[union-attr]


@program
async def leaving_through_finally(log: Log) -> Any:
    for i in range(4):
        try:
            if i == 1:
                continue
            if i == 2:
                break
            await tick(i)
        finally:
            log.append(("finally", i, await tick("finally")))
    try:
        return ("returned", await tick("return"))
    finally:
        log.append(await tick("on the way out"))


@program
async def groups(log: Log) -> Any:
    try:
        try:
            raise ExceptionGroup(
                "some", [ValueError(1), TypeError(2), ExceptionGroup("in", [ValueError(3), KeyError(4)])]
            )
        except* ValueError as group:
            log.append((await tick("values"), shown(group)))
        except* TypeError as group:
            await tick("types")
            log.append(shown(group))
            raise LookupError("new") from None
    except ExceptionGroup as group:
        log.append(shown(group))
        await tick("outer")
        return shown(group)


def shown(error: BaseException) -> Any:
    if isinstance(error, BaseExceptionGroup):
        return error.message, [shown(each) for each in error.exceptions]
    return type(error).__name__, error.args


@program
async def tracebacks(log: Log) -> Any:
    try:
        await failing(3)
    except RuntimeError as error:
        await tick("holding")
        names = []
        traceback = error.__traceback__
        while traceback is not None:
            names.append((traceback.tb_frame.f_code.co_name, traceback.tb_lineno))
            traceback = traceback.tb_next
        log.append(names)
        await tick("again")
        raise


async def failing(depth: int) -> None:
    if depth:
        await failing(depth - 1)
    await tick("deep")
    raise RuntimeError("deep")


@program
async def unbound(log: Log) -> Any:
    kept, dropped = 1, 2
    del dropped
    await tick("deleted")
    try:
        log.append(dropped)  # noqa: F821  # that is the point
    except UnboundLocalError as error:
        log.append(error.name)
    none = None
    await tick("none")
    return kept, none


# -- expressions ------------------------------------------------------------------------------------


@program
async def arguments(log: Log) -> Any:
    def echo(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    one = echo(1, await tick("a"), *[2, await tick("b")], k=await tick("c"), z=await tick("d"))
    two = echo(log.append, max(await tick("e"), 3), "{} {}".format(await tick("f"), 1))[0][1:]
    return one, two, print.__name__


@program
async def operators(log: Log) -> Any:
    data = {"k": [1, 2, 3]}
    data["k"][await tick(1) % 3] += await tick(2)
    chained = 0 < await tick(3) < await tick(4) < 100
    logic = (await tick(5) and 0) or await tick(6) or "never"
    text = f"{await tick(7)!r:>4}|{await tick(8):{await tick(9)}}"
    walrus = [(y := await tick(10)), y + 1, y if await tick(11) else 0]
    sliced = list(range(30))[await tick(12) : await tick(13) : 2]
    unary = -(await tick(14) ** 2)
    first, *others = [await tick(15), *[await tick(16)], 5]
    log.append((first, others))
    return data, chained, logic, text, walrus, sliced, unary, (lambda d=await tick(17): d)()  # noqa: B008  # a default that suspends


@program
async def displays(log: Log) -> Any:
    made_list = [1, await tick(1), 2, *(3, await tick(2))]
    made_set = {await tick(3), 4, await tick(4)}
    made_dict = {"a": await tick(5), await tick(6): "b", "c": await tick(7)}
    made_tuple = (await tick(8), [await tick(9), {await tick(10): (await tick(11),)}])
    return made_list, sorted(made_set), made_dict, made_tuple


@program
async def comprehensions(log: Log) -> Any:
    offset = 100
    lists = [i + offset + await tick(i) for i in range(3) if await tick("if") or True]
    sets = {await tick(i) % 2 for i in range(3)}
    dicts = {i: [j async for j in numbers(i)] for i in range(3) if await tick("d")}
    nested = [[x * y + await tick("n") for x in range(2)] for y in range(2)]
    lazily = (await tick(i) for i in range(3))
    total = 0
    async for value in lazily:
        total += value
        await tick("between")
    closures = [lambda k=k: k + offset for k in range(2) if await tick("c")]
    return lists, sorted(sets), dicts, nested, total, [each() for each in closures]


# -- functions, classes, closures ----------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int
    y: int
    tags: list[str] = dataclasses.field(default_factory=list)


class Pair(NamedTuple):
    left: Any
    right: Any


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Slotted:
    __slots__ = ("one", "two")

    def __init__(self) -> None:
        self.one = 1


MISSING = object()


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()


class Base:
    def __init__(self, log: Log) -> None:
        self.log = log

    async def method(self, value: int) -> Any:
        self.log.append(("base", await tick(value)))
        return "base"

    @classmethod
    async def build(cls, log: Log) -> Base:
        await tick("build")
        return cls(log)

    @staticmethod
    async def static(value: Any) -> Any:
        return await tick(value)

    @property
    async def prop(self) -> Any:
        return await tick("prop")

    async def __private(self) -> Any:
        return await tick("private")

    async def calls_private(self) -> Any:
        return await self.__private()

    def __await__(self) -> Generator[Any, Any, Any]:
        value = yield from tick("awaiting an object").__await__()
        return value


class Derived(Base):
    async def method(self, value: int) -> Any:
        before = await tick("before super")
        result = await super().method(value)
        self.log.append((__class__.__name__, before))  # type: ignore[name-defined]
        return result, await super().method(value + 1)


@program
async def methods(log: Log) -> Any:
    thing = await Derived.build(log)
    results = [await thing.method(1), await thing.static(2), await thing.prop, await thing.calls_private()]
    later = thing.method
    results.append(await later(await tick("argument of a bound method")))
    results.append(await thing)
    unbound_method = Base.method
    results.append(await unbound_method(thing, await tick("unbound")))
    return results, type(thing).__name__


@program
async def closures(log: Log) -> Any:
    count = 0

    def bump(by: int = 1) -> int:
        nonlocal count
        count += by
        return count

    async def inner() -> int:
        nonlocal count
        count += await tick("inner")
        bump()
        return count

    bump()
    first = await inner()
    bump.label = "labelled"  # type: ignore[attr-defined]
    await tick("outer")
    bump(5)
    second = await inner()

    def recursive(n: int) -> int:
        return 1 if n <= 1 else n * recursive(n - 1)

    await tick("recursive")
    return first, second, count, bump.label, recursive(5)  # type: ignore[attr-defined]


def forgetful(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def wrapper(*args: Any) -> Any:
        return "forgetful", await function(*args), await tick("forgetful")

    return wrapper


def careful(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(function)
    async def wrapper(*args: Any) -> Any:
        before = await tick("careful")
        return "careful", before, await function(*args)

    return wrapper


@forgetful
async def decorated_one(value: Any) -> Any:
    return await tick(value)


@careful
@careful
async def decorated_two(value: Any) -> Any:
    return await tick(value), "inside"


named_lambda = lambda value: decorated_two(value)  # noqa: E731
partly = functools.partial(decorated_two, "partial")


@program
async def decorations(log: Log) -> Any:
    kept: list[Any] = [
        decorated_one,
        decorated_two,
        partly,
        named_lambda,
        operator.itemgetter(1),
        len,
        str.upper,
        "x".join,
    ]
    results = [await kept[0](1), await kept[1](2), await kept[2](), await kept[3](4)]
    called = kept[4]([1, 2]), kept[5]("abc"), kept[6]("a"), kept[7]("ab")
    return results, called, kept[1] is decorated_two


@program
async def recursion(log: Log) -> Any:
    async def down(n: int) -> int:
        if n == 0:
            return await tick("bottom") or 0
        return 1 + await down(n - 1)

    return await down(200)


@program
async def local_classes(log: Log) -> Any:
    class Local:
        kind = "local"

        def __init__(self, value: Any) -> None:
            self.value = value

        def doubled(self) -> Any:
            return self.value * 2

        @property
        def tripled(self) -> Any:
            return self.value * 3

        @classmethod
        def make(cls, value: Any) -> Local:
            return cls(value)

        async def later(self) -> Any:
            return self.value + await tick("method of a local class")

    one, two = Local(1), Local.make(2)
    await tick("holding")
    three = Local(3)
    same = type(one) is type(two) is type(three) is Local
    return same, one.doubled(), two.tripled, await three.later(), isinstance(one, Local)


@program
async def local_imports(log: Log) -> Any:
    import json
    from os import path

    await tick("imported")
    return json.dumps([1, path.join("a", "b")])


# -- identity -----------------------------------------------------------------------------------------


@program
async def identities(log: Log) -> Any:
    shared: list[Any] = []
    holder = {"a": shared, "b": shared, "self": None}
    holder["self"] = holder  # type: ignore[assignment]
    pair = Pair(shared, Colour.BLUE)
    sentinel, unset, point = MISSING, UNSET, Point(1, 2, ["t"])
    same_point = [point, point]
    slotted = Slotted()

    async def aliased(inner: list[Any]) -> None:
        await tick("inner")
        inner.append(await tick("inner again"))

    await aliased(shared)
    await tick("outer")
    return (
        holder["a"] is holder["b"] is pair.left is shared,
        holder["self"] is holder,
        pair.right is Colour.BLUE,
        sentinel is MISSING,
        unset is UNSET,
        same_point[0] is same_point[1] is point,
        point,
        shared,
        slotted.one,
        hasattr(slotted, "two"),
        ... is Ellipsis,
    )


@program
async def cycle_through_itself(log: Log) -> Any:
    def numbers_forever() -> Iterator[int]:
        for i in itertools.count():
            held.append(i)
            yield i

    held: list[Any] = []
    generator = numbers_forever()
    held.append(generator)
    next(generator)
    await tick("cycle")
    next(generator)
    return held[1:], held[0] is generator


# -- generators ---------------------------------------------------------------------------------------


def counting(log: Log, n: int) -> Generator[int, Any, str]:
    try:
        for i in range(n):
            got = yield i
            if got:
                log.append(("sent", got))
    finally:
        log.append("counted")
    return "done"


def delegating(log: Log, n: int) -> Generator[int, Any, None]:
    log.append((yield from counting(log, n)))
    yield from [70, 71]
    yield from (x * 2 for x in range(2))


async def numbers(n: int) -> AsyncIterator[int]:
    try:
        for i in range(n):
            await tick(("number", i))
            yield i * 10
    except GeneratorExit:
        CLOSED.append(n)
        raise


CLOSED: list[int] = []


async def lingering(n: int) -> AsyncIterator[int]:
    try:
        for i in range(n):
            yield i
    finally:
        await tick("lingering")


@program
async def generators(log: Log) -> Any:
    half = delegating(log, 4)
    seen = [next(half), half.send("hello")]
    unstarted, finished = counting(log, 2), counting(log, 0)
    list(finished)
    await tick("held")
    for value in half:
        seen.append(value)
        log.append(await tick(("for", value)))
    return seen, list(unstarted), list(finished)


@program
async def thrown_into_generator(log: Log) -> Any:
    def catching() -> Generator[Any, Any, Any]:
        try:
            yield 1
        except KeyError as error:
            yield ("caught", error.args)
            yield sys.exc_info()[1] is error
            raise

    generator = catching()
    next(generator)
    await tick("one")
    log.append(generator.throw(KeyError("thrown")))
    await tick("two")
    log.append(next(generator))
    await tick("three")
    try:
        next(generator)
    except KeyError as error:
        return error.args


@program
async def async_generators(log: Log) -> Any:
    seen = []
    source = numbers(4)
    async for value in source:
        seen.append((value, await tick("body")))
        if value == 10:
            break
    await tick("half consumed")
    seen.append(await anext(source))
    seen.append(await anext(source, "default"))
    await tick("before the end")
    seen.append(await anext(source, "default"))
    seen.append(await anext(source, "default"))

    async def receiving() -> Any:
        got = None
        while True:
            try:
                got = yield ("got", got, await tick("receiving"))
            except ValueError as error:
                got = error.args
                await tick("recovering")

    channel = receiving()
    seen += [await channel.asend(None), await channel.asend("x"), await channel.athrow(ValueError("v"))]
    await channel.aclose()
    closing = lingering(3)
    await anext(closing)
    await closing.aclose()
    return seen


# -- context managers ---------------------------------------------------------------------------------


class Managed:
    def __init__(self, log: Log, name: str, swallow: bool = False) -> None:
        self.log, self.name, self.swallow = log, name, swallow

    async def __aenter__(self) -> str:
        self.log.append(("enter", self.name, await tick("enter")))
        return self.name

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.log.append(("exit", self.name, kind and kind.__name__, await tick("exit")))
        return self.swallow

    def __enter__(self) -> str:
        self.log.append(("enter", self.name))
        return self.name

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.log.append(("exit", self.name, kind and kind.__name__))
        return self.swallow


@program
async def managers(log: Log) -> Any:
    async with Managed(log, "a") as a, Managed(log, "b", swallow=True) as b:
        await tick((a, b))
        with Managed(log, "c"):
            await tick("plain with")
            raise ValueError("swallowed by b")
    with Managed(log, "d") as d, Managed(log, "e", swallow=True):
        await tick(d)
        raise KeyError(await tick("raising"))
    async with Managed(log, "f"):
        return await tick("returning through")


@contextlib.contextmanager
def plain_manager(log: Log) -> Iterator[str]:
    log.append("in")
    try:
        yield "value"
    except KeyError:
        log.append("swallowed")
    finally:
        log.append("out")


@contextlib.asynccontextmanager
async def async_manager(log: Log, name: str) -> AsyncIterator[str]:
    log.append(("in", name, await tick("in")))
    try:
        yield name
    except ValueError:
        log.append(("swallowed", await tick("swallowing")))
    finally:
        log.append(("out", name, await tick("out")))


@program
async def generated_managers(log: Log) -> Any:
    with plain_manager(log) as value:
        await tick(value)
        raise KeyError
    async with async_manager(log, "one") as one:
        await tick(one)
        raise ValueError
    async with async_manager(log, "two"), async_manager(log, "three"):
        await tick("inside both")
    return value


@program
async def exit_stacks(log: Log) -> Any:
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(async_manager(log, "one"))
        two = await stack.enter_async_context(Managed(log, "two"))
        three = stack.enter_context(plain_manager(log))
        stack.callback(log.append, "called back")
        stack.push_async_callback(note, log, key=1)
        await tick("inside")
        log.append((one, two, three))
        with contextlib.ExitStack() as inner, contextlib.suppress(ZeroDivisionError):
            inner.callback(log.append, "inner")
            await tick("inner")
            1 / 0  # noqa: B018
    return log


async def note(log: Log, key: int) -> None:
    log.append(("noted", key, await tick("noting")))


# -- iterators of the standard library -------------------------------------------------------------------


@program
async def iterators(log: Log) -> Any:
    table = {"a": 1, "b": 2, "c": 3}
    every: list[Iterator[Any]] = [
        iter([1, 2, 3]), iter((1, 2, 3)), iter("abc"), iter(b"abc"), iter(range(3)), iter({1: 2, 3: 4, 5: 6}),
        iter(table.values()), iter(table.items()), reversed(table), reversed(table.items()), reversed([1, 2,
        3]), reversed(range(3)), enumerate("abc"), zip("abc", [1, 2, 3]), zip([1, 2, 3], "abc", strict=True),  # noqa: B905  # both forms are tried
        map(str.upper, "abc"), filter(None, [1, 0, 2]), iter(collections.deque([1, 2, 3])),
        iter(collections.OrderedDict(a=1, b=2)), iter(bytearray(b"ab")), iter(memory, 0),
    ]  # fmt: skip
    seen: list[Any] = []
    for iterator in every:
        seen.append(next(iterator))
        await tick("half consumed")
    for iterator in every:
        seen.append(list(iterator))
        seen.append(next(iterator, "exhausted"))
        await tick("exhausted")
    views = table.keys(), table.values(), table.items()
    await tick("views")
    table["d"] = 4
    for key, value in table.items():
        log.append((key, await tick(value)))
    return seen, [list(view) for view in views]


_memory = [3, 2, 1, 0]


def memory() -> int:
    return 0


@program
async def set_iteration(log: Log) -> Any:
    source = {"one", "two", "three", "four", "five"}
    seen = set()
    for item in source:
        seen.add(item)
        await tick("set")
    return len(seen), seen == source


@program
async def itertools_iterators(log: Log) -> Any:
    every = make_itertools()
    seen: list[Any] = []
    for name, iterator in every.items():
        seen.append((name, plainly(next(iterator))))
        await tick(name)
    for name, iterator in every.items():
        for _ in range(2):
            seen.append((name, plainly(next(iterator, "exhausted"))))  # noqa: PERF401  # the loop is what is tried
        await tick(name)
    for name, iterator in every.items():
        seen.append((name, [plainly(value) for value in itertools.islice(iterator, 20)]))
    return seen


def plainly(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 2 and type(value[1]).__name__ == "_grouper":
        return value[0], list(value[1])
    return value


def make_itertools() -> dict[str, Iterator[Any]]:
    one, two = itertools.tee(iter([1, 2, 3, 4, 5]))
    next(one)
    every: dict[str, Iterator[Any]] = {
        "count": itertools.count(5),
        "count step": itertools.count(5, 3),
        "count float": itertools.count(0.5, 0.25),
        "cycle": itertools.cycle("abc"),
        "repeat": itertools.repeat("r", 4),
        "repeat forever": itertools.repeat("r"),
        "accumulate": itertools.accumulate([1, 2, 3, 4], operator.mul),
        "accumulate initial": itertools.accumulate([1, 2, 3, 4], initial=10),
        "chain": itertools.chain([1], [2, 3], [4]),
        "chain from": itertools.chain.from_iterable([[1], [2, 3], [4]]),
        "compress": itertools.compress("abcdef", [1, 0, 1, 1, 1, 1]),
        "dropwhile": itertools.dropwhile(small, [1, 2, 3, 4, 1, 2]),
        "takewhile": itertools.takewhile(small, [1, 2, 2, 4, 1]),
        "filterfalse": itertools.filterfalse(small, [1, 5, 6, 2, 7]),
        "groupby": itertools.groupby("aabbbc"),
        "islice": itertools.islice("abcdefg", 1, 6, 2),
        "pairwise": itertools.pairwise([1, 2, 3, 4]),
        "permutations": itertools.permutations([1, 2, 3], 2),
        "combinations": itertools.combinations([1, 2, 3, 4], 2),
        "combinations again": itertools.combinations_with_replacement([1, 2, 3], 2),
        "product": itertools.product("ab", [1, 2]),
        "starmap": itertools.starmap(operator.add, [(1, 2), (3, 4), (5, 6)]),
        "tee one": one,
        "tee two": two,
        "zip_longest": itertools.zip_longest([1, 2, 3], "a", fillvalue="-"),
    }
    if sys.version_info >= (3, 12):
        every["batched"] = itertools.batched("abcdefgh", 2)
    return every


def small(value: int) -> bool:
    return value < 3


@program
async def old_style(log: Log) -> Any:
    return await old_tick("one"), await old_tick("two"), await wrapped_await(), await asend_by_hand(log)


async def wrapped_await() -> Any:
    coroutine = old_tick_later()

    class Waiting:
        def __await__(self) -> Any:
            return coroutine.__await__()

    return await Waiting()


async def old_tick_later() -> Any:
    return await old_tick("three")


async def asend_by_hand(log: Log) -> Any:
    pending = numbers(2).__anext__()
    try:
        await tick("pending not awaited yet")
    finally:
        first = await pending
    return first


@program
async def awaitables_in_variables(log: Log) -> Any:
    unstarted = failing(0)
    held = [failing(0), old_tick("unused")]
    try:
        await tick("held")
    finally:
        unstarted.close()
        held[0].close()  # type: ignore[union-attr]
    return await held[1]  # type: ignore[misc]


@program
async def with_everything(log: Log) -> Any:
    """Held at once: managers, generators, closures, an exception, data, iterators."""
    point, table, count = Point(1, 2, ["t"]), {"k": [1, 2]}, 0
    pending = numbers(3)
    first = await anext(pending)
    source = counting(log, 9)
    next(source)

    def bump() -> int:
        nonlocal count
        count += 1
        return count

    async with Managed(log, "one") as one, async_manager(log, "two") as two:
        try:
            raise KeyError("held", MISSING)
        except KeyError as error:
            for key, value in table.items():
                async for number in pending:
                    log.append((one, two, key, value, number, bump(), next(source), error.args[0]))
                    await tick(number)
    return point, first, count, MISSING is error_free(MISSING)


def error_free(value: Any) -> Any:
    return value


# -- what random programs use besides -------------------------------------------------------------------


class Enough(BaseException):
    """Ends a random program that loops long."""


def loop_note(log: Log, value: Any) -> None:
    log.append(("loop", value))
    if len(log) > 300:
        raise Enough


async def number_generator(n: int) -> AsyncIterator[Any]:
    for i in range(n):
        yield i + await tick(i)


async def a_nan_in_two_places(log: Log) -> tuple[bool, bool, bool]:
    """Not one of the programs: it can tell that it was moved, by a float; not by what is an object for `pickle`."""
    number, other = float("nan"), complex(0, float("nan"))
    numbers, others = [number], [other]
    await tick()
    return number in numbers, other in others, numbers[0] != numbers[0]

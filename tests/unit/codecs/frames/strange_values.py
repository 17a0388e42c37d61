"""Values and loops that are half way through: strange programs, as `strange_programs`."""

# What these rules find is the point here: names, lambdas, defaults and classes that nobody should write, and somebody will.
# ruff: noqa: B012, B018, B023, E741, F821, F841, PIE804, PIE800, C408, RUF059, UP017, UP045, E501

from __future__ import annotations

import array
import collections
import collections.abc
import contextlib
import copy
import datetime
import decimal
import functools
import itertools
import operator
import typing
import zoneinfo
from typing import Any, Generic, TypeVar

from frame_programs import tick
from strange_programs import Log, program

T = TypeVar("T")


class Box(Generic[T]):
    def __init__(self, v: T):
        self.v = v

    def __class_getitem__(cls, item):
        return super().__class_getitem__(item)


class Own:
    def __class_getitem__(cls, item):
        return (cls.__name__, item)


@program
async def generic_aliases(log: Log) -> Any:
    alias = Box[int]
    b = alias(3)
    o = Own[int, "x"]
    l = list[int]
    u = int | None
    c = typing.Callable[[int], str]
    an = typing.Annotated[int, ["meta"]]
    lit = typing.Literal["a", 1]
    opt = typing.Optional[Box[str]]
    tv = Box[T]
    await tick(1)
    await tick(2)
    return (
        b.__orig_class__ is alias,
        b.__orig_class__ == Box[int],
        o,
        l([1]),
        u,
        str(c),
        str(an),
        an.__metadata__,
        lit.__args__,
        str(opt),
        tv[int] == alias,
        tv.__parameters__[0] is T,
    )


@program
async def closures_of_a_loop(log: Log) -> Any:
    fs = []
    late = []
    for i in range(3):
        fs.append(lambda i=i: i)
        late.append(lambda: i)
        await tick(i)
    i = 99
    await tick("x")
    return [f() for f in fs], [f() for f in late]


@program
async def a_variable_of_several(log: Log) -> Any:
    n = 0

    def inc():
        nonlocal n
        n += 1
        return n

    def get():
        return n

    async def both():
        inc()
        await tick(n)
        inc()
        return get()

    pair = [inc, get, both]
    await tick("a")
    pair[0]()
    r = await pair[2]()
    del n
    try:
        get()
    except NameError as e:
        log.append(str(e))
    await tick("b")
    try:
        pair[1]()
    except NameError as e:
        log.append(type(e).__name__)
    n = 7
    return r, get()


class Pt:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


@program
async def patterns_of_every_kind(log: Log) -> Any:
    out = []
    for v in [Pt(1, 2), {"k": [1, 2, 3], "r": 5}, (1, [2, 3]), "s", 5, None, Pt(3, Pt(4, 5))]:
        match v:
            case Pt(x, y) if await tick(("pt", x)) % 2:
                out.append(("pt", x, type(y).__name__))
            case Pt(x=int(x), y=Pt(a, b)) if await tick("deep"):
                out.append((x, a, b))
            case {"k": [first, *rest], **others} if await tick("map"):
                out.append((first, rest, others))
            case (int(n), [*m]) | [n, m] if await tick("seq"):
                out.append((n, m))
            case str() | None as z if await tick("z"):
                out.append(z)
            case _:
                out.append("none")
    return out


@program
async def groups_with_notes(log: Log) -> Any:
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [KeyError(2), OSError(5, "x")])])
        except* KeyError as kg:
            kg.add_note("kn")
            await tick("k")
            kg.exceptions[0].exceptions[0].add_note("deep")
            log.append([kg.__notes__, kg.exceptions[0].exceptions[0].__notes__])
            raise
        except* OSError as og:
            await tick("o")
            raise RuntimeError("new") from og
    except BaseExceptionGroup as g:
        await tick("end")
        g.add_note("last")
        sub = g.split(ValueError)
        der = g.derive([TypeError()])
        await tick("sub")
        return repr(g), [repr(s) for s in sub], repr(der), g.__notes__


@program
async def comprehensions_in_texts(log: Log) -> Any:
    async def agen(n):
        for i in range(n):
            yield i
            await tick(("g", i))

    w = 6
    return f"{[f'{x:>{await tick(w)}}' async for x in agen(2)]!r:*^{30 + await tick('w')}} { ({k: v async for k in agen(2) for v in [await tick(k)]}) }"


@program
async def deleted_names(log: Log) -> Any:
    a = [1]
    b = a
    del a
    await tick(1)
    try:
        a
    except UnboundLocalError as e:
        log.append(str(e))
    for i in range(2):
        x = i
        await tick(i)
        del x
    try:
        await tick(x)
    except UnboundLocalError:
        log.append("x")
    with contextlib.suppress(NameError):
        del b
        await tick(2)
        del b
    d = {"k": [1]}
    del d["k"][0]
    await tick(3)
    l = [1, 2, 3]
    del l[::2], d["k"]
    await tick(4)
    return d, l


@program
async def returns_that_override(log: Log) -> Any:
    async def f(how):
        for i in range(3):
            try:
                await tick(("t", i))
                if how == "raise":
                    raise ValueError(i)
                if how == "return":
                    return "try"
                if how == "continue":
                    continue
                break
            finally:
                await tick(("f", i))
                if how in ("raise", "return"):
                    return ("finally", how)
        else:
            return "else"
        return "end"

    return [await f(h) for h in ("raise", "return", "continue", "break")]


@program
async def stars_half_way(log: Log) -> Any:
    def g():
        yield 1
        yield 2

    async def many(*a, **k):
        return a, k

    first, *mid, (x, *y) = [await tick(0), *g(), *{5: 1}, await tick(1), [*g(), await tick(2)]]
    r = await many(*g(), await tick(3), *(z := (7, 8)), a=await tick(4), **{"b": await tick(5)}, **{"c": 1})
    d = {**{"a": await tick(6)}, "b": 1, **{"a": await tick(7)}}
    s = {*g(), await tick(8), *[1]}
    t = (*g(), *[await tick(9)])
    return first, mid, x, y, r, d, sorted(s), t, z


@program
async def views_of_a_dictionary(log: Log) -> Any:
    d = {"a": 1, "b": 2, "c": 3}
    k, v, i = d.keys(), d.values(), d.items()
    it = iter(d)
    next(it)
    rit = reversed(d)
    next(rit)
    await tick(1)
    await tick(2)
    d["b"] = 20
    await tick(2)
    r = list(it), list(rit), list(v), sorted(k & {"a", "z"}), ("b", 20) in i
    d["n"] = 1
    await tick(3)
    return r, list(k), len(i), k.mapping["n"], k == d.keys()


@program
async def loops_over_a_dictionary_with_holes(log: Log) -> Any:
    d = dict(a=1, b=2, c=3, d=4, e=5)
    del d["a"]
    del d["c"]
    it = iter(d)
    x = next(it)
    await tick(1)
    d["b"] = 3
    y = next(it)
    await tick(2)
    return x, y, list(it)


@program
async def zones_and_folds(log: Log) -> Any:
    z = zoneinfo.ZoneInfo("Europe/Berlin")
    dt = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=z, fold=1)
    u = dt.astimezone(datetime.timezone.utc)
    off = datetime.timezone(datetime.timedelta(hours=2), "X")
    o = datetime.datetime(2020, 1, 1, tzinfo=off)
    nc = zoneinfo.ZoneInfo.no_cache("Europe/Paris") if False else z
    await tick(1)
    await tick(2)
    return (
        dt.tzinfo is zoneinfo.ZoneInfo("Europe/Berlin"),
        dt.fold,
        dt.utcoffset(),
        u,
        o.tzname(),
        dt == u,
        str(dt),
        (o.tzinfo is off),
    )


@program
async def decimal_contexts(log: Log) -> Any:
    c = decimal.Context(prec=5, rounding=decimal.ROUND_UP, traps=[decimal.Inexact])
    d = decimal.Decimal("1.10")
    n = decimal.Decimal("sNaN12")
    z = decimal.Decimal("-0E+5")
    await tick(1)
    c2 = c.copy()
    await tick(2)
    try:
        c.divide(1, 3)
    except decimal.Inexact:
        log.append("inexact")
    return repr(c2), str(d), str(n), str(z), c.flags[decimal.Inexact]


@program
async def iterators_of_iterators(log: Log) -> Any:
    src = iter(range(10))
    a, b, c = itertools.tee(src, 3)
    next(a)
    sl = itertools.islice(b, 1, None, 2)
    next(sl)
    g = itertools.groupby("aabbc")
    k, grp = next(g)
    next(grp)
    ch = itertools.chain.from_iterable([[1, 2], (x for x in "ab"), range(2)])
    next(ch)
    next(ch)
    next(ch)
    await tick(1)
    r = next(a), next(sl), list(grp), next(g)[0], next(ch)
    await tick(2)
    return r, list(c), list(a), list(sl), [k for k, _ in g], list(ch)


@program
async def tees_of_tees(log: Log) -> Any:
    a, b = itertools.tee(iter("abcdef"))
    next(a)
    next(a)
    c = copy.copy(b)
    d, e = itertools.tee(a)
    await tick(1)
    next(c)
    await tick(2)
    return list(a), list(b), list(c), list(d), list(e)


@program
async def iterators_of_builtins(log: Log) -> Any:
    e = enumerate("abc", 5)
    next(e)
    z = zip("abc", [1, 2, 3], strict=True)
    next(z)
    m = map(operator.add, [1, 2], [3, 4])
    next(m)
    f = filter(None, [0, 1, 2])
    next(f)
    r = reversed([1, 2, 3])
    next(r)
    s = iter("xyz")
    next(s)
    by = iter(b"ab")
    next(by)
    rg = iter(range(10**20, 10**20 + 3))
    next(rg)
    ci = iter(functools.partial(next, iter([1, 2, 3, 0, 4])), 0)
    next(ci)

    class Seq:
        def __getitem__(self, i):
            if i > 3:
                raise IndexError
            return i

    q = iter(Seq())
    next(q)
    dq = iter(collections.deque([1, 2, 3]))
    next(dq)
    ar = iter(array.array("i", [1, 2]))
    next(ar)
    await tick(1)
    await tick(2)
    return [list(x) for x in (e, z, m, f, r, s, by, rg, ci, q, dq, ar)]


@program
async def uneven_zips(log: Log) -> Any:
    a = iter([1, 2, 3])
    z = zip(a, "ab", strict=True)
    out = []
    try:
        for x in z:
            out.append(x)
            await tick(x)
    except ValueError as e:
        log.append(str(e))
    await tick("e")
    return out, list(a)


@program
async def a_loop_over_what_grows(log: Log) -> Any:
    l = [1, 2]
    out = []
    for x in l:
        out.append(x)
        await tick(x)
        if len(l) < 6:
            l.append(x * 10)
    it = iter(l)
    [next(it) for _ in l]
    await tick("x")
    ended = list(it)
    l.append(7)
    await tick("y")
    return out, ended, list(it)


@program
async def iterators_that_have_ended(log: Log) -> Any:
    l = [1]
    it = iter(l)
    list(it)
    d = {1: 2}
    di = iter(d)
    list(di)
    g = (x for x in l)
    list(g)
    s = iter("a")
    list(s)
    z = zip()
    await tick(1)
    l.append(2)
    d[3] = 4
    await tick(2)
    return list(it), list(di), list(g), list(s), list(z)

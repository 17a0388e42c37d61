"""What functions make: classes, generators, handlers: strange programs, as `strange_programs`."""

# What these rules find is the point here: names, lambdas, defaults and classes that nobody should write, and somebody will.
# ruff: noqa: B006, B023, B904, E731, E741, E742, F841, N804, RUF012

from __future__ import annotations

import abc
import collections
import collections.abc
import contextlib
import copy
import functools
import operator
import typing
from typing import Any

from frame_programs import tick
from strange_programs import Log, program


class MetaOpt(type):
    seen = []

    def __new__(m, n, b, ns, tag=None):
        c = super().__new__(m, n, b, ns)
        c.tag = tag
        return c

    def __init__(c, n, b, ns, tag=None):
        super().__init__(n, b, ns)

    @classmethod
    def __prepare__(m, n, b, tag=None):
        return collections.OrderedDict()


@program
async def a_metaclass_with_an_option(log: Log) -> Any:
    class A(metaclass=MetaOpt, tag="q"):
        x = 1

    a = A()
    await tick(1)
    await tick(2)
    return a.tag, A.x


@program
async def copies_by_hand(log: Log) -> Any:
    class A:
        def __init__(self):
            self.l = []

        def __copy__(self):
            c = A()
            c.l = self.l
            return c

        def __deepcopy__(self, memo):
            c = A()
            memo[id(self)] = c
            c.l = copy.deepcopy(self.l, memo)
            return c

    a = A()
    a.l.append(a)
    b = copy.copy(a)
    c = copy.deepcopy(a)
    memo = {}
    d = copy.deepcopy(a, memo)
    await tick(1)
    await tick(2)
    return b.l is a.l, c.l[0] is c, d.l[0] is d, a.l[0] is a


@program
async def a_dictionary_that_grows(log: Log) -> Any:
    class D(dict):
        def __missing__(self, k):
            v = self[k] = type(self)()
            v.parent = self
            return v

    d = D()
    d["a"]["b"]["c"]
    await tick(1)
    await tick(2)
    x = d["a"]["z"]
    return x.parent is d["a"], d["a"].parent is d, d


@program
async def a_variable_of_two_branches(log: Log) -> Any:
    n = [0]
    total = 0

    async def w(i):
        nonlocal total
        for _ in range(2):
            total += i
            n.append(total)
            await tick((i, total))

    a, b = w(1), w(10)
    y = [a.send(None), b.send(None)]
    await tick(y)
    for _ in range(3):
        for c in (a, b):
            with contextlib.suppress(StopIteration, RuntimeError):
                await tick(c.send(None))
    return total, n


@program
async def generators_that_hold_managers(log: Log) -> Any:
    def g():
        with contextlib.ExitStack() as s:
            s.callback(log.append, "closed")
            yield 1
            yield 2

    i = g()
    next(i)
    await tick(1)
    i.close()
    j = g()
    next(j)
    await tick(2)
    del j
    await tick(3)
    return log[:]


@program
async def async_generators_in_one_another(log: Log) -> Any:
    async def src(n):
        try:
            for i in range(n):
                yield i
                await tick(("s", i))
        finally:
            log.append(("done", n))

    g = (x async for x in src(3) if await tick(("c", x)))
    first = await anext(g)
    await tick("mid")
    rest = [x async for x in g]
    return (
        first,
        rest,
        [[y async for y in src(x)] for x in range(2)],
        {x: [y async for y in src(2)] async for x in src(1)},
    )


@program
async def a_deque_that_changes(log: Log) -> Any:
    d = collections.deque([1, 2, 3])
    it = iter(d)
    next(it)
    await tick(1)
    await tick(2)
    d.append(4)
    try:
        return list(it)
    except RuntimeError as e:
        return str(e)


@program
async def generics_of_a_function(log: Log) -> Any:
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, v: T) -> None:
            self.v = v

    class IntBox(Box[int]):
        pass

    b = Box[str]("a")
    i = IntBox(3)
    al = Box[int]
    await tick(1)
    await tick(2)
    return (
        b.v,
        i.v,
        al(5).v,
        IntBox.__orig_bases__[0] == Box[int],
        Box.__parameters__[0] is T,
        b.__orig_class__ == Box[str],
    )


@program
async def heirs_of_builtins_of_a_function(log: Log) -> Any:
    class L(list):
        def __init__(self, *a):
            super().__init__(a)
            self.extra = [self]

        def append(self, x):
            super().append(("w", x))

    class D(dict):
        def __getattr__(self, n):
            try:
                return self[n]
            except KeyError:
                raise AttributeError(n) from None

        __setattr__ = dict.__setitem__

    class I(int):
        def __new__(cls, v):
            o = super().__new__(cls, v)
            o.unit = "kg"
            return o

        def __add__(self, o):
            return type(self)(int(self) + int(o))

    class S(str):
        def __getitem__(self, i):
            return S(super().__getitem__(i))

    class T(tuple):
        def __new__(cls, *a):
            return super().__new__(cls, a)

        first = property(operator.itemgetter(0))

    class B(bytes):
        pass

    class Fz(frozenset):
        pass

    l = L(1, 2)
    l.append(3)
    d = D(a=1)
    d.b = d
    i = I(5)
    s = S("abc")
    t = T(1, 2)
    b = B(b"q")
    f = Fz([1])
    f.n = f
    b.x = [b]
    await tick(1)
    await tick(2)
    l.append(4)
    return (
        list(l),
        l.extra[0] is l,
        d.a,
        d.b is d,
        (i + 2).unit,
        type(s[1]).__name__,
        t.first,
        b.x[0] is b,
        f.n is f,
    )


@program
async def descriptors_of_a_function(log: Log) -> Any:
    class Desc:
        def __set_name__(self, o, n):
            self.n = "_" + n
            log.append(("set_name", n))

        def __get__(self, o, t=None):
            return self if o is None else getattr(o, self.n)

        def __set__(self, o, v):
            setattr(o, self.n, v)

    class A:
        d = Desc()

        def __init__(self):
            self.d = [self]

    a = A()
    await tick(1)
    await tick(2)
    return a.d[0] is a, A.d.n, log[:]


@program
async def a_class_with_a_past(log: Log) -> Any:
    class A:
        """doc"""

        __match_args__ = ("x",)
        __hash__ = None
        table = {}
        reg = []

        class Inner:
            v = 1

            class Deep:
                z = 2

        x: int = 3
        _cache: typing.ClassVar[dict] = {}

        def __init__(self):
            self.reg.append(self)
            self.table["s"] = type(self)

        @classmethod
        def make(cls):
            return cls()

        @property
        def p(self):
            "pdoc"
            return self.x

        def __call__(self, y=[1]):
            y.append(2)
            return len(y)

        lam = lambda self: __class__

    a = A.make()
    A.new = "new"
    A.reg.append("more")
    A.Inner.v = 9
    i = A.Inner.Deep()
    await tick(1)
    await tick(2)
    a()
    match a:
        case A(x):
            log.append(x)
    return (
        A.__doc__,
        A.reg[0] is a,
        A.table["s"] is A,
        A.new,
        A.Inner.v,
        type(i) is A.Inner.Deep,
        A.p.__doc__,
        a(),
        a.lam() is A,
        A.__hash__,
        A.__annotations__,
    )


@program
async def classes_that_know_each_other(log: Log) -> Any:
    class A:
        def make(self):
            return B(self)

    class B(A):
        def __init__(self, a=None):
            self.a = a

        def up(self):
            return super().make, A, B, __class__

    A.B = B
    B.A = A
    b = A().make()
    k = [A, B, type(b)]
    await tick(1)
    await tick(2)
    return b.up()[2] is B, A.B is k[1], isinstance(b.make(), B), B.A is A


@program
async def exceptions_of_a_function(log: Log) -> Any:
    class E(Exception):
        __slots__ = ("code",)

        def __init__(self, code):
            super().__init__("m", code)
            self.code = code

    class Sub(E, KeyError):
        def __reduce__(self):
            return Sub, (self.code,)

    try:
        raise Sub([1])
    except E as e:
        saved = e
        await tick(1)
        try:
            raise E(5) from e
        except E as f:
            await tick(2)
            return f.code, f.__cause__ is saved, saved.code, isinstance(saved, KeyError), str(f)


@program
async def members_behind_decorators(log: Log) -> Any:
    def twice(f):
        @functools.wraps(f)
        def w(self):
            return f(self) * 2

        return w

    class A:
        @property
        @twice
        def v(self):
            return self.n

        @functools.cached_property
        def c(self):
            return [self.n]

        @classmethod
        def cm(cls):
            return cls.__name__

        @staticmethod
        def sm(x):
            return x

        @twice
        def m(self):
            return self.n

        al = m
        pm = functools.partialmethod(
            sm.__func__,
        )

        @contextlib.contextmanager
        def cmgr(self):
            log.append("+")
            yield self.n
            log.append("-")

        @abc.abstractmethod
        def ab(self):
            pass

        __eq__ = lambda s, o: s.n == o.n

    a = A()
    a.n = 3
    c = a.c
    with a.cmgr() as q:
        await tick(1)
        await tick(2)
    return a.v, a.c is c, A.cm(), a.sm(1), a.m(), a.al(), q, a == a, A.ab.__isabstractmethod__


@program
async def a_default_of_several(log: Log) -> Any:
    shared = []

    def f(x, acc=shared):
        acc.append(x)
        return acc

    def g(*, acc=shared):
        acc.append("g")
        return len(acc)

    class A:
        def m(self, acc=shared):
            acc.append("m")
            return acc is shared

    a = A()
    await tick(1)
    await tick(2)
    f(1)
    g()
    return a.m(), shared, f(2) is shared


@program
async def classes_of_a_loop(log: Log) -> Any:
    makers = []
    for i in range(3):

        class C:
            n = i

            def get(self):
                return (self.n, i, __class__.n)

        makers.append(C)
    await tick(1)
    await tick(2)
    return [m().get() for m in makers], makers[0] is not makers[1]


@program
async def a_ladder_of_classes(log: Log) -> Any:
    def make(base, n):
        class K(base):
            level = n

            async def who(self):
                r = [self.level, n, await tick(n)]
                return r if n == 0 else r + await super().who()

        return K if n == 2 else make(K, n + 1)

    o = make(object, 0)()
    await tick("m")
    return await o.who(), len(type(o).__mro__)


@program
async def a_group_that_is_half_handled(log: Log) -> Any:
    out = []
    try:
        try:
            raise ExceptionGroup(
                "eg", [ValueError(1), TypeError(2), ExceptionGroup("in", [ValueError(3), OSError(4)])]
            )
        except* ValueError as v:
            out.append((await tick("v"), len(v.exceptions)))
            raise KeyError("new")
        except* TypeError:
            out.append(await tick("t"))
    except BaseExceptionGroup as g:
        await tick("g")

        def flat(e):
            return [
                x
                for s in e.exceptions
                for x in (flat(s) if isinstance(s, BaseExceptionGroup) else [type(s).__name__])
            ]

        return out, flat(g), [type(x.__context__).__name__ for x in g.exceptions]


@program
async def raised_on_from_level_to_level(log: Log) -> Any:
    async def a(n):
        try:
            await tick(("a", n))
            if n == 0:
                raise LookupError("deep")
            await a(n - 1)
        except LookupError as e:
            e.args += (n,)
            await tick(("h", n))
            if n % 2:
                raise
            raise RuntimeError(n) from e
        except RuntimeError as e:
            await tick(("r", n))
            raise LookupError(n) from None
        finally:
            log.append(n)

    try:
        await a(3)
    except Exception as e:
        ch = []
        x = e
        while x:
            ch.append((type(x).__name__, x.args, x.__suppress_context__))
            x = x.__cause__ or x.__context__
        return ch

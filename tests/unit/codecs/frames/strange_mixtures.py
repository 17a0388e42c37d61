"""Objects that hold each other in every way: strange programs, as `strange_programs`."""

# What these rules find is the point here: names, lambdas, defaults and classes that nobody should write, and somebody will.
# ruff: noqa: E731, E741, F841, RUF012

from __future__ import annotations

import abc
import collections
import collections.abc
import contextlib
import functools
import graphlib
import heapq
import json
import types
import typing
import weakref
from typing import Any

from frame_programs import tick
from strange_programs import Log, program


@program
async def an_order_of_work(log: Log) -> Any:
    g = graphlib.TopologicalSorter({"d": {"b", "c"}, "b": {"a"}, "c": {"a"}})
    g.prepare()
    out = []
    while g.is_active():
        r = sorted(g.get_ready())
        out.append(r)
        await tick(len(out))
        g.done(*r)
    return out


@program
async def heaps_and_defaults(log: Log) -> Any:
    h = [(3, "c"), (1, "a")]
    heapq.heapify(h)
    n = collections.defaultdict(lambda: collections.defaultdict(list))
    n["a"]["b"].append(1)
    tree = lambda: collections.defaultdict(tree)
    t = tree()
    t[1][2][3]
    await tick(1)
    n["x"]["y"].append(2)
    t[4][5]
    heapq.heappush(h, (0, "z"))
    await tick(2)
    return h[0], json.dumps(n), json.dumps(t)


class Observed:
    _registry = weakref.WeakSet()

    def __init__(self):
        self.cbs = []
        self._registry.add(self)

    def on(self, f):
        self.cbs.append(f)
        return f


@program
async def callbacks_in_a_list(log: Log) -> Any:
    o = Observed()
    seen = []

    @o.on
    def cb(x):
        seen.append((x, len(o.cbs)))

    o.on(seen.append)
    o.on(o.cbs.copy)
    o.on(functools.partial(cb, 5))
    await tick(1)
    await tick(2)
    for c in o.cbs[:2]:
        c(1)
    o.cbs[3]()
    await tick(2)
    return [s if isinstance(s, (int, tuple)) else "?" for s in seen]


@program
async def one_list_everywhere(log: Log) -> Any:
    l = [1]
    t = (l, l)
    d = {"l": l, "t": t}
    o = types.SimpleNamespace(d=d, l=l)
    d["o"] = o
    f = lambda: l
    m = l.append
    s = l.__len__
    kw = functools.partial(dict, x=l)
    bm = d.get
    mp = types.MappingProxyType(d)
    it = iter(l)
    e = ValueError(l)
    e.d = d
    await tick(1)
    await tick(2)
    m(2)
    await tick(2)
    l.append(3)
    return (
        t[0] is l,
        d["l"] is l,
        o.l is l,
        f() is l,
        s(),
        kw()["x"] is l,
        bm("t") is t,
        mp["l"] is l,
        list(it),
        e.args[0] is l,
        e.d is d,
        o.d is d,
    )


class Meta(type):
    def __call__(cls, *a):
        o = super().__call__(*a)
        cls.count = getattr(cls, "count", 0) + 1
        return o

    def __getitem__(cls, k):
        return (cls, k)

    def __iter__(cls):
        return iter([1, 2])

    def __len__(cls):
        return 2

    @property
    def mp(cls):
        return cls.__name__


class WithMeta(metaclass=Meta):
    pass


@program
async def metaclasses_that_answer(log: Log) -> Any:
    w = WithMeta()
    c = WithMeta
    b = WithMeta[3]

    class Local(WithMeta, metaclass=Meta):
        x: int = 5

        def m(self):
            return super().__init__, __class__

    l = Local()
    k = Local
    await tick(1)
    await tick(2)
    return (
        type(w) is c,
        b[0] is c,
        list(k),
        len(k),
        k.mp,
        l.m()[1] is k,
        isinstance(l, WithMeta),
        Local.count >= 1,
    )


@program
async def heirs_that_are_told(log: Log) -> Any:
    reg = []

    class Base:
        def __init_subclass__(cls, tag=None, **kw):
            super().__init_subclass__(**kw)
            cls.tag = tag

    class A(Base, tag="a"):
        pass

    a = A()
    await tick(1)
    await tick(2)

    class B(A, tag="b"):
        pass

    b = B()
    await tick(2)
    return a.tag, b.tag, isinstance(b, A), B.__mro__[1] is A


@program
async def abstract_classes_that_are_asked(log: Log) -> Any:
    class Shape(abc.ABC):
        @abc.abstractmethod
        async def area(self): ...
        @classmethod
        def __subclasshook__(cls, c):
            return hasattr(c, "area") or NotImplemented

    class Sq(Shape):
        def __init__(self, s):
            self.s = s

        async def area(self):
            return self.s * await tick("area")

    class Duck:
        def area(self): ...

    Shape.register(int)
    s = Sq(3)
    await tick(1)
    await tick(2)
    try:
        Shape()
    except TypeError as e:
        log.append("abstract")
    return await s.area(), isinstance(Duck(), Shape), isinstance(5, Shape), isinstance(s, Shape)


@program
async def protocols_that_are_asked(log: Log) -> Any:
    @typing.runtime_checkable
    class Pr(typing.Protocol):
        def area(self) -> int: ...

    class D:
        def area(self):
            return 1

    await tick(1)
    await tick(2)
    return isinstance(D(), Pr), isinstance(5, Pr)


@program
async def attributes_out_of_nowhere(log: Log) -> Any:
    class Lazy:
        def __getattr__(self, n):
            if n.startswith("__"):
                raise AttributeError(n)
            return n + "!"

        def __dir__(self):
            return ["q"]

    l = Lazy()
    l.set = 1
    await tick(1)
    await tick(2)
    return l.foo, l.set, dir(l)


@program
async def managers_as_decorators(log: Log) -> Any:
    class CM(contextlib.ContextDecorator):
        def __enter__(self):
            log.append("en")
            return self

        def __exit__(self, *a):
            log.append("ex")
            return True

    @CM()
    def f():
        raise ValueError

    @contextlib.contextmanager
    def g():
        log.append("g+")
        yield
        log.append("g-")

    @g()
    def h():
        return 5

    await tick(1)
    f()
    r = h()
    await tick(2)
    return r


class Odd(Exception):
    def __init__(self, a, *, b):
        super().__init__(f"{a}/{b}")
        self.a, self.b = a, b

    def __str__(self):
        return f"odd {self.a} {self.b}"


class OddGroup(ExceptionGroup):
    def __new__(cls, errs, code):
        s = super().__new__(cls, "msg", errs)
        s.code = code
        return s

    def derive(self, e):
        return OddGroup(e, self.code)


@program
async def odd_exceptions(log: Log) -> Any:
    e = Odd(1, b=[2])
    g = OddGroup([e, KeyError(1)], 5)
    o = OSError(2, "no", "file")
    u = UnicodeDecodeError("utf8", b"x", 0, 1, "r")
    s = SystemExit(3)
    st = StopIteration(7)
    imp = ImportError("m", name="n", path="p")
    se = SyntaxError("bad", ("f", 1, 2, "t"))
    ne = NameError("x", name="x")
    ae = AttributeError("q", name="q", obj=e)
    sa = StopAsyncIteration(1)
    await tick(1)
    await tick(2)
    m, r = g.split(KeyError)
    return (
        str(e),
        e.b,
        m.code,
        r.exceptions[0] is e,
        type(o).__name__,
        o.filename,
        o.errno,
        u.reason,
        u.object,
        s.code,
        st.value,
        imp.name,
        imp.path,
        se.lineno,
        se.text,
        ne.name,
        ae.name,
        sa.args,
    )


@program
async def a_generator_that_delegates(log: Log) -> Any:
    def inner():
        try:
            x = yield 1
            log.append(x)
            yield x
        except ValueError as e:
            yield ("v", str(e))
        return "ret"

    def outer():
        r = yield from inner()
        log.append(r)
        yield r

    g = outer()
    next(g)
    await tick(1)
    a = g.send("s")
    await tick(2)
    b = g.throw(ValueError("q"))
    await tick(3)
    c = next(g)
    await tick(4)
    return a, b, c, list(g), g.gi_frame is None


@program
async def coroutines_that_wait_in_containers(log: Log) -> Any:
    async def c(x):
        return x * 2, await tick(x)

    pend = [c(i) for i in range(3)]
    d = {i: c(i) for i in range(2)}
    later = c("later")
    await tick("made")
    r = [await p for p in pend]
    r2 = {k: await v for k, v in d.items()}
    r.append(await later)
    return r, r2


@program
async def coroutines_by_turns(log: Log) -> Any:
    async def c(n):
        for i in range(3):
            log.append((n, i))
            await tick((n, i))
        return n

    a, b = c("a"), c("b")
    out = []
    live = [a, b]
    while live:
        for x in list(live):
            try:
                y = x.send(None)
            except StopIteration as s:
                out.append(s.value)
                live.remove(x)
            else:
                await tick(y)
    return out


@program
async def ways_to_say_super(log: Log) -> Any:
    class A:
        async def m(self):
            return ["A", await tick("A")]

        @classmethod
        async def c(cls):
            return ["Ac", cls.__name__, await tick("c")]

        @property
        def p(self):
            return "pA"

    class B(A):
        async def m(self):
            return [*await super().m(), "B"]

        @classmethod
        async def c(cls):
            return [*await super().c(), "Bc"]

        @property
        def p(self):
            return super().p + "B"

        async def comp(self):
            return [await super(B, self).m() for _ in range(2)]

    b = B()
    s = super(B, b)
    un = super(B, B)
    await tick(1)
    return await b.m(), await B.c(), b.p, await b.comp(), await s.m(), s.p, await un.c()


@program
async def operators_in_place(log: Log) -> Any:
    l = [1, 2, 3]
    d = {"a": [1]}
    i = iter([0, 1])
    l[next(i)] += await tick("x")
    d["a"] += [await tick("y")]
    d.setdefault("b", []).append(await tick("z"))
    l[await tick(0) % 2 :] = [await tick(1)]
    x = y = z = await tick("m")
    (a, b), c = d2 = [(1, await tick(2)), 3]
    s = await tick(1) < await tick(2) < await tick(3) < 0 or await tick("or")
    t = await tick(5) if await tick(6) else 0
    n = not await tick(7)
    u = -(await tick(8) ** 2)
    return l, d, x, y, z, a, b, c, s, t, n, u, d2


@program
async def containers_of_a_function(log: Log) -> Any:
    class Cnt(collections.Counter):
        def __init__(self, *a, tag=None):
            super().__init__(*a)
            self.tag = tag

    class OD(collections.OrderedDict):
        def __setitem__(self, k, v):
            super().__setitem__(k, (v,))
            self.move_to_end(k)

    class Dq(collections.deque):
        pass

    c = Cnt("aab", tag=[1])
    o = OD()
    o["a"] = 1
    o["b"] = 2
    o["a"] = 3
    q = Dq([1], 2)
    q.n = q

    class MM(collections.abc.MutableMapping):
        def __init__(self):
            self.d = {}

        def __getitem__(self, k):
            return self.d[k]

        def __setitem__(self, k, v):
            self.d[k] = v

        def __delitem__(self, k):
            del self.d[k]

        def __iter__(self):
            yield from self.d

        def __len__(self):
            return len(self.d)

    m = MM()
    m["k"] = m
    ks = m.keys()
    it = iter(m)
    await tick(1)
    await tick(2)
    return c, c.tag, list(o.items()), q.n is q, m["k"] is m, list(ks), next(it)


@program
async def a_class_that_changes(log: Log) -> Any:
    class A:
        def who(self):
            return "A"

    class B:
        def who(self):
            return "B"

    a = A()
    a.x = 1
    a.__class__ = B
    A.extra = 5
    A.who2 = lambda self: "late"
    z = A()
    await tick(1)
    await tick(2)
    return a.who(), a.x, A.extra, z.who2(), type(a) is B


@program
async def functions_with_attributes(log: Log) -> Any:
    def f(x):
        return f.calls, x

    f.calls = 0
    f.cache = {1: f}
    f.self = f

    async def g():
        g.n = getattr(g, "n", 0) + 1
        return g.n, await tick(g.n)

    await tick(1)
    await tick(2)
    f.calls += 1
    return f(2), f.cache[1] is f, f.self is f, await g(), await g()

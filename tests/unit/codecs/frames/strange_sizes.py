"""Code of unusual size, and code that is entered in unusual ways: strange programs, as `strange_programs`."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

from frame_programs import tick
from strange_programs import PROGRAMS, Log, program


def _made(name: str, body: list[str]) -> None:
    """A program written by a program: arguments and jumps that need more than a byte."""
    source = f"async def {name}(log):\n" + "\n".join(body)
    exec(compile(source, __file__, "exec"), globals())
    PROGRAMS[name] = globals()[name]


_made(
    "many_variables",
    [f"    v{number} = {number}" for number in range(400)]
    + ["    got = await tick('many')", "    def inner(): return v399 + v300", "    await tick('inner')"]
    + ["    return got, inner(), " + " + ".join(f"v{number}" for number in range(0, 400, 7))],
)
_made(
    "a_deep_stack",
    ["    return " + "".join(f"max({n}, *[" for n in range(60)) + "await tick(1), await tick(2)" + "])" * 60],
)
_made(
    "a_wide_call",
    ["    return max(" + ", ".join(map(str, range(250))) + ", await tick('a'), await tick('b'))"],
)
_made(
    "many_handlers",
    ["    " * (n + 1) + "try:" for n in range(15)]
    + ["    " * 16 + "await tick('inside'); log.append('inside')"]
    + [
        "    " * (n + 1) + "finally:\n" + "    " * (n + 2) + f"log.append(({n}, await tick({n})))"
        for n in reversed(range(15))
    ],
)
_made(
    "a_long_jump",
    ["    for n in range(3):", "        await tick(n)", *["        log.append(n + 1)"] * 600, "    return n"],
)


class Special:
    async def method(self) -> Any:
        return await tick("method")

    async def __aenter__(self) -> Any:
        await tick("enters")
        return self

    async def __aexit__(self, *_: Any) -> Any:
        return await tick("leaves") and False

    async def __getitem__(self, key: Any) -> Any:
        return key, await tick("getitem")

    def __matmul__(self, other: Any) -> Any:
        async def multiplied() -> Any:
            return other, await tick("matmul")

        return multiplied()

    @property
    def later(self) -> Any:
        async def found() -> Any:
            return await tick("property"), __class__.__name__  # type: ignore[name-defined]

        return found()


class Heir(Special):
    by_lambda = lambda self: self.method()  # noqa: E731

    async def method(self) -> Any:
        held = super().method
        await tick("a method of super is held")
        return await held(), [await super(Heir, self).method() for _ in range(2)]

    async def generated(self) -> Any:
        for number in range(2):
            yield number, await tick("generated"), await super().method()


@program
async def special_methods(log: Log) -> Any:
    heir = Heir()
    async with heir as same, Heir() as other:
        seen = [
            await heir[3],
            await (heir @ 4),
            await heir.later,
            await heir.by_lambda(),
            same is heir,
            other is heir,
        ]
        async for each in heir.generated():
            seen.append(each)  # noqa: PERF401  # the loop is what is tried
    return seen


@program
async def a_generator_inside_its_handler(log: Log) -> Any:
    def handling() -> Generator[Any, Any, None]:
        try:
            yield 1
        except KeyError:
            try:
                yield repr(sys.exc_info()[1])
            finally:
                log.append(repr(sys.exc_info()[1]))
            yield repr(sys.exc_info()[1])
        yield type(sys.exc_info()[1]).__name__

    source = handling()
    seen = [next(source), source.throw(KeyError("k"))]
    await tick("in its handler")
    try:
        raise TypeError("outside")
    except TypeError:
        await tick("in both")
        seen.append(next(source))
        await tick("again")
        seen.append(next(source))
    return seen, next(source, "ended")


@program
async def generators_that_delegate_and_are_sent_to(log: Log) -> Any:
    def one() -> Generator[Any, Any, Any]:
        got = yield from two()
        log.append(("one", got))
        return "one", got

    def two() -> Generator[Any, Any, Any]:
        try:
            got = yield from three()
            return "two", got
        finally:
            log.append("two ends")

    def three() -> Generator[Any, Any, Any]:
        first = yield 1
        second = yield "got", first
        return first, second

    source = one()
    seen = [next(source)]
    await tick("first")
    seen.append(source.send("S"))
    await tick("second")
    try:
        source.send("T")
    except StopIteration as stop:
        seen.append(stop.value)
    return seen

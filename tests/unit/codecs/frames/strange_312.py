"""Strange programs with the syntax of CPython 3.12: type parameters, quotes inside f-strings, inlined comprehensions."""

import dataclasses
from typing import Any

from frame_programs import numbers, tick
from strange_programs import PROGRAMS, Log

type Pair[T] = tuple[T, T]


async def generic[T: (int, str), *Ts, **P](value: T, *rest: *Ts) -> Pair[T]:
    got = await tick(T.__name__)
    inner = [T.__constraints__ if await tick(x) else P for x in range(2)]
    return value, got, [str(each) for each in inner], Ts.__name__


class Box[T]:
    type Several = list[T]

    kind: T

    def __init__(self, log: Log) -> None:
        self.log = log

    async def method[U](self, value: U) -> Any:
        async def nested[V](inner: V) -> Any:
            return [T.__name__, U.__name__, V.__name__, inner, value, await tick("nested"), __class__.__name__]

        return await nested(await tick("method")), Box[int].__args__

    @classmethod
    async def make[W](cls, log: Log) -> Any:
        return cls(log), W.__name__, await tick("make")


class Tight[T](Box[T]):
    async def method[U](self, value: U) -> Any:
        return await super().method(value), [await super(Tight, self).method(x) for x in range(1)]


async def type_parameters(log: Log) -> Any:
    box, name, made = await Tight.make(log)
    type Local[T] = list[T]

    def local[T](x: T) -> Any:
        return T.__name__, x

    await tick(Local.__name__)
    return await generic(3, "rest"), await box.method("m"), name, made, local(await tick("local"))


async def inlined_comprehensions(log: Log) -> Any:
    x = "outer"
    try:
        got: list[Any] = [[x for x in range(x)] + [x] for x in range(3) if x < 2 or await tick(x)]
        got += [[y for y in (x, x)] for x in "ab" if await tick(x)]
        got += [x async for x in numbers(2)]
        got += [[await tick((x, y)) for y in range(2) if (kept := y) >= 0] for x in range(2)]
        got += [1 // x for x in (1, 0) if await tick("raises")]
    except ZeroDivisionError as error:
        await tick("caught")
        return x, got, error.args, kept
    return "never"


async def texts_in_texts(log: Log) -> Any:
    return f"{f"{await tick(1)}{f'{await tick(2)!r}'}"}\n{"\n".join([f"{x:{"d"}}" for x in [await tick(3)]])}"


async def annotations_that_are_values(log: Log) -> Any:
    @dataclasses.dataclass
    class Local:
        x: int

    def function[T](a: int, b: list[int], c: T, d: "text") -> Box[int]: ...  # type: ignore[name-defined]  # noqa: F821

    def of_local(a: Local, b: list[Local] | None = None) -> None: ...

    held = function, Box.Several, of_local
    assert Local(1)
    await tick("held")
    shown = held[0].__annotations__
    await tick("again")
    return [shown[name] for name in "abd"], shown["c"] is function.__type_params__[0], shown["return"], held[1] is Box.Several


PROGRAMS.update({each.__name__: each for each in (annotations_that_are_values, type_parameters, inlined_comprehensions, texts_in_texts)})

"""Random async programs as source text, by a hypothesis strategy: statements, handlers, loops, comprehensions, helpers,
suspensions anywhere.

A batch is one module: helpers, and a few programs that use them. It is written from one string of bytes, each the choice of
one thing; when they are used up, the first of what there is is taken. So hypothesis draws once for a batch (a draw for
each choice takes ten times as long as all the rest), and a smaller string is a simpler batch: it shrinks.

Programs always end, and what they log and return can be compared by value.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

Choose = Callable[[int], int]

_PRELUDE = """\
from __future__ import annotations
import contextlib, functools, itertools, sys
from frame_programs import (
    Awaited, Derived, Enough, Managed, async_manager, loop_note, number_generator as numbers, old_tick, plain_manager, shown, tick
)

"""
_ERRORS = (
    "ValueError",
    "KeyError",
    "LookupError",
    "Exception",
    "ZeroDivisionError",
    "(TypeError, ValueError)",
)


class Writer:
    """Writes one module. `kind` of the function under way: async, generator, or async generator."""

    def __init__(self, choose: Choose, size: int = 14) -> None:
        self.choose = choose
        self.size = size
        self.lines: list[str] = []
        self.count = 0
        self.helpers: list[tuple[str, str]] = []

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def pick(self, *options: str) -> str:
        return options[self.choose(len(options))]

    def batch(self, programs: int) -> Batch:
        for kind in (
            "async",
            "generator",
            "async generator",
            self.pick("async", "generator", "async generator"),
        ):
            name = self.fresh("helper")
            self.function(name, kind, 0, self.size // 3)
            self.helpers.append((name, kind))
        helpers = self._written()
        written = []
        for number in range(programs):
            self.function(f"main{number}", "async", 0, self.size)
            written.append(self._written())
        return Batch(helpers, tuple(written))

    def _written(self) -> str:
        text = "\n".join(self.lines) + "\n"
        self.lines.clear()
        return text

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def function(self, name: str, kind: str, depth: int, budget: int) -> None:
        head = "def" if kind == "generator" else "async def"
        self.line(depth, f"{head} {name}(log, a=1, *rest, b=2):")
        self.line(depth + 1, "v0, v1, v2, v3 = a, b, [a], 0")
        body = _Body(self, kind, depth + 1, budget)
        if kind == "generator" and self.choose(2):
            self.line(depth + 1, "try:")
            body.block(depth + 2, top=True)
            self.line(depth + 2, f"yield {body.value()}")
            self.line(depth + 1, "finally:")
            self.line(depth + 2, f"log.append(('closed', {body.value()}))")
            return
        body.block(depth + 1, top=True)
        if kind == "generator":
            self.line(depth + 1, f"yield {body.value()}")
        elif kind == "async generator":
            self.line(depth + 1, f"yield {body.expression()}")
        else:
            self.line(depth + 1, f"return [v0, v1, v3, {body.expression()}]")


def _filled(template: str, part: Callable[[], str]) -> str:
    """The template with a new part for each `@`."""
    pieces = template.split("@")
    return pieces[0] + "".join(part() + piece for piece in pieces[1:])


class _Body:
    def __init__(self, writer: Writer, kind: str, depth: int, budget: int) -> None:
        self.writer, self.kind, self.budget = writer, kind, budget
        self.base = depth
        self.in_loop = 0
        self.in_handler = 0
        self.in_try = 0
        self.quiet = 0  # inside a finally or handler of a generator: it must not suspend while it is closed
        self.nested = 0
        self.in_text = 0
        self.fuel = 0  # what is left of the expression under way

    # -- expressions

    def value(self, deep: int = 0) -> str:
        """An expression that does not suspend."""
        choose, pick = self.writer.choose, self.writer.pick
        if deep > 2 or choose(3):
            return pick("v0", "v1", "v3", str(choose(7)), "len(v2)", "v2[-1]", "a", "b", "len(log)")
        template = pick(
            "(@ + @)", "max(@, @)", "(@ if @ else @)", f"[@, @][{choose(2)}]", "(lambda x: x + @)(@)", f"@ // {choose(9)}"
        )  # fmt: skip
        return _filled(template, lambda: self.value(deep + 1))

    def suspending(self, deep: int) -> str:
        writer = self.writer
        asyncs = [name for name, kind in writer.helpers if kind == "async"]
        if asyncs and deep < 2 and writer.choose(4) == 0:
            helper = asyncs[writer.choose(len(asyncs))]
            call = writer.pick(
                f"{helper}(log, @)", f"functools.partial({helper}, log)(@)", f"{helper}(log, b=@)"
            )
            return _filled(f"len(await {call})", lambda: self.expression(deep + 1))
        rare = (
            "await old_tick(@)",
            "await Awaited(@)",
            "await anext(numbers(@ % 3), 5)",
            "(await Derived(log).method(@))[1] == 'base'",
        )
        if writer.choose(6) == 0:
            return _filled(writer.pick(*rare), lambda: self.value(2))
        return f"await tick({self.value(2)})"

    def expression(self, deep: int = 0) -> str:
        """An expression that may suspend, where the function may."""
        choose, pick = self.writer.choose, self.writer.pick
        if deep == 0:
            self.fuel = 2 + choose(5)
        self.fuel -= 1
        if self.kind == "generator" or self.quiet:
            if self.kind == "generator" and not self.quiet and not self.nested and choose(2):
                return f"((yield {self.value()}) or {choose(5)})"
            return self.value(deep)
        if deep > 2 or self.fuel <= 0:
            return f"({self.suspending(deep)})" if choose(3) == 0 else self.value(deep)
        if choose(16) < 5:
            return f"({self.suspending(deep)})"
        if self.kind == "async generator" and not self.nested and choose(8) == 0:
            return f"((yield {self.value()}) or {choose(5)})"
        if choose(12) == 0:
            return f"sum([x async for x in {self.async_source()}])"
        template = pick(
            "(@ + @)", "max(@, @, *[@])", f"[@, @][{choose(2)}]", "(@ if @ else @)", "(@ < @ <= @)", "(@ and @ or @)",
            f"sum([x + @ for x in range({choose(3)}) if @ or True])", "len('%s:%r' % (@, @))", "dict(k=@, **dict(z=@))['k']",
            "len({@: @, 9: @})", "(lambda d=@: d + a)()", "sorted({@, @})[0]", "functools.partial(max, @)(@)",
            "sum(x for x in [@, @])", "(v0 := @)" if not self.nested else "@", "len([1, 2, 3][@ % 3 : @])",
            "len({x: @ for x in 'ab'})", "len({x + @ for x in (1, 2)})", "(not @) + -@",
            'len(f"""{(@)}:{(@)!r:>{3}}""")' if not self.in_text else "len([@, *(1, @)])",
        )  # fmt: skip
        self.nested += " for " in template
        self.in_text += template.startswith("len(f")
        made = _filled(template, lambda: self.expression(deep + 1))
        self.in_text -= template.startswith("len(f")
        self.nested -= " for " in template
        return made

    def async_source(self) -> str:
        sources = [name for name, kind in self.writer.helpers if kind == "async generator"]
        if not sources or self.writer.choose(3) == 0:
            return self.writer.pick(
                "numbers(@)", "(y async for y in numbers(@))", "(y + await tick(y) for y in range(@))"
            ).replace("@", str(self.writer.choose(3)))
        return f"{sources[self.writer.choose(len(sources))]}(log, {self.value()})"

    def source(self) -> str:
        choose, pick = self.writer.choose, self.writer.pick
        generators = [name for name, kind in self.writer.helpers if kind == "generator"]
        options = [
            f"range({choose(3)})", f"[{choose(5)}, v0]", "v2[:2]", "enumerate('ab')", "'xy'", "{1: 2, 3: 4}.items()",
            "zip('ab', [1, 2])", "reversed([1, 2])", "map(len, ['a', 'bc'])", "itertools.islice(itertools.count(1), 2)",
            "(x * 2 for x in range(2))", "itertools.chain([1], [2, 3])", "dict(a=1, b=2)",
        ]  # fmt: skip
        if generators:
            options += [f"{generators[choose(len(generators))]}(log, {self.value()})"] * 4
        return pick(*options)

    # -- statements

    def block(self, depth: int, top: bool = False) -> None:
        count = 2 + self.writer.choose(4) if top else 1 + self.writer.choose(3)
        for _ in range(count):
            self.statement(depth)

    def statement(self, depth: int) -> None:
        self.budget -= 1
        writer = self.writer
        simple = (self.assign, self.assign, self.log, self.log, self.append, self.jump)
        compound = (
            self.condition, self.loop, self.loop, self.attempt, self.attempt, self.attempt, self.manager,
            self.closure, self.match, self.hold, self.attempt_groups, self.delete,
        )  # fmt: skip
        if self.budget > 0 and depth - self.base < 5 and writer.choose(2):
            compound[writer.choose(len(compound))](depth)
        else:
            simple[writer.choose(len(simple))](depth)

    def assign(self, depth: int) -> None:
        name = self.writer.pick("v0", "v1", "v3")
        sign = self.writer.pick("=", "=", "+=")
        self.writer.line(depth, f"{name} {sign} {self.expression()}")

    def log(self, depth: int) -> None:
        self.writer.line(depth, f"log.append(({self.writer.choose(100)}, {self.expression()}))")

    def append(self, depth: int) -> None:
        self.writer.line(depth, f"v2.append({self.expression()})")

    def delete(self, depth: int) -> None:
        name = self.writer.pick("v0", "v1", "v3")
        if self.writer.choose(3) == 0:
            self.writer.line(depth, f"del {name}")
        self.assign(depth)

    def jump(self, depth: int) -> None:
        error = self.writer.pick("ValueError", "KeyError", "ZeroDivisionError")
        choices = ["sys.exc_info()[1] and log.append(shown(sys.exc_info()[1]))"]
        if self.in_try or self.writer.choose(3) == 0:
            choices.append(f"raise {error}({self.expression()})")
        if self.in_loop:
            choices += ["break", "continue"]
        if self.in_handler:
            choices += ["raise", "raise TypeError(1) from None"]
            choices.append("raise RuntimeError('from') from sys.exc_info()[1]")
        if self.kind == "async":
            choices.append(f"return {self.expression()}")
        self.writer.line(depth, f"if {self.value()} % {2 + self.writer.choose(7)} == 1:")
        self.writer.line(depth + 1, choices[self.writer.choose(len(choices))])

    def condition(self, depth: int) -> None:
        self.writer.line(depth, f"if {self.expression()} > {self.writer.choose(4)}:")
        self.block(depth + 1)
        if self.writer.choose(2):
            self.writer.line(depth, "else:")
            self.block(depth + 1)

    def loop(self, depth: int) -> None:
        writer = self.writer
        if self.in_loop and writer.choose(3):
            self.condition(depth)  # loops in loops suspend many times at few places
            return
        name = writer.fresh("i")
        which = writer.choose(4)
        if which == 0 and self.kind != "generator" and not self.quiet:
            writer.line(depth, f"async for {name} in {self.async_source()}:")
        elif which == 1:
            writer.line(depth, f"{name} = {writer.choose(3)}")
            writer.line(depth, f"while {name} > 0:")
            writer.line(depth + 1, f"{name} -= 1")
        else:
            writer.line(depth, f"for {name} in {self.source()}:")
        self.in_loop += 1
        writer.line(depth + 1, f"loop_note(log, {name})")
        self.block(depth + 1)
        self.in_loop -= 1
        if writer.choose(3) == 0:
            writer.line(depth, "else:")
            self.block(depth + 1)

    def attempt(self, depth: int) -> None:
        writer = self.writer
        writer.line(depth, "try:")
        shape = writer.choose(4)
        self.in_try += shape != 3
        self.block(depth + 1)
        self.in_try -= shape != 3
        guarded = self.kind != "async"
        if shape != 3:
            for _ in range(1 + writer.choose(2)):
                error = writer.fresh("e")
                writer.line(depth, f"except {writer.pick(*_ERRORS)} as {error}:")
                self.in_handler += 1
                self.quiet += guarded
                writer.line(depth + 1, f"log.append((shown({error}), sys.exc_info()[1] is {error}))")
                self.block(depth + 1)
                self.quiet -= guarded
                self.in_handler -= 1
            if writer.choose(3) == 0:
                writer.line(depth, "else:")
                self.block(depth + 1)
        if shape >= 2:
            writer.line(depth, "finally:")
            loops, self.in_loop = self.in_loop, 0
            handlers, self.in_handler = self.in_handler, 0
            kind, self.kind = self.kind, self.kind if self.kind != "async" else "async in finally"
            self.quiet += guarded
            self.block(depth + 1)
            self.quiet -= guarded
            self.in_loop, self.kind, self.in_handler = loops, kind, handlers

    def attempt_groups(self, depth: int) -> None:
        writer = self.writer
        if self.kind != "async":
            return self.attempt(depth)
        loops, self.in_loop = self.in_loop, 0
        kind, self.kind = self.kind, "async in group"
        handlers, self.in_handler = self.in_handler, 0
        writer.line(depth, "try:")
        errors = [writer.pick("ValueError", "KeyError", "TypeError") for _ in range(3)]
        inner = ", ".join(f"{each}({self.value()})" for each in errors)
        writer.line(depth + 1, f"raise ExceptionGroup('g', [{inner}])")
        for each in ("ValueError", "LookupError")[: 1 + writer.choose(2)]:
            error = writer.fresh("e")
            writer.line(depth, f"except* {each} as {error}:")
            writer.line(depth + 1, f"log.append(shown({error}))")
            self.block(depth + 1)
        self.in_loop, self.kind, self.in_handler = loops, kind, handlers
        return None

    def manager(self, depth: int) -> None:
        writer = self.writer
        swallow = writer.pick("True", "False")
        name = writer.fresh("m")
        if self.kind == "generator" or self.quiet or self.kind == "async generator" or writer.choose(3) == 0:
            managed = f"Managed(log, '{name}', {swallow})"
            made = writer.pick(managed, "plain_manager(log)", f"contextlib.suppress({_ERRORS[0]})")
            writer.line(depth, f"with {made} as {name}:")
        else:
            made = writer.pick(f"Managed(log, '{name}', {swallow})", f"async_manager(log, '{name}')")
            second = ", Managed(log, 'second')" if writer.choose(3) == 0 else ""
            writer.line(depth, f"async with {made} as {name}{second}:")
        self.block(depth + 1)

    def closure(self, depth: int) -> None:
        writer = self.writer
        name = writer.fresh("inner")
        target = writer.pick("v0", "v1")
        is_async = self.kind not in ("generator",) and not self.quiet and writer.choose(2)
        writer.line(depth, f"{'async ' if is_async else ''}def {name}(x={self.value()}):")
        writer.line(depth + 1, f"nonlocal {target}")
        kind, self.kind = self.kind, "async in closure" if is_async else "plain"
        quiet, self.quiet = self.quiet, 0 if is_async else 1
        writer.line(depth + 1, f"{target} = x + {self.expression()}")
        writer.line(depth + 1, f"return {target} + {self.expression()}")
        self.kind, self.quiet = kind, quiet
        writer.line(depth, f"log.append({'await ' if is_async else ''}{name}())")
        if writer.choose(2):
            writer.line(depth, f"v1 = {self.expression()}")
            writer.line(depth, f"log.append({'await ' if is_async else ''}{name}({self.value()}))")

    def match(self, depth: int) -> None:
        writer = self.writer
        name = writer.fresh("s")
        writer.line(depth, f"match [{self.expression()}, {self.value()}]:")
        writer.line(depth + 1, f"case [{writer.choose(5)}, {name}]:")
        self.block(depth + 2)
        writer.line(depth + 1, f"case [{name}, *_] if {self.expression()}:")
        self.block(depth + 2)
        writer.line(depth + 1, "case _:")
        self.block(depth + 2)

    def hold(self, depth: int) -> None:
        """A half-consumed iterator, alive across what follows; or a generator that is not read again: its `finally` runs when
        the function ends.
        """
        writer = self.writer
        name = writer.fresh("h")
        generators = [each for each, kind in writer.helpers if kind == "generator"]
        if generators and writer.choose(3) == 0:
            generator = generators[writer.choose(len(generators))]
            writer.line(depth, f"{name} = {generator}(log, {self.value()})")
            writer.line(depth, f"log.append(str(next({name}, None)))")
            self.block(depth)
            return
        writer.line(depth, f"{name} = iter({self.source()})")
        writer.line(depth, f"log.append(str(next({name}, None)))")
        self.block(depth)
        writer.line(depth, f"log.append([str(x) for x in itertools.islice({name}, 5)])")


@dataclass(frozen=True)
class Batch:
    """The helpers of one module, and its programs: async functions `main0`, `main1` and so on, which take a log."""

    helpers: str
    programs: tuple[str, ...]

    @property
    def source(self) -> str:
        """The module."""
        return _PRELUDE + self.helpers + "".join(self.programs)

    def alone(self, number: int) -> str:
        """The module with one of its programs only."""
        return _PRELUDE + self.helpers + self.programs[number]


PROGRAMS = 6
"""In a batch."""
_CHOICES = 5600


def written(choices: bytes) -> Batch:
    """The batch that these choices make."""
    given = iter(choices)

    def choose(options: int) -> int:
        return next(given, 0) % options

    return Writer(choose).batch(PROGRAMS)


batches: st.SearchStrategy[Batch] = st.binary(min_size=_CHOICES, max_size=_CHOICES).map(written)


def module_of(source: str, name: str = "random_program") -> types.ModuleType:
    """The module, importable by its name as frames need it."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    return module

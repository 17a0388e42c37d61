"""Strange programs with the syntax of CPython 3.14: template strings, `except` without parentheses, annotations computed late."""

import annotationlib
from typing import Any

from frame_programs import numbers, tick
from strange_programs import PROGRAMS, Log


async def template_strings(log: Log) -> Any:
    name = "world"
    held = t"hello {name!r:>{await tick(3)}} {await tick(1)} {[x async for x in numbers(2)]}"
    await tick("held")
    parts = [each if isinstance(each, str) else (each.value, each.expression, each.conversion, each.format_spec) for each in held]
    return parts, held.strings, t"{held.values[0]}{await tick(2)}".values


async def except_without_parentheses(log: Log) -> Any:
    for kind in (KeyError, ValueError, OSError):
        try:
            raise kind(await tick(kind.__name__))
        except KeyError, ValueError:
            log.append(("first", await tick("first")))
        except OSError:
            log.append(("second", await tick("second")))
    return log


async def annotations_computed_late(log: Log) -> Any:
    class Local:
        field: NoSuchName  # noqa: F821
        other: list[Local]

        async def method(self, value: NoSuchName = None) -> NoSuchName:  # noqa: F821
            local: NoSuchName = await tick("annotated")  # noqa: F821
            return local, sorted(type(self).__annotate__(2) if False else ["field", "other"])

    async def function(a: NotThere, *rest: NotThere) -> NotThere:  # noqa: F821
        return a, rest, await tick("function")

    local = Local()
    await tick("held")
    told = [annotationlib.get_annotations(each, format=annotationlib.Format.STRING) for each in (Local, function, Local.method)]
    return await local.method(), await function(1, await tick("argument")), told


PROGRAMS.update({each.__name__: each for each in (template_strings, except_without_parentheses, annotations_computed_late)})

"""Ways out of a `finally` that override the way in. Apart, since CPython 3.14 warns of them when it compiles."""

from __future__ import annotations

import sys
from typing import Any

from frame_programs import tick
from strange_programs import program

Log = list[Any]


@program
async def finally_overrides(log: Log) -> Any:
    async def returning() -> Any:
        try:
            return "first", await tick("return")
        finally:
            log.append(await tick("on the way"))
            if True:
                return "second", await tick("overrides")  # noqa: B012  # that is the point

    async def swallowing() -> Any:
        for number in range(3):
            try:
                raise KeyError(number)
            finally:
                log.append((number, type(sys.exc_info()[1]).__name__, await tick(number)))
                if number < 2:
                    continue  # noqa: B012
                break  # noqa: B012
        return "swallowed"

    async def nested() -> Any:
        while True:
            try:
                try:
                    await tick("inner")
                    break
                finally:
                    await tick("finally inner")
            finally:
                log.append(await tick("finally outer"))
        else:
            return "never"
        return "broke"

    return await returning(), await swallowing(), await nested()

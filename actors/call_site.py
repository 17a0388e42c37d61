"""Calls that have not run: whether their arguments fit, where they were made, and the warning that nothing
came of them.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Any

from .errors import NeverAwaited

Site = tuple[CodeType, int]


def caller(depth: int = 2) -> Site:
    """The code and instruction of the caller's caller. Not the line: working it out costs more than keeping
    these two.
    """
    frame = sys._getframe(depth)
    return frame.f_code, frame.f_lasti


def warn_never_awaited(
    what: str, site: Site, remedy: str = "await it, or pass it to spawn, gather or client.start"
) -> None:
    """Warn at the line of the call. Called from `__del__`, so it must not raise whatever the warning filters
    say there.
    """
    code, instruction = site
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
            break
    warnings.warn_explicit(
        f"{what} in {code.co_qualname} was never awaited: nothing ran; {remedy}",
        NeverAwaited,
        code.co_filename,
        line,
    )


def binder(fn: Callable[..., Any]) -> Callable[..., None]:
    """A function that raises `TypeError`, as the call of `fn` would, if its arguments do not fit."""
    bind = inspect.signature(fn).bind

    def check(*args: Any, **kwargs: Any) -> None:
        try:
            bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{fn.__qualname__}() {error}") from None

    return check

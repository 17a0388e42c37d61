"""Where a call was made, for the warning that it was never awaited."""

from __future__ import annotations

import sys
import warnings
from types import CodeType

from .errors import NeverAwaited

Site = tuple[CodeType, int]


def caller(depth: int = 2) -> Site:
    """The code and instruction of the caller's caller. Not the line: working it out costs more than keeping
    these two.
    """
    frame = sys._getframe(depth)
    return frame.f_code, frame.f_lasti


def warn_never_awaited(what: str, site: Site) -> None:
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
        f"{what} in {code.co_qualname} was never awaited: nothing ran; await it, or pass it to spawn, "
        "gather or client.start",
        NeverAwaited,
        code.co_filename,
        line,
    )

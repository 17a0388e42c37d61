"""The text of a traceback as a user wants to read it: their frames, bounded in size.

The engine's own frames and the event loop's are the same in every traceback and are left out. Values of
locals are never included.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Final

MAX_TRACEBACK: Final = 16 * 1024
"""Characters; the middle of a longer text is cut, since its ends say where it began and what went wrong."""
_MAX_FRAMES: Final = 64
_MAX_CHAIN: Final = 8
"""Exceptions followed through causes, contexts and groups."""
_MACHINERY: Final = ("sojourn", "asyncio", "concurrent.futures", "importlib", "runpy", "threading", "uvloop")
"""Modules whose frames are left out."""


def traceback_text(error: BaseException, *, whole: bool = False) -> str:
    """Return the traceback of `error` and its causes, as Python prints it, without frames of machinery; `whole`: with
    them, where the mistake may be ours.
    """
    try:
        described = traceback.TracebackException.from_exception(
            error, limit=-_MAX_FRAMES, max_group_width=8, max_group_depth=4
        )
        if not whole:
            files = {frame for linked in _chain(error) for frame in _machinery_files(linked)}
            _leave_out(described, files, _MAX_CHAIN)
        text = "".join(described.format())
    except BaseException as broken:  # str() of a user's exception may raise anything
        return f"<the traceback of {type(error).__qualname__} cannot be shown: {type(broken).__name__}>\n"
    return cut_middle(text.encode("utf-8", "backslashreplace").decode())


def raised_at(error: BaseException) -> str:
    """The line of the user's code at which an exception was raised: "function line n", "?" when there is none."""
    places = [
        f"{frame.f_code.co_qualname} line {line}"
        if hasattr(frame.f_code, "co_qualname")
        else f"{frame.f_code.co_name} line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not is_machinery(frame.f_globals.get("__name__", ""))
    ]
    return places[-1] if places else "?"


def cut_middle(text: str, limit: int = MAX_TRACEBACK) -> str:
    """Return at most `limit` characters of `text`: its beginning and its end."""
    if len(text) <= limit:
        return text
    mark = "\n  [... cut ...]\n"
    half = (limit - len(mark)) // 2
    return text[:half] + mark + text[-half:]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exceptions that a traceback of `error` may show, each once, at most `_MAX_CHAIN` and their group
    members.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_CHAIN * 8:
        current = waiting.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += (current.__cause__, current.__context__)
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions[:8]


def _machinery_files(error: BaseException) -> Iterator[str]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if is_machinery(frame.f_globals.get("__name__", "")):
            yield frame.f_code.co_filename


def is_machinery(module: str) -> bool:
    """Whether a module is the engine's, the event loop's or the importer's: its frames are left out."""
    return any(module == name or module.startswith(f"{name}.") for name in _MACHINERY)


def _leave_out(described: traceback.TracebackException, files: set[str], depth: int) -> None:
    described.stack[:] = [entry for entry in described.stack if entry.filename not in files]
    linked = [described.__cause__, described.__context__, *(described.exceptions or ())]
    for one in linked:
        if one is not None and depth:
            _leave_out(one, files, depth - 1)

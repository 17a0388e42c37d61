"""Runs a program straight, or with its frame captured, discarded and restored at every suspension."""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable
from typing import Any

from sojourn.codecs import frames

Outcome = tuple[Any, ...]


def straight(target: Any, log: list[Any]) -> Any:
    """Leave a suspended coroutine as it is."""
    return target, log


def moved(target: Any, log: list[Any]) -> Any:
    """Capture, discard, restore."""
    frame = frames.dump((target, log))
    frames.discard(target)
    return frames.load(frame.data, frame.pin)


def drive(
    start: Callable[[list[Any]], Any],
    between: Callable[[Any, list[Any]], Any],
    throw_at: int = -1,
    limit: int = 2000,
) -> Outcome:
    """Everything that can be seen of one run: what was awaited, the log, and the result or the exception."""
    log: list[Any] = []
    target = start(log)
    labels: list[Any] = []
    value: Any = None
    try:
        while len(labels) < limit:
            if len(labels) == throw_at:
                labels.append(target.throw(Interruption("thrown", throw_at)))
            else:
                labels.append(target.send(value))
            value = len(labels)
            target, log = between(target, log)
    except StopIteration as stop:
        return labels, log, "returned", stop.value
    except (Exception, GeneratorExit) as error:
        seen = described(error)
        error.__traceback__ = None  # else its frames would keep alive what a moved one has released
        return labels, log, "raised", seen
    except BaseException as error:
        if type(error).__name__ != "Enough" and not isinstance(error, BaseExceptionGroup):
            raise
        return labels, log, "enough", None
    finally:
        frames.discard(target)
    return labels, log, "went on", None


class Interruption(Exception):
    """Thrown into a program from outside."""


def described(error: BaseException | None, depth: int = 8) -> Any:
    """An exception with all that a handler can see of it; lines by function."""
    if error is None or depth == 0:
        return None
    entries = [(each.name, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    return (
        type(error).__name__, repr(error.args), getattr(error, "__notes__", None), error.__suppress_context__,
        described(error.__context__, depth - 1), described(error.__cause__, depth - 1),
        [entry for entry in entries if entry[0] not in ("drive", "throw", "send", "__next__")],
        [described(each, depth - 1) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else [],
    )  # fmt: skip


def normal(value: Any) -> Any:
    """A value that can be compared between two runs."""
    if isinstance(value, (list, tuple)):
        return [normal(each) for each in value]
    if isinstance(value, dict):
        return {repr(key): normal(each) for key, each in value.items()}
    if isinstance(value, (types.FunctionType, types.GeneratorType)):
        return type(value).__name__
    return value if isinstance(value, (int, str, float, bool, type(None))) else repr(value)

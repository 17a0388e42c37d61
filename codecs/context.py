"""Context variables of an actor: which of them move with its frame, and how.

Each actor runs in a `contextvars.Context` of its own. A variable that its code has set is part of its state,
so it must move or be refused by name; silently losing one would change what the workflow does after an await.
Known are the decimal context (precision, rounding, traps), the current OpenTelemetry span (by its propagated
identity) and what structlog has bound. Others move when they are declared: `declare_variable(VAR)`, a
module-level `ContextVar` whose values can be stored like any local.

What is captured is a plain dictionary. It belongs into the graph that is dumped, so a value that a variable
and a local share stays shared.
"""

from __future__ import annotations

import decimal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context, ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

from .errors import ContextNotDeclared
from .globals import global_value, place_of

Variables = dict[ContextVar[Any], Any]


class _Carrier(NamedTuple):
    """One way for variables to move: which it takes, what it stores of them, and how it sets them again."""

    name: str  # part of the stored format
    takes: Callable[[ContextVar[Any]], bool]
    capture: Callable[[Variables], Any]
    restore: Callable[[Any], object]  # runs inside the new context


_declared: set[ContextVar[Any]] = set()


def declare_variable(*variables: ContextVar[Any]) -> None:
    """Let module-level context variables move with the frames of actors that set them.

    Raises ValueError when no module holds the variable: it could not be found again.
    """
    for variable in variables:
        if place_of(variable) is None:
            raise ValueError(
                f"context variable {variable.name!r} must be at module level, under a name, to move"
            )
        _declared.add(variable)


def capture_context(
    context: Context,
    base: Mapping[ContextVar[Any], Any] | None = None,
    ignored: Iterable[ContextVar[Any]] = (),
) -> dict[str, Any]:
    """What an actor's code has set in its context, ready to be dumped with its frame.

    `base` is what the context began with (a variable whose value is the same object has not changed);
    `ignored` are variables of the host itself. Raises ContextNotDeclared, which names a changed variable that
    may not move.
    """
    unset = object()
    begun = {} if base is None else base
    skipped = set(ignored)
    changed = {
        variable: value
        for variable, value in context.items()
        if variable not in skipped and begun.get(variable, unset) is not value
    }
    captured: dict[str, Any] = {}
    for carrier in _CARRIERS:
        taken = {variable: value for variable, value in changed.items() if carrier.takes(variable)}
        stored = carrier.capture(taken) if taken else None
        if stored is not None:
            captured[carrier.name] = stored
        for variable in taken:
            del changed[variable]
    for variable, value in changed.items():
        place = place_of(variable)
        raise ContextNotDeclared(variable.name, ":".join(place) if place else "", type(value).__qualname__)
    return captured


def restore_context(captured: Mapping[str, Any], base: Context | None = None) -> Context:
    """A context in which everything captured is set; a copy of `base`, or an empty one.

    Raises LookupError for a part that this version does not know: written by a newer one.
    """
    context = Context() if base is None else base.copy()
    known = {carrier.name: carrier for carrier in _CARRIERS}
    for name, stored in captured.items():
        if name not in known:
            raise LookupError(f"context variables of kind {name!r} are not known to this version of Sojourn")
        context.run(known[name].restore, stored)
    return context


# -- the known ones ----------------------------------------------------------------------------------------


def _is_decimal(variable: ContextVar[Any]) -> bool:
    return variable is _decimal_variable()


@lru_cache(maxsize=1)
def _decimal_variable() -> ContextVar[Any]:
    """The variable of `decimal`, which has no other name than what it is called: anybody may call theirs so."""
    context = Context()
    context.run(decimal.getcontext)
    return next(iter(context))


def _capture_decimal(taken: Variables) -> Any:
    """None when the context was only looked at: then it is the default one still."""
    (context,) = taken.values()
    return None if repr(context) == repr(decimal.Context()) else context.copy()


def _is_opentelemetry(variable: ContextVar[Any]) -> bool:
    if variable.name != "current_context" or "opentelemetry.context.contextvars_context" not in sys.modules:
        return False
    runtime = getattr(sys.modules.get("opentelemetry.context"), "_RUNTIME_CONTEXT", None)
    return getattr(runtime, "_current_context", variable) is variable  # others may call theirs so


def _capture_opentelemetry(taken: Variables) -> Any:
    from opentelemetry import propagate  # type: ignore[import-not-found, unused-ignore]  # an extra

    carrier: dict[str, str] = {}
    for context in taken.values():
        propagate.inject(carrier, context=context)
    return carrier


def _restore_opentelemetry(stored: Any) -> None:
    from opentelemetry import context, propagate  # type: ignore[import-not-found, unused-ignore]  # an extra

    context.attach(propagate.extract(stored))


_STRUCTLOG = "structlog_"


def _is_structlog(variable: ContextVar[Any]) -> bool:
    return "structlog" in sys.modules and variable.name.startswith(_STRUCTLOG)


def _capture_structlog(taken: Variables) -> Any:
    return {
        variable.name.removeprefix(_STRUCTLOG): value for variable, value in taken.items() if value is not ...
    }


def _restore_structlog(stored: Any) -> None:
    from structlog.contextvars import (  # type: ignore[import-not-found, unused-ignore]  # the user's
        bind_contextvars,
    )

    bind_contextvars(**stored)


def _capture_declared(taken: Variables) -> Any:
    return {place: value for variable, value in taken.items() if (place := place_of(variable)) is not None}


def _restore_declared(stored: Any) -> None:
    for place, value in stored.items():
        global_value(*place).set(value)


_CARRIERS = (
    _Carrier("decimal", _is_decimal, _capture_decimal, decimal.setcontext),
    _Carrier("opentelemetry", _is_opentelemetry, _capture_opentelemetry, _restore_opentelemetry),
    _Carrier("structlog", _is_structlog, _capture_structlog, _restore_structlog),
    _Carrier("declared", _declared.__contains__, _capture_declared, _restore_declared),
)

from __future__ import annotations

import contextvars
import decimal
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from sojourn.codecs import context as context_module
from sojourn.codecs import frames
from sojourn.codecs.context import capture_context, declare_variable, restore_context
from sojourn.codecs.errors import ContextNotDeclared

TENANT: contextvars.ContextVar[Any] = contextvars.ContextVar("TENANT")
OTHER: contextvars.ContextVar[Any] = contextvars.ContextVar("OTHER")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    context_module._declared.clear()


def moved(context: contextvars.Context, **options: Any) -> contextvars.Context:
    captured: Any = frames.load(frames.dump(capture_context(context, **options)).data)
    return restore_context(captured)


def test_decimal_precision_survives() -> None:
    context = contextvars.Context()

    def work() -> None:
        decimal.getcontext().prec = 7
        decimal.getcontext().rounding = decimal.ROUND_UP

    context.run(work)
    again = moved(context)
    assert again.run(lambda: decimal.Decimal(1) / 3) == decimal.Decimal("0.3333334")
    assert decimal.getcontext().prec == 28


def test_a_decimal_context_that_was_only_used_is_not_stored() -> None:
    context = contextvars.Context()
    context.run(lambda: decimal.Decimal(1) + 1)
    context.run(decimal.getcontext)
    assert capture_context(context) == {}


def test_a_changed_variable_that_is_not_declared_is_an_error_that_names_it() -> None:
    context = contextvars.Context()
    context.run(TENANT.set, "a tenant")
    with pytest.raises(ContextNotDeclared) as caught:
        capture_context(context)
    error = caught.value
    assert error.variable == "TENANT"
    assert error.place.endswith(":TENANT")
    assert "a tenant" not in str(error)
    assert "declare_variable" in str(error)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_a_declared_variable_moves() -> None:
    declare_variable(TENANT)
    context = contextvars.Context()
    context.run(TENANT.set, ["a", "tenant"])
    again = moved(context)
    assert again[TENANT] == ["a", "tenant"]
    assert OTHER not in again


def test_a_variable_and_a_local_go_on_sharing_a_value() -> None:
    declare_variable(TENANT)
    context, shared = contextvars.Context(), ["shared"]
    context.run(TENANT.set, shared)
    local, captured = pickle.loads(pickle.dumps((shared, capture_context(context))))
    assert restore_context(captured)[TENANT] is local


def test_what_the_context_began_with_and_what_the_host_set_is_no_change() -> None:
    context = contextvars.Context()
    context.run(TENANT.set, "begun")
    context.run(OTHER.set, "host")
    base = dict(context.items())
    assert capture_context(context, base=base) == {}
    context.run(TENANT.set, "changed")
    with pytest.raises(ContextNotDeclared):
        capture_context(context, base=base)
    assert capture_context(context, ignored=[TENANT, OTHER]) == {}


decimal_context: contextvars.ContextVar[Any] = contextvars.ContextVar("decimal_context")


def test_a_variable_called_like_that_of_decimal_is_one_of_its_own() -> None:
    context = contextvars.Context()
    context.run(decimal.getcontext)
    context.run(decimal_context.set, {"mine": 1})
    with pytest.raises(ContextNotDeclared):
        capture_context(context)
    declare_variable(decimal_context)
    assert moved(context)[decimal_context] == {"mine": 1}


def test_a_variable_that_no_module_holds_cannot_be_declared() -> None:
    with pytest.raises(ValueError, match="module level"):
        declare_variable(contextvars.ContextVar("nowhere"))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(LookupError, match="later"):
        restore_context({"later": 1})


def test_what_structlog_has_bound_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in that keeps what structlog keeps: one variable for each key, named after it."""
    bound: dict[str, contextvars.ContextVar[Any]] = {}

    def bind_contextvars(**values: Any) -> None:
        for name, value in values.items():
            bound.setdefault(name, contextvars.ContextVar(f"structlog_{name}")).set(value)

    package, module = types.ModuleType("structlog"), types.ModuleType("structlog.contextvars")
    module.bind_contextvars = bind_contextvars  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "structlog", package)
    monkeypatch.setitem(sys.modules, "structlog.contextvars", module)
    context = contextvars.Context()
    context.run(bind_contextvars, user="u", trace=3)
    context.run(bound["trace"].set, ...)  # unbound again
    again = moved(context)
    assert {variable.name: value for variable, value in again.items()} == {"structlog_user": "u"}

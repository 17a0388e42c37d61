"""What the decorators take, what they refuse with which remedy, and what they make."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.errors import DefinitionError, DuplicateName, NoSuchStep, NoSuchWorkflow
from sojourn.actors.registry import Registry, default_registry
from sojourn.actors.retry import Retry
from sojourn.actors.step import Step, step
from sojourn.actors.workflow import Workflow, workflow
from sojourn.codecs.errors import DataTypeError, DurationError

R = Registry()


@step(registry=R, retry=Retry(5, "1s..1m"), timeout="30s", raises=[KeyError], no_retry=[LookupError])
async def look_up(name: str, *, deep: bool = False) -> int:
    """Find it."""
    return len(name) if deep else 0


@step(registry=R)
def plain(x: int) -> int:
    return x + 1


@workflow(
    registry=R,
    on_defect="fail",
    grace="2m",
    retention="1d",
    raises=ValueError,
    channels=["go", Channel("n", int)],
)
async def long(x: int) -> int:
    """Take long."""
    return x


@workflow(registry=R)
async def short(x: int) -> int:
    return x


def test_a_workflow_has_the_attributes_that_the_engine_reads() -> None:
    assert (long.name, long.on_defect, long.grace, long.raises, long.pin) == (
        "long",
        "fail",
        120.0,
        (ValueError,),
        "code",
    )
    assert long.retention == 86_400.0
    assert long.channels is not None
    assert {name: type and type.annotation for name, type in long.channels.items()} == {"go": None, "n": int}
    assert long.signature.decode_args(long.signature.encode_args((3,), {})) == ((3,), {})
    assert short.on_defect == "hold"
    assert (short.grace, short.retention, short.raises) == (60.0, None, ())


def test_a_step_has_the_attributes_that_the_engine_reads() -> None:
    assert (look_up.name, look_up.is_async, look_up.timeout, look_up.record, look_up.values) == (
        "look_up",
        True,
        30.0,
        "with_next",
        "json",
    )
    assert (look_up.raises, look_up.no_retry) == ((KeyError,), (LookupError,))
    assert [look_up.retry.delay(n) for n in (1, 2, 9)] == [1.0, 2.0, 60.0]
    assert plain.is_async is False
    assert (plain.retry.attempts, plain.timeout) == (3, 600.0)


def test_definitions_keep_the_face_of_their_function() -> None:
    assert long.__doc__ == "Take long."
    assert look_up.__wrapped__ is look_up.fn
    assert look_up.__name__ == "look_up"
    assert repr(look_up) == f"<Step look_up ({__name__}:look_up)>"


def test_a_definition_pickles_by_reference() -> None:
    assert pickle.loads(pickle.dumps((long, look_up))) == (long, look_up)
    assert b"long" in pickle.dumps(long)
    assert len(pickle.dumps(long)) < 120


def test_a_fingerprint_names_the_functions_code() -> None:
    assert any("long" in identity for identity in long.fingerprint())


# refusals


def refused(function: Callable[[], object]) -> str:
    with pytest.raises(DefinitionError) as caught:
        function()
    return str(caught.value)


def sync_function(x: int) -> int:
    return x


async def async_generator(x: int) -> AsyncIterator[int]:
    yield x


def generator(x: int) -> Any:
    yield x


class Methods:
    async def method(self, x: int) -> int:
        return x


w: Any = workflow(registry=R)  # untyped, to be given what the type checker refuses
s: Any = step(registry=R)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: w(sync_function), "sync_function: is a plain `def`; write `async def`; if it has effects"),
        (lambda: w(async_generator), "async_generator: is an async generator; a workflow returns its result"),
        (lambda: s(async_generator), "async_generator: is a generator; a step returns its result"),
        (lambda: s(generator), "generator: is a generator; a step returns its result"),
        (lambda: w(Methods.method), "Methods.method: @workflow is on a method; a workflow is found again by module and name"),
        (lambda: s(Methods.method), "Methods.method: @step is on a method"),
        (lambda: s(staticmethod(sync_function)), "@step is above @staticmethod; put @step on a plain function"),
        (lambda: s(Methods), "@step serves plain functions, received type"),
        (lambda: s(len), "@step serves plain functions"),
        (lambda: w(short), "@workflow is there twice"),
        (lambda: s(plain), "@step is there twice"),
        (lambda: w(look_up), "@workflow is above @step; a function is one or the other"),
        (lambda: s(short), "@step is above @workflow; a function is one or the other"),
        (lambda: workflow(registry=R, on_defect="ignore")(lambda: None), 'on_defect=\'ignore\'; expected "hold" or "fail"'),  # type: ignore[call-overload]  # the mistake under test
        (lambda: workflow(registry=R, name="")(short.fn), "name='' is not a name"),
        (lambda: workflow(registry=R, raises=[3])(short.fn), "raises holds 3; raises=[...] lists exception classes"),  # type: ignore[list-item]  # the mistake under test
        (lambda: step(registry=R, queue="a.b")(plain.fn), "queue='a.b' is no name of a queue; use 1 to 128"),
        (lambda: step(registry=R, queue="gpu", values="pickle")(plain.fn), "workers unpickle nothing"),
        (lambda: step(registry=R, retries=3)(plain.fn), "plain: @step has no option `retries`; did you mean `retry`?"),  # type: ignore[call-overload]  # the mistake under test
        (lambda: workflow(registry=R, timeout="1h")(short.fn), "short: @workflow has no option `timeout`; it has name, "),  # type: ignore[call-overload]  # the mistake under test
    ],
)  # fmt: skip
def test_a_wrong_definition_is_refused_with_the_remedy(make: Callable[[], object], says: str) -> None:
    if "on_defect" in says:

        async def fine() -> None: ...

        make = lambda: workflow(registry=R, on_defect="ignore")(fine)  # type: ignore[call-overload]  # noqa: E731  # the mistake under test
    assert says in refused(make)


def test_a_decorator_inside_a_class_is_refused_when_the_class_is_made() -> None:
    with pytest.raises((DefinitionError, RuntimeError)) as caught:

        class Holder:
            @step(registry=Registry())
            def no_self(x: int) -> int:  # noqa: N805  # the mistake under test
                return x

    error = caught.value if isinstance(caught.value, DefinitionError) else caught.value.__cause__
    assert "Holder.no_self: @step is on a method" in str(error)


def test_what_cannot_cross_as_data_is_refused_at_registration() -> None:
    with pytest.raises(DataTypeError, match="connection"):

        @step(registry=Registry())
        def use(connection: types.ModuleType) -> None: ...


def test_a_step_with_pickled_values_may_take_anything() -> None:
    @step(registry=Registry(), values="pickle")
    def use(span: slice, **more: complex) -> range:
        return range(3)

    args, kwargs = use.signature.decode_args(use.signature.encode_args((slice(1, 2),), {"a": 1j}))
    assert (args, kwargs) == ((slice(1, 2),), {"a": 1j})
    assert use.signature.decode_result(use.signature.encode_result(range(3))) == range(3)
    with pytest.raises(TypeError, match=r"use\(\) missing a required argument: 'span'"):
        use.signature.encode_args((), {})


@pytest.mark.parametrize("bad", [0, -1, True, "3", 2.0, None])
def test_retry_refuses_what_is_no_number_of_attempts(bad: Any) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 1"):
        Retry(attempts=bad)


@pytest.mark.parametrize("bad", ["1s", True, 1.5])
def test_retry_is_a_policy_or_a_number(bad: Any) -> None:
    with pytest.raises(TypeError, match="to try once: retry=1"):
        step(registry=Registry(), retry=bad)(sync_function)


def test_backoffs_are_read_as_text_durations_and_constants() -> None:
    assert [Retry(9, "1s..10s").delay(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 8, 10]
    assert [Retry(3, timedelta(seconds=2)).delay(n) for n in (1, 2)] == [2, 2]
    assert Retry(3, "4s").delay(1, lambda: 0.5) == 3.5
    with pytest.raises(DurationError):
        Retry(3, "10s..1s")
    with pytest.raises(ValueError, match="leaves a step no time"):
        step(registry=Registry(), timeout=0)(sync_function)


# names


def test_two_functions_cannot_have_one_name() -> None:
    registry = Registry()
    step(registry=registry, name="charge")(sync_function)
    with pytest.raises(DuplicateName) as caught:
        step(registry=registry, name="charge")(plain.fn)
    assert str(caught.value).startswith(
        f"step name 'charge' is taken by {__name__}:sync_function; {__name__}:plain"
    )
    workflow(registry=registry, name="charge")(short.fn)


def test_the_same_function_again_replaces_the_former() -> None:
    registry = Registry()
    first = step(registry=registry)(sync_function)
    second = step(registry=registry)(sync_function)
    assert registry.step("sync_function") is second is not first


def test_a_nested_function_is_registered_under_its_qualified_name() -> None:
    registry = Registry()

    @workflow(registry=registry)
    async def inner() -> None: ...

    name = "test_a_nested_function_is_registered_under_its_qualified_name.<locals>.inner"
    assert registry.workflow(name) is inner


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(NoSuchWorkflow, match=r"no workflow 'shrt'; did you mean 'short'\?"):
        R.workflow("shrt")
    with pytest.raises(NoSuchStep, match=r"known: .*'look_up'.*'plain'"):
        R.step("zzz")
    with pytest.raises(NoSuchStep, match="no step is known here"):
        Registry().step("zzz")


def test_an_app_is_a_module_or_a_registry_in_it() -> None:
    module = types.ModuleType("app_of_this_test")
    module.__dict__.update(registry=R, listed=[short, plain], make=lambda: R, nothing=3, one=short)
    sys.modules[module.__name__] = module
    try:
        assert Registry.for_app("app_of_this_test") is default_registry
        assert Registry.for_app(module) is default_registry
        assert Registry.for_app("app_of_this_test:registry") is R
        assert Registry.for_app("app_of_this_test:make") is R
        assert set(Registry.for_app("app_of_this_test:listed")) == {short, plain}
        with pytest.raises(DefinitionError, match="expected a Registry"):
            Registry.for_app("app_of_this_test:nothing")
        with pytest.raises(DefinitionError, match="has no attribute 'absent'"):
            Registry.for_app("app_of_this_test:absent")
        with pytest.raises(ModuleNotFoundError):
            Registry.for_app("no_such_module_anywhere")
    finally:
        del sys.modules[module.__name__]


def test_a_registry_counts_what_it_holds() -> None:
    registry = Registry([short, look_up, plain])
    assert repr(registry) == "<Registry: 1 workflows, 2 steps, 0 lifespans>"
    assert all(isinstance(member, Workflow | Step) for member in registry)

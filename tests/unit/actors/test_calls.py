"""Calls of workflows and steps before anything runs: bound, copied, pickled, awaited, forgotten."""

from __future__ import annotations

import asyncio
import gc
import inspect
import pickle
import threading
import warnings
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from sojourn.actors.errors import NeverAwaited, OnlyInWorkflow
from sojourn.actors.inside import entered
from sojourn.actors.intentions import Call
from sojourn.actors.registry import Registry
from sojourn.actors.retry import Retry
from sojourn.actors.step import step
from sojourn.actors.verbs import receive, sleep
from sojourn.actors.workflow import workflow
from sojourn.codecs.errors import PayloadError

R = Registry()
threads: list[int] = []


@step(registry=R)
async def double(x: int) -> int:
    return 2 * x


@step(registry=R)
def where_am_i(names: list[str]) -> int:
    names.append("seen")
    threads.append(threading.get_ident())
    return len(names)


@workflow(registry=R)
async def twice(x: int, *, extra: int = 0) -> int:
    return await double(x) + extra


@contextmanager
def in_a_workflow() -> Iterator[None]:
    with entered(cast("Any", object())):
        yield


def intention_of(awaitable: Any) -> Call:
    leaf = awaitable.__await__()
    yielded = leaf.send(None)
    assert isinstance(yielded, Call)
    return yielded


async def test_outside_a_workflow_a_step_just_runs() -> None:
    assert await double(2) == 4
    assert await where_am_i(["a"]) == 2
    assert threads.pop() != threading.get_ident()


async def test_outside_a_workflow_a_workflow_just_runs() -> None:
    assert await twice(2, extra=1) == 5


def test_awaiting_a_workflow_puts_no_frame_of_ours_into_the_awaiting_frame() -> None:
    awaited: Any = twice(1).__await__()
    assert type(awaited).__name__ == "coroutine_wrapper"
    awaited.close()


async def test_a_step_call_is_a_coroutine() -> None:
    call = double(4)
    assert isinstance(call, Coroutine)
    assert asyncio.iscoroutine(call)
    assert inspect.isawaitable(call)
    assert await asyncio.create_task(call) == 8
    assert await asyncio.gather(double(1), where_am_i([])) == [2, 1]


async def test_a_step_call_is_awaited_once() -> None:
    call = double(4)
    assert await call == 8
    with pytest.raises(RuntimeError, match="this call of step 'double' was awaited before"):
        await call


def test_inside_a_workflow_a_step_is_an_intention() -> None:
    with in_a_workflow():
        call = double(3)
        assert intention_of(call) == Call("double", b"[[3],{}]")
        assert intention_of(double.options(timeout="1h", retry=Retry(2, "5s"))(3)) == Call(
            "double", b"[[3],{}]", 3600.0, 2, (5.0, 5.0)
        )


def test_where_a_call_suspends_is_decided_when_it_is_awaited() -> None:
    call = double(3)
    with in_a_workflow():
        assert intention_of(call).args == b"[[3],{}]"


def test_inside_a_workflow_arguments_are_copied_at_the_call() -> None:
    names = ["a"]
    with in_a_workflow():
        call = where_am_i(names)
        names.append("later")
        assert intention_of(call).args == b'[[["a"]],{}]'


def test_arguments_that_do_not_bind_are_a_type_error_at_the_call() -> None:
    wrong: Any = double
    with pytest.raises(TypeError, match=r"double\(\) got an unexpected keyword argument 'y'"):
        wrong(1, y=1)
    with pytest.raises(TypeError, match=r"twice\(\) missing a required argument: 'x'"):
        cast("Any", twice)()
    with in_a_workflow(), pytest.raises(TypeError, match=r"double\(\) too many positional arguments"):
        wrong(1, 2)


def test_arguments_that_do_not_fit_are_a_payload_error_at_the_call_in_a_workflow() -> None:
    wrong: Any = double
    with in_a_workflow(), pytest.raises(PayloadError, match=r"expected .*int.* at \$\.args\[0\]"):
        wrong("three")


def test_a_workflow_call_cannot_be_changed() -> None:
    call = twice(1)
    with pytest.raises(AttributeError, match="a call cannot be changed"):
        call.args = ()
    call.use()


def test_a_workflow_call_encodes_its_arguments() -> None:
    assert twice(1, extra=2).encoded() == b'[[1],{"extra":2}]'
    with pytest.raises(PayloadError):
        cast("Any", twice)("one").encoded()


# stored with a frame


def test_calls_pickle_and_go_on() -> None:
    call, options, inline = double(3), double.options(retry=1), twice(2)
    other, more, again = pickle.loads(pickle.dumps((call, options, inline)))
    with in_a_workflow():
        assert intention_of(other) == Call("double", b"[[3],{}]")
        assert intention_of(more(4)) == Call("double", b"[[4],{}]", None, 1, (1.0, 30.0))
    assert (again.workflow, again.args, again.kwargs) == (twice, (2,), {})


def test_a_call_that_waits_pickles_with_its_leaf() -> None:
    with in_a_workflow():
        call = double(3)
        call.send(None)
        restored = pickle.loads(pickle.dumps(call))
        with pytest.raises(StopIteration) as ended:
            restored.send(6)
    assert ended.value.value == 6


def test_throw_and_close_end_a_call() -> None:
    with in_a_workflow():
        call = double(3)
        call.send(None)
        with pytest.raises(KeyError):
            call.throw(KeyError("x"))
        double(4).close()


# never awaited


def warned() -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        double(1)
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]  # CPython has frames
        twice(1)
        where_am_i.options(timeout=3)([])
        gc.collect()
    assert [warning.lineno for warning in caught] == [line, line + 2, line + 3]
    return caught


def test_a_call_that_is_never_used_warns_at_its_line() -> None:
    caught = warned()
    assert [warning.category for warning in caught] == [NeverAwaited] * 3
    assert str(caught[0].message).startswith("double(...) in warned was never awaited: nothing ran")
    assert {warning.filename for warning in caught} == {__file__}


def test_a_call_that_was_stored_does_not_warn_when_its_memory_goes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored = pickle.dumps((double(1), twice(1)))
        gc.collect()
        del stored


def test_a_call_that_was_encoded_or_closed_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twice(1).encoded()
        double(1).close()
        gc.collect()


async def test_a_verb_that_suspends_says_outside_of_a_workflow_what_is_wrong() -> None:
    """A plain event loop would say "Task got bad yield"; in a step this is an easy mistake."""
    with pytest.raises(OnlyInWorkflow, match="awaiting 'sleep' works inside a workflow only"):
        await sleep(1)
    with pytest.raises(OnlyInWorkflow, match="awaiting 'receive'"):
        await receive("answer")

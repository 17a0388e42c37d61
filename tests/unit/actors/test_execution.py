"""One attempt of a step, whatever the step does: its outcome, its limits, and what it knows of itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import orjson
import pytest
from sojourn.actors import execution
from sojourn.actors.current import CurrentActor, NoCurrent, current
from sojourn.actors.errors import Cancelled, Rejected, RetryLater
from sojourn.actors.events import StepDone
from sojourn.actors.execution import StepRunner
from sojourn.actors.lifespan import Resources, resource
from sojourn.actors.limits import Limits
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.codecs.exceptions_data import rebuild_exception
from sojourn.codecs.record import PendingCall

R = Registry()
ACTOR = CurrentActor("order-1", "run1", "order", "v1", 1_000.0)
KEY = "order-1/run1/7"


class Gate:
    """Named events between a step and its test, for both kinds of steps; each test opens its own."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()
        self.seen: list[Any] = []

    async def until_entered(self) -> None:
        await asyncio.to_thread(self.entered.wait, 20)


gate = Gate()


@pytest.fixture(autouse=True)
def fresh_gate() -> Any:
    global gate
    gate = Gate()
    yield
    gate.leave.set()


class Declined(Exception):
    code: int

    def __init__(self, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code


@step(registry=R)
async def double(x: int) -> int:
    return 2 * x


@step(registry=R)
def in_thread(x: int) -> str:
    return f"{x} in {threading.current_thread().name}"


@step(registry=R, raises=[Declined], no_retry=[KeyError])
async def fails(how: str) -> int:
    match how:
        case "ValueError":
            raise ValueError("bad", 3)
        case "Declined":
            raise Declined(51)
        case "Rejected":
            raise Rejected("no", age=3)
        case "TypeError":
            raise TypeError("wrong")
        case "KeyError":
            raise KeyError("k")
        case "RetryLater":
            raise RetryLater("30s")
        case "StopIteration":
            raise StopIteration
        case "SystemExit":
            raise SystemExit(3)
        case "Cancelled":
            raise Cancelled("changed my mind")
        case "CancelledError":
            raise asyncio.CancelledError
        case _:
            return "not an int"  # type: ignore[return-value]  # the mistake under test


@step(registry=R)
def fails_in_thread(how: str) -> int:
    if how == "SystemExit":
        raise SystemExit(3)
    if how == "StopIteration":
        raise StopIteration(4)
    return asyncio.sleep(0)  # type: ignore[return-value]  # the mistake under test


@step(registry=R, timeout=20)
async def waits(cleanup: bool = False) -> str:
    gate.entered.set()
    try:
        await asyncio.Event().wait()
    finally:
        gate.seen.append((current.step.cancelled, "cleanup"))
        if cleanup:
            await asyncio.sleep(0)
            gate.seen.append("cleaned up")
    return "never"


@step(registry=R, timeout=0.05)
async def ignores_cancellation(back: bool) -> str:
    gate.entered.set()
    while not gate.leave.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.to_thread(gate.leave.wait, 20)
    return "late" if back else str(1 // 0)


@step(registry=R, timeout=0.05)
def blocks(back: bool) -> str:
    gate.entered.set()
    gate.seen.append(current.step.attempt)
    gate.leave.wait(20)
    if not back:
        raise OSError("late failure")
    return f"late, of attempt {current.step.attempt}"


@step(registry=R)
async def tells() -> dict[str, Any]:
    me = current.step
    return {
        "key": me.key,
        "attempt": me.attempt,
        "deadline": me.deadline,
        "cancelled": me.cancelled,
        "last": me.last_heartbeat,
        "actor": [current.actor.id, current.actor.run, current.actor.workflow, current.actor.now.year],
        "resource": resource(dict)["name"],
    }


@step(registry=R, timeout=20)
def beats(n: int) -> int:
    gate.seen.append(current.step.last_heartbeat)
    current.step.heartbeat({"done": n})
    gate.entered.set()
    gate.leave.wait(20)
    current.step.heartbeat({"done": n + 1})
    if n == 0:
        raise OSError("disk")
    return n


class Loops:
    """Where async steps run: on the caller's loop, or on one of their own in a second thread."""

    def __init__(self, own: bool) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        if own:
            self.loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self.loop.run_forever)
            self._thread.start()

    def close(self) -> None:
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


@pytest.fixture(params=[False, True], ids=["caller's loop", "own loop"])
async def runner(request: pytest.FixtureRequest) -> AsyncIterator[StepRunner]:
    loops = Loops(request.param)
    made = StepRunner(
        R, clock=lambda: 1_000.0, resources=Resources([{"name": "pool"}]), loop=loops.loop, cancel_grace=0.05
    )
    yield made
    gate.leave.set()
    await made.close()
    await asyncio.to_thread(loops.close)


def call(name: str, *args: Any, attempt: int = 1, op: int = 7, timeout: float | None = None) -> PendingCall:
    return PendingCall(op, name, msgspec.Raw(orjson.dumps([args, {}])), attempt=attempt, timeout=timeout)


def value(done: StepDone) -> Any:
    assert done.outcome.kind == "value", done
    return orjson.loads(bytes(done.outcome.value))


async def test_a_step_ends_with_its_encoded_result(runner: StepRunner) -> None:
    done = await runner.run(call("double", 4), ACTOR)
    assert (done.op, done.attempt, value(done), done.retryable) == (7, 1, 8, True)
    assert runner.statistics().finished == 1


async def test_a_sync_step_runs_in_a_thread_that_is_used_again(runner: StepRunner) -> None:
    first = value(await runner.run(call("in_thread", 4), ACTOR))
    second = value(await runner.run(call("in_thread", 4), ACTOR))
    assert first == second == "4 in sojourn-step-1"


@pytest.mark.parametrize(
    ("how", "kind", "type_name", "retryable"),
    [
        ("ValueError", "error", "builtins:ValueError", True),
        ("Declined", "error", f"{__name__}:Declined", True),
        ("Rejected", "rejected", "sojourn:Rejected", False),
        ("TypeError", "error", "builtins:TypeError", False),
        ("KeyError", "error", "builtins:KeyError", False),
        ("RetryLater", "error", "sojourn.actors.errors:RetryLater", True),
        ("StopIteration", "error", "builtins:RuntimeError", True),
        ("SystemExit", "error", "builtins:SystemExit", True),
        ("Cancelled", "cancelled", "sojourn:Cancelled", False),
        ("CancelledError", "error", "asyncio.exceptions:CancelledError", True),
        ("a wrong result", "error", "sojourn.codecs.errors:PayloadError", False),
    ],
)
async def test_whatever_a_step_raises_becomes_an_outcome(
    runner: StepRunner, how: str, kind: str, type_name: str, retryable: bool
) -> None:
    done = await runner.run(call("fails", how), ACTOR)
    assert done.outcome.error is not None
    assert (done.outcome.kind, done.outcome.error.type, done.retryable) == (kind, type_name, retryable)


async def test_the_text_of_a_wrong_result_names_the_step(runner: StepRunner) -> None:
    done = await runner.run(call("fails", "a wrong result"), ACTOR)
    assert done.outcome.error is not None
    assert done.outcome.error.message.startswith("result of step 'fails': expected ")


async def test_declared_exceptions_can_be_rebuilt(runner: StepRunner) -> None:
    done = await runner.run(call("fails", "Declined"), ACTOR)
    assert done.outcome.error is not None
    back = rebuild_exception(done.outcome.error, declared=[Declined])
    assert isinstance(back, Declined)
    assert back.code == 51


async def test_retry_later_says_when(runner: StepRunner) -> None:
    assert (await runner.run(call("fails", "RetryLater"), ACTOR)).retry_after == 30.0


@pytest.mark.parametrize(
    ("how", "type_name", "retryable"),
    [
        ("SystemExit", "builtins:SystemExit", True),
        ("StopIteration", "builtins:StopIteration", True),
        ("awaitable", "builtins:TypeError", False),
    ],
)
async def test_what_cannot_travel_through_a_future_comes_out_of_a_thread(
    runner: StepRunner, how: str, type_name: str, retryable: bool
) -> None:
    done = await runner.run(call("fails_in_thread", how), ACTOR)
    assert done.outcome.error is not None
    assert (done.outcome.error.type, done.retryable) == (type_name, retryable)


async def test_an_unknown_step_and_wrong_arguments_are_outcomes_that_no_retry_changes(
    runner: StepRunner,
) -> None:
    unknown = await runner.run(call("dubble", 4), ACTOR)
    wrong = await runner.run(call("double", "four"), ACTOR)
    assert unknown.outcome.error is not None
    assert wrong.outcome.error is not None
    assert unknown.outcome.error.message.startswith("no step 'dubble'; did you mean 'double'?")
    assert wrong.outcome.error.message.endswith("$.args[0]")
    assert not unknown.retryable
    assert not wrong.retryable


# time and cancellation


async def test_an_async_step_is_cancelled_when_its_time_is_up(runner: StepRunner) -> None:
    done = await runner.run(call("waits", timeout=0.02), ACTOR)
    assert (done.outcome.kind, done.retryable) == ("timeout", True)
    assert gate.seen == [(True, "cleanup")]
    assert not runner.is_running(KEY)


async def test_a_cancelled_step_may_clean_up_undisturbed(runner: StepRunner) -> None:
    """Cancelled twice at once, as by a host that cancels the step and the task that waits for it."""
    running = asyncio.create_task(runner.run(call("waits", True), ACTOR))
    await gate.until_entered()
    runner.cancel(KEY)
    runner.cancel(KEY)
    done = await running
    assert (done.outcome.kind, done.retryable) == ("cancelled", False)
    assert gate.seen == [(True, "cleanup"), "cleaned up"]


async def test_cancelling_the_waiting_task_cancels_the_step(runner: StepRunner) -> None:
    running = asyncio.create_task(runner.run(call("waits", True), ACTOR))
    await gate.until_entered()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await runner.close()
    assert gate.seen == [(True, "cleanup"), "cleaned up"]


async def test_a_sync_step_learns_of_its_cancellation_by_its_heartbeat(runner: StepRunner) -> None:
    running = asyncio.create_task(runner.run(call("beats", 1), ACTOR))
    await gate.until_entered()
    runner.cancel(KEY)
    await _until(lambda: runner._running[KEY].seen.cancelled)
    gate.leave.set()
    done = await running
    assert (done.outcome.kind, done.retryable) == ("cancelled", False)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # what the runner notes is no event
            await asyncio.sleep(0)


@pytest.mark.parametrize("name", ["blocks", "ignores_cancellation"])
async def test_code_that_goes_on_after_its_time_is_stuck_and_shown(runner: StepRunner, name: str) -> None:
    done = await runner.run(call(name, True), ACTOR)
    assert done.outcome.kind == "timeout"
    (stuck,) = runner.attempts()
    assert (stuck.key, stuck.step, stuck.stuck) == (KEY, name, True)
    assert runner.statistics().stuck == 1
    assert not runner.is_running(KEY)
    if name == "blocks":
        assert "threading.py" in stuck.where or __file__ in stuck.where


@pytest.mark.parametrize("name", ["blocks", "ignores_cancellation"])
async def test_the_next_attempt_waits_for_stuck_code_and_takes_its_late_value(
    runner: StepRunner, name: str
) -> None:
    """Two of the same operation must not run side by side; and what the first did need not be done twice."""
    await runner.run(call(name, True), ACTOR)
    again = asyncio.create_task(runner.run(call(name, True, attempt=2, timeout=20), ACTOR))
    await _until(lambda: runner.is_running(KEY))
    assert gate.seen in ([], [1])
    gate.leave.set()
    done = await again
    assert done.attempt == 2
    assert value(done).startswith("late")
    assert gate.seen in ([], [1])
    assert runner.attempts() == ()


@pytest.mark.parametrize("name", ["blocks", "ignores_cancellation"])
async def test_late_failures_are_forgotten_and_the_attempt_runs(runner: StepRunner, name: str) -> None:
    await runner.run(call(name, False), ACTOR)
    again = asyncio.create_task(runner.run(call(name, True, attempt=2, timeout=20), ACTOR))
    await _until(lambda: runner.is_running(KEY))
    gate.leave.set()
    assert value(await again) in ("late", "late, of attempt 2")


async def test_an_attempt_gives_up_on_stuck_code_after_its_own_time(runner: StepRunner) -> None:
    await runner.run(call("blocks", True), ACTOR)
    done = await runner.run(call("blocks", True, attempt=2, timeout=0.02), ACTOR)
    assert done.outcome.error is not None
    assert done.retryable
    assert "the thread of an earlier attempt is still running" in done.outcome.error.message


async def test_an_operation_does_not_run_twice_at_a_time(runner: StepRunner) -> None:
    running = asyncio.create_task(runner.run(call("waits"), ACTOR))
    await gate.until_entered()
    with pytest.raises(RuntimeError, match="an attempt of operation order-1/run1/7 runs here already"):
        await runner.run(call("waits"), ACTOR)
    runner.cancel(KEY)
    await running


# places


async def test_steps_beyond_the_limit_wait_for_a_place_without_losing_their_time() -> None:
    runner = StepRunner(R, clock=lambda: 0.0, limits=Limits(running_steps=1, step_threads=1))
    first = asyncio.create_task(runner.run(call("beats", 1, op=1), ACTOR))
    await gate.until_entered()
    second = asyncio.create_task(runner.run(call("in_thread", 4, op=2, timeout=20), ACTOR))
    await _until(lambda: runner.statistics().queued == 1)
    assert runner.is_running("order-1/run1/2")
    assert runner.attempt("order-1/run1/2") is None
    gate.leave.set()
    assert value(await first) == 1
    assert value(await second).startswith("4 in")
    await runner.close()


async def test_a_step_cancelled_in_the_queue_never_begins() -> None:
    runner = StepRunner(R, clock=lambda: 0.0, limits=Limits(step_threads=1))
    first = asyncio.create_task(runner.run(call("beats", 1, op=1), ACTOR))
    await gate.until_entered()
    second = asyncio.create_task(runner.run(call("beats", 1, op=2), ACTOR))
    await _until(lambda: runner.statistics().queued == 1)
    runner.cancel("order-1/run1/2")
    gate.leave.set()
    await first
    assert (await second).outcome.kind == "cancelled"
    assert gate.seen == [None]
    await runner.close()


async def test_a_task_cancelled_in_the_queue_leaves_no_trace() -> None:
    runner = StepRunner(R, clock=lambda: 0.0, limits=Limits(step_threads=1))
    first = asyncio.create_task(runner.run(call("beats", 1, op=1), ACTOR))
    await gate.until_entered()
    second = asyncio.create_task(runner.run(call("beats", 1, op=2), ACTOR))
    await _until(lambda: runner.statistics().queued == 1)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert not runner.is_running("order-1/run1/2")
    gate.leave.set()
    await first
    assert value(await runner.run(call("in_thread", 1, op=3), ACTOR)).startswith("1 in")
    await runner.close()


async def test_stuck_threads_give_their_place_up_until_as_many_are_stuck_as_may_run() -> None:
    """One may run, one may be stuck beside it; the next stuck one keeps its place until it ends."""
    runner = StepRunner(R, clock=lambda: 0.0, limits=Limits(step_threads=1))
    await runner.run(call("blocks", True, op=1), ACTOR)
    assert value(await runner.run(call("in_thread", 4, op=2), ACTOR)).startswith("4 in")
    await runner.run(call("blocks", True, op=3), ACTOR)
    waiting = asyncio.create_task(runner.run(call("in_thread", 4, op=4), ACTOR))
    await _until(lambda: runner.statistics().queued == 1)
    assert runner.statistics().stuck == 2
    gate.leave.set()
    assert value(await waiting).startswith("4 in")
    assert value(await runner.run(call("in_thread", 5, op=5), ACTOR)).startswith("5 in")
    await runner.close()


# what a step knows


async def test_a_step_knows_itself_its_actor_and_its_resources(runner: StepRunner) -> None:
    assert value(await runner.run(call("tells", attempt=2, timeout=60), ACTOR)) == {
        "key": KEY,
        "attempt": 2,
        "deadline": 1_060.0,
        "cancelled": False,
        "last": None,
        "actor": ["order-1", "run1", "order", 1970],
        "resource": "pool",
    }


async def test_a_heartbeat_is_shown_and_given_to_the_next_attempt(runner: StepRunner) -> None:
    first = asyncio.create_task(runner.run(call("beats", 0), ACTOR))
    await gate.until_entered()
    shown = runner.attempt(KEY)
    assert shown is not None
    assert (shown.heartbeat, shown.heartbeat_age, shown.stuck) == ({"done": 0}, 0.0, False)
    gate.leave.set()
    assert (await first).outcome.kind == "error"
    assert value(await runner.run(call("beats", 5, attempt=2), ACTOR)) == 5
    assert value(await runner.run(call("beats", 6, op=8), ACTOR)) == 6
    assert gate.seen == [None, {"done": 1}, None]


async def test_heartbeats_of_failed_operations_are_bounded_by_their_size(
    runner: StepRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "HEARTBEAT_BYTES", 3 * len(b'{"done":1}'))
    gate.leave.set()
    for op in range(10):
        assert (await runner.run(call("beats", 0, op=op), ACTOR)).outcome.kind == "error"
    assert [key.rpartition("/")[2] for key in runner._heartbeats] == ["7", "8", "9"]
    monkeypatch.setattr(execution, "HEARTBEAT_BYTES", 1)
    await runner.run(call("beats", 0, op=10), ACTOR)
    assert len(runner._heartbeats) == 1
    assert await runner.run(call("beats", 5, op=10, attempt=2), ACTOR)
    assert runner._heartbeats == {}
    assert runner._heartbeat_bytes == 0


async def test_a_finished_operation_forgets_its_heartbeat(runner: StepRunner) -> None:
    gate.leave.set()
    await runner.run(call("beats", 5), ACTOR)
    assert runner._heartbeats == {}


def test_outside_of_steps_and_workflows_nothing_is_current() -> None:
    with pytest.raises(NoCurrent, match=r"current\.step is there in steps only"):
        _ = current.step
    with pytest.raises(NoCurrent, match=r"current\.actor is there in workflows and steps only"):
        _ = current.actor


async def test_closing_cancels_what_runs_and_may_be_repeated(runner: StepRunner) -> None:
    running = asyncio.create_task(runner.run(call("waits"), ACTOR))
    await gate.until_entered()
    await runner.close()
    await runner.close()
    assert (await running).outcome.kind == "cancelled"

"""What workflows can say, on the engine alone; each test runs hot and with a round trip of the frame at every suspension."""

from __future__ import annotations

import asyncio
import decimal
import socket
import sys
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest
from engine_kit import Actor
from sojourn.actors.branches import Task
from sojourn.actors.channel import Channel
from sojourn.actors.errors import Cancelled, ChildFailed, ReceiveTimeout, Rejected, StepFailed
from sojourn.actors.registry import Registry
from sojourn.actors.retry import Retry
from sojourn.actors.scopes import Lock, Semaphore, TaskGroup, timeout
from sojourn.actors.step import step
from sojourn.actors.verbs import (
    checkpoint,
    create_task,
    gather,
    publish_state,
    race,
    receive,
    receive_message,
    send,
    sleep,
    spawn,
    stage,
    tag,
    wait,
)
from sojourn.actors.workflow import workflow
from sojourn.codecs.context import declare_variable
from sojourn.codecs.errors import ContextNotDeclared
from sojourn.codecs.record import Outcome

R = Registry()
approval = Channel("approval", dict[str, Any])
numbers = Channel("numbers", int)
failures: list[str] = []


@pytest.fixture(params=[False, True], ids=["hot", "parked"])
def parked(request: pytest.FixtureRequest) -> bool:
    failures.clear()
    return request.param


@step(registry=R)
async def double(x: int) -> int:
    return 2 * x


@step(registry=R, retry=Retry(3, "1s"))
async def flaky(until: int) -> int:
    failures.append("try")
    if len(failures) < until:
        raise OSError("not yet")
    return len(failures)


@step(registry=R, retry=Retry(2, "10s"))
def always_fails() -> int:
    raise OSError("disk")


class Odd(Exception):
    pass


@step(registry=R, retry=1)
def raises_odd() -> int:
    raise Odd("undeclared")


@step(registry=R)
def says_no() -> int:
    raise Rejected("too young", age=12)


async def helper(x: int) -> int:
    first = await double(x)
    return first + await double(first)


@workflow(registry=R)
async def calls_helper(x: int) -> int:
    total = 0
    for n in range(3):
        total += await helper(x + n)
    return total


def test_steps_in_nested_helpers_and_loops_give_their_results(parked: bool) -> None:
    actor = Actor(calls_helper, double, parked=parked)
    actor.start(calls_helper, 1)
    assert (actor.status, actor.result) == ("completed", 6 + 12 + 18)
    assert len(actor.executed) == 6


def test_each_local_step_costs_one_commit(parked: bool) -> None:
    actor = Actor(calls_helper, double, parked=parked)
    actor.start(calls_helper, 1)
    assert actor.commits == 1 + len(actor.executed)


@workflow(registry=R)
async def retries(until: int) -> int:
    return await flaky(until)


def test_a_step_is_tried_again_and_its_attempts_are_counted(parked: bool) -> None:
    actor = Actor(retries, flaky, parked=parked)
    actor.start(retries, 3)
    assert (actor.status, actor.result) == ("completed", 3)
    assert actor.record.index.operations[-1].attempts == 3


def test_a_step_that_fails_in_every_attempt_fails_the_workflow_with_its_own_error(parked: bool) -> None:
    actor = Actor(retries, flaky, parked=parked)
    actor.start(retries, 9)
    assert (actor.status, actor.error.type, actor.error.message) == ("failed", "builtins:OSError", "not yet")
    assert failures == ["try"] * 3


@workflow(registry=R)
async def waits_long_between_attempts() -> None:
    await always_fails()


def test_a_long_backoff_is_a_durable_timer(parked: bool) -> None:
    actor = Actor(waits_long_between_attempts, always_fails, parked=parked)
    actor.start(waits_long_between_attempts)
    assert actor.status == "suspended"
    assert list(actor.armed.values()) == [1_010.0]
    actor.fire()
    assert actor.status == "failed"
    assert actor.armed == {}


@workflow(registry=R)
async def catches_step_failure() -> str:
    try:
        await raises_odd()
    except StepFailed as failed:
        await sleep(1)
        return f"{failed.step} {failed.attempts} {failed.message}"
    return "no error"


def test_an_undeclared_exception_arrives_as_step_failed_and_survives_a_suspension(parked: bool) -> None:
    actor = Actor(catches_step_failure, raises_odd, parked=parked)
    actor.start(catches_step_failure)
    actor.fire()
    assert actor.result == "raises_odd 1 undeclared"


@workflow(registry=R)
async def is_rejected() -> int:
    return await says_no()


def test_rejected_is_an_outcome_of_its_own_and_is_never_retried(parked: bool) -> None:
    actor = Actor(is_rejected, says_no, parked=parked)
    actor.start(is_rejected)
    assert (actor.status, actor.executed) == ("rejected", ["says_no"])
    assert bytes(actor.error.data) == b'{"age":12}'


@workflow(registry=R)
async def receives() -> list[Any]:
    got: list[Any] = [await approval.receive(timeout="3d"), await numbers.receive(timeout=5, default=-1)]
    try:
        await receive(approval, numbers, timeout=7)
    except ReceiveTimeout as late:
        got.append(list(late.channels))
    message = await receive_message(numbers)
    got.append([message.channel, message.value])
    return got


def test_receive_takes_mail_times_out_and_disarms_its_timer(parked: bool) -> None:
    actor = Actor(receives, parked=parked)
    actor.start(receives)
    assert actor.record.index.wait.startswith("receive approval until 1970-01-04")
    actor.signal("approval", {"ok": True})
    assert len(actor.armed) == 1
    actor.fire()
    actor.fire()
    assert actor.armed == {}
    actor.signal("numbers", 5)
    assert actor.result == [{"ok": True}, -1, ["approval", "numbers"], ["numbers", 5]]


def test_mail_is_consumed_in_order_of_sending_per_channel(parked: bool) -> None:
    actor = Actor(takes_two, parked=parked)
    actor.start(takes_two)
    for n in (1, 2, 3):
        actor.mail.append(actor.event("mail", "mail", channel="numbers", payload=str(n).encode()))
    actor.signal("approval", {})
    assert actor.result == [1, 2]
    assert [line.split(":")[0] for line in actor.dead] == ["dead"]


@workflow(registry=R)
async def takes_two() -> list[int]:
    await approval.receive()
    return [await numbers.receive(), await numbers.receive()]


def test_mail_for_a_channel_the_workflow_has_not_is_dead_and_names_those_it_has(parked: bool) -> None:
    actor = Actor(takes_two, parked=parked)
    actor.start(takes_two)
    actor.signal("aproval", {})
    assert actor.dead == ["dead: no such channel: `aproval`; workflow takes_two has approval, numbers"]
    assert actor.status == "suspended"


@pytest.mark.parametrize("payload", [b"{", b"\xff", b"NaN", b'{"a":1,"a":2}', b"[" * 100 + b"]" * 100])
def test_mail_that_is_no_json_is_dead_and_disturbs_nothing(payload: bytes) -> None:
    actor = Actor(takes_two)
    actor.start(takes_two)
    actor.deliver(actor.event("mail", "mail", channel="approval", payload=payload))
    assert actor.dead[0].startswith("dead: payload: expected")
    actor.signal("approval", {})
    assert actor.record.index.wait == "receive numbers"


@workflow(registry=R)
async def times_out() -> str:
    try:
        async with timeout("5s") as scope:
            await gather(double(1), approval.receive())
    except TimeoutError:
        return f"expired {scope.expired()}"
    return "in time"


def test_a_timeout_cancels_what_is_inside_and_raises_timeout_error(parked: bool) -> None:
    actor = Actor(times_out, double, parked=parked)
    actor.start(times_out)
    actor.fire()
    assert actor.result == "expired True"
    assert actor.armed == {}


def test_a_timeout_that_is_not_reached_is_disarmed(parked: bool) -> None:
    actor = Actor(times_out, double, parked=parked)
    actor.start(times_out)
    actor.signal("approval", {})
    assert (actor.result, actor.armed) == ("in time", {})


@workflow(registry=R)
async def nested_timeouts() -> list[str]:
    log = []
    try:
        async with timeout(10):
            try:
                async with timeout(5):
                    await sleep(100)
            except TimeoutError:
                log.append("inner")
            await sleep(100)
    except TimeoutError:
        log.append("outer")
    return log


def test_nested_timeouts_expire_one_by_one(parked: bool) -> None:
    actor = Actor(nested_timeouts, parked=parked)
    actor.start(nested_timeouts)
    actor.fire()
    actor.fire()
    assert (actor.result, actor.armed) == (["inner", "outer"], {})


@workflow(registry=R)
async def outslept() -> list[str]:
    log = []
    try:
        async with timeout(5):
            await gather(sleep(10), approval.receive(timeout=4, default="none"))
            log.append("in time")
    except TimeoutError:
        log.append("timed out")
    return log


def test_a_time_limit_that_was_due_before_a_sleep_ends_first_whichever_timer_comes_first(
    parked: bool,
) -> None:
    actor = Actor(outslept, parked=parked)
    actor.start(outslept)
    assert actor.record is not None
    run = actor.record.index.run
    for timer, _ in sorted(actor.armed.items(), key=lambda item: -item[1]):
        actor.deliver(actor.event("timer", "wake", body={"run": run, "n": timer}))
    assert (actor.result, actor.armed) == (["timed out"], {})


@workflow(registry=R)
async def gathers_with_error() -> list[str]:
    shared: list[str] = []

    async def add(name: str, seconds: float, fail: bool = False) -> str:
        await sleep(seconds)
        shared.append(name)
        if fail:
            raise Rejected(name)
        return name

    try:
        await gather(add("a", 1), add("b", 2, fail=True), add("c", 3))
    except Rejected:
        shared.append("caught")
    await sleep(5)
    results = await gather(add("d", 1), add("e", 1, fail=True), return_exceptions=True)
    shared += [type(result).__name__ for result in results]
    return shared


def test_gather_raises_the_first_error_and_lets_the_others_go_on_as_asyncio_does(parked: bool) -> None:
    actor = Actor(gathers_with_error, parked=parked)
    actor.start(gathers_with_error)
    while actor.status == "suspended":
        actor.fire()
    assert actor.result == ["a", "b", "caught", "c", "d", "e", "str", "Rejected"]


@workflow(registry=R)
async def races() -> list[Any]:
    won = await race(answer=approval.receive(), late=sleep("1d"))
    return [*won, await race(answer=approval.receive(), late=sleep("1d"))]


def test_race_returns_the_first_and_cancels_the_rest(parked: bool) -> None:
    actor = Actor(races, parked=parked)
    actor.start(races)
    actor.signal("approval", {"n": 1})
    assert len(actor.armed) == 1
    actor.fire()
    assert actor.result == ["answer", {"n": 1}, ["late", None]]
    assert actor.armed == {}


@workflow(registry=R)
async def groups() -> list[Any]:
    log: list[Any] = []

    async def works(name: str, seconds: float) -> str:
        try:
            await sleep(seconds)
        except Cancelled:
            await double(1)
            log.append(f"{name} cancelled")
            raise
        return name

    async def fails(seconds: float) -> None:
        await sleep(seconds)
        raise Rejected("fails")

    async with TaskGroup() as group:
        first, second = group.create_task(works("x", 1)), group.create_task(works("y", 2))
    log += [await first, second.result()]
    try:
        async with TaskGroup() as group:
            group.create_task(works("z", 50))
            group.create_task(fails(1))
            await sleep(100)
            log.append("not reached")
    except* Rejected as several:
        log.append([str(error) for error in several.exceptions])
    return log


def test_a_task_group_waits_for_all_and_a_failure_cancels_the_rest(parked: bool) -> None:
    actor = Actor(groups, double, parked=parked)
    actor.start(groups)
    while actor.status == "suspended":
        actor.fire()
    assert actor.result == ["x", "y", "z cancelled", ["fails"]]
    assert actor.armed == {}


@workflow(registry=R)
async def uses_locks() -> list[int]:
    limit, lock, log = Semaphore(2), Lock(), []
    running = 0

    async def worker(n: int) -> None:
        nonlocal running
        async with limit:
            running += 1
            await sleep(n)
            async with lock:
                log.append(running)
                await sleep(1)
            running -= 1

    await gather(*(worker(n) for n in range(1, 5)))
    return log


def test_a_semaphore_lets_no_more_than_its_value_in(parked: bool) -> None:
    actor = Actor(uses_locks, parked=parked)
    actor.start(uses_locks)
    while actor.status == "suspended":
        actor.fire()
    assert len(actor.result) == 4
    assert max(actor.result) == 2


@workflow(registry=R)
async def leaves_a_task() -> str:
    async def background(log: list[str]) -> None:
        try:
            await sleep(1000)
        finally:
            await double(3)
            log.append("cleaned")

    log: list[str] = []
    task: Task[None] = create_task(background(log))
    await sleep(1)
    return f"{task.done()} {log}"


def test_the_end_of_a_workflow_cancels_its_tasks_and_waits_for_their_cleanup(parked: bool) -> None:
    actor = Actor(leaves_a_task, double, parked=parked)
    actor.start(leaves_a_task)
    actor.fire()
    assert (actor.status, actor.result, actor.executed) == ("completed", "False []", ["double"])
    assert actor.armed == {}


@workflow(registry=R)
async def waits_for_tasks() -> list[bool]:
    first, second = create_task(sleep(1)), create_task(sleep(9))
    await wait(first, second, first=True)
    states = [first.done(), second.done()]
    await wait(first, second)
    return [*states, second.done()]


def test_wait_returns_at_the_first_or_at_the_last(parked: bool) -> None:
    actor = Actor(waits_for_tasks, parked=parked)
    actor.start(waits_for_tasks)
    actor.fire()
    actor.fire()
    assert actor.result == [True, False, True]


@workflow(registry=R)
async def labels() -> None:
    stage("one")
    tag("gold", "gold", "eu")
    publish_state({"progress": 0.5})
    await checkpoint()
    stage("two")
    await send("other", "news", {"n": 1})
    await sleep(1)


def test_stage_tags_state_checkpoint_and_send_take_effect_with_a_commit(parked: bool) -> None:
    actor = Actor(labels, parked=parked)
    actor.start(labels)
    index = actor.record.index
    assert (index.stage, index.tags, bytes(actor.record.envelope.state)) == (
        "two",
        ("gold", "eu"),
        b'{"progress":0.5}',
    )
    assert [(e.kind, e.target, e.channel, bytes(e.body)) for e in actor.sent] == [
        ("send", "other", "news", b'{"n":1}')
    ]


# children


@workflow(registry=R)
async def child(n: int) -> int:
    await sleep(n)
    return n


@workflow(registry=R)
async def parent() -> list[Any]:
    first = await spawn(child(1), id="c1")
    second = await spawn(child(2))
    value = await first
    try:
        await second
    except ChildFailed as failed:
        return [value, failed.workflow, second.id]
    return []


def test_a_parent_joins_its_children_and_seals_them(parked: bool) -> None:
    actor = Actor(parent, child, parked=parked)
    actor.start(parent)
    assert [(e.kind, e.target) for e in actor.sent] == [("start", "c1"), ("start", "a1-run1-3")]
    actor.child_done("c1", Outcome("value", value=_raw(b"1")))
    actor.child_done("a1-run1-3", Outcome("error"), "failed")
    assert actor.result == [1, "child", "a1-run1-3"]
    assert [e.target for e in actor.sent if e.kind == "seal"] == ["c1", "a1-run1-3"]


def _raw(data: bytes) -> Any:
    import msgspec

    return msgspec.Raw(data)


@workflow(registry=R)
async def leaves_children(policy: str) -> str:
    await spawn(child(1000), id="c1", policy=policy)
    return "over"


def test_a_parent_ends_only_after_its_cancelled_children_have(parked: bool) -> None:
    actor = Actor(leaves_children, child, parked=parked)
    actor.start(leaves_children, "cancel")
    assert (actor.status, actor.sent_kinds(), len(actor.armed)) == ("cancelling", ["start", "cancel"], 1)
    actor.child_done("c1", Outcome("cancelled"), "cancelled")
    assert (actor.status, actor.result, actor.armed) == ("completed", "over", {})


def test_children_that_outlive_the_grace_period_are_terminated(parked: bool) -> None:
    actor = Actor(leaves_children, child, parked=parked)
    actor.start(leaves_children, "cancel")
    actor.fire()
    assert (actor.status, actor.result) == ("completed", "over")
    assert actor.sent_kinds() == ["start", "cancel", "terminate"]


def test_an_abandoned_child_goes_on_alone(parked: bool) -> None:
    actor = Actor(leaves_children, child, parked=parked)
    actor.start(leaves_children, "abandon")
    assert (actor.status, actor.sent_kinds()) == ("completed", ["start"])


# cancellation


@workflow(registry=R)
async def cleans_up() -> str:
    log: list[str] = []
    try:
        await gather(approval.receive(), sleep(1000))
    except Cancelled as cancelled:
        log.append(cancelled.reason)
        await double(1)
        await sleep(1)
        raise
    finally:
        await double(2)
    return "not reached"


def test_cancel_is_raised_once_and_cleanup_may_await(parked: bool) -> None:
    actor = Actor(cleans_up, double, parked=parked)
    actor.start(cleans_up)
    actor.cancel(reason="changed my mind")
    assert (actor.status, actor.executed) == ("cancelling", ["double"])
    actor.cancel(reason="again")
    actor.fire()
    assert (actor.status, actor.executed, actor.armed) == ("cancelled", ["double", "double"], {})


def test_cleanup_that_outlives_the_grace_period_is_terminated(parked: bool) -> None:
    actor = Actor(cleans_up, double, parked=parked)
    actor.start(cleans_up)
    actor.cancel(grace=0.5)
    assert sorted(actor.armed.values()) == [1_000.5, 1_001.0]
    actor.fire()
    assert (actor.status, actor.armed) == ("terminated", {})
    assert actor.executed == ["double"]


@workflow(registry=R)
async def survives_cancel() -> str:
    try:
        await approval.receive()
    except Cancelled:
        return "finished in time"
    return ""


def test_a_workflow_that_returns_after_a_cancel_is_completed_as_in_asyncio(parked: bool) -> None:
    actor = Actor(survives_cancel, parked=parked)
    actor.start(survives_cancel)
    actor.cancel()
    assert (actor.status, actor.result) == ("completed", "finished in time")


def test_cancel_reaches_the_children(parked: bool) -> None:
    actor = Actor(parent, child, parked=parked)
    actor.start(parent)
    actor.cancel()
    assert actor.status == "cancelling"
    cancelled = [e.target for e in actor.sent if e.kind == "cancel"]
    assert cancelled == ["c1", "a1-run1-3"]
    for name in cancelled:
        actor.child_done(name, Outcome("cancelled"), "cancelled")
    assert (actor.status, actor.armed) == ("cancelled", {})


@workflow(registry=R)
async def cancelled_receive_keeps_mail() -> list[Any]:
    try:
        async with timeout(5):
            await gather(numbers.receive(), sleep(100))
    except TimeoutError:
        pass
    return [await numbers.receive()]


def test_a_cancelled_receive_leaves_its_mail_for_the_next(parked: bool) -> None:
    actor = Actor(cancelled_receive_keeps_mail, parked=parked)
    actor.start(cancelled_receive_keeps_mail)
    actor.fire()
    actor.signal("numbers", 7)
    assert actor.result == [7]


def test_terminate_needs_no_frame_and_runs_no_cleanup(parked: bool) -> None:
    actor = Actor(cleans_up, double, parked=parked)
    actor.start(cleans_up)
    actor.live = None
    actor.deliver(actor.event("terminate", body={"reason": "enough"}))
    assert (actor.status, actor.executed, actor.armed) == ("terminated", [], {})


def test_a_delayed_start_can_be_cancelled_before_it_runs(parked: bool) -> None:
    actor = Actor(cleans_up, double, parked=parked)
    actor.start(cleans_up, delay=100)
    assert (actor.status, list(actor.armed.values())) == ("suspended", [1_100.0])
    actor.cancel()
    assert (actor.status, actor.executed, actor.armed) == ("cancelled", [], {})


def test_a_delayed_start_runs_when_its_timer_fires(parked: bool) -> None:
    actor = Actor(calls_helper, double, parked=parked)
    actor.start(calls_helper, 1, delay=100)
    assert actor.executed == []
    actor.fire()
    assert actor.result == 36


# defects and forbidden awaits


@workflow(registry=R)
async def awaits_asyncio() -> None:
    await sleep(1)
    await asyncio.sleep(1)


@workflow(registry=R)
async def awaits_asyncio_zero() -> None:
    await asyncio.sleep(0)


@workflow(registry=R)
async def uses_asyncio_timeout() -> None:
    async with asyncio.timeout(1):
        await approval.receive()


class Odd2:
    def __await__(self) -> Any:
        yield "something else"


@workflow(registry=R)
async def yields_an_unknown_intention() -> None:
    await Odd2()


@workflow(registry=R)
async def creates_a_task() -> None:
    asyncio.create_task(double(1))  # noqa: RUF006  # it is refused
    await sleep(1)


@pytest.mark.parametrize(
    ("bad", "primitive", "remedy"),
    [
        (awaits_asyncio, "asyncio.sleep", "sojourn.sleep"),
        (awaits_asyncio_zero, "asyncio.sleep", "sojourn.sleep"),
        (uses_asyncio_timeout, "asyncio.timeout", "sojourn.timeout"),
        (creates_a_task, "asyncio.create_task", "sojourn.create_task"),
        (yields_an_unknown_intention, "a str", "Sojourn's own verbs"),
    ],
)
def test_a_foreign_await_fails_with_line_and_remedy(
    bad: Any, primitive: str, remedy: str, parked: bool
) -> None:
    actor = Actor(bad, double, parked=parked)
    actor.start(bad)
    if actor.armed:
        actor.fire()
    hold = actor.record.envelope.hold
    assert hold is not None
    assert primitive in hold.reason
    assert remedy in hold.reason
    assert f"{bad.__name__} line {bad.fn.__code__.co_firstlineno + 2}" in hold.reason or "line" in hold.reason


async def test_foreign_awaits_do_not_touch_the_loop_that_drives_the_workflow() -> None:
    actor = Actor(uses_asyncio_timeout, awaits_asyncio)
    actor.start(uses_asyncio_timeout)
    assert actor.hold == "quarantined"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


@workflow(registry=R)
async def holds_a_socket() -> str:
    conn = socket.socket()
    try:
        await sleep(1)
    finally:
        conn.close()
    return "not reached"


def test_a_socket_across_an_await_is_named_with_line_variable_and_remedy(parked: bool) -> None:
    actor = Actor(holds_a_socket, parked=parked)
    actor.start(holds_a_socket)
    reason = actor.record.envelope.hold.reason
    line = holds_a_socket.fn.__code__.co_firstlineno + 4
    assert "local `conn` (`socket.socket`) in `holds_a_socket`" in reason
    assert f"line {line}" in reason
    assert "open it inside a step" in reason
    assert actor.armed == {}


@workflow(registry=R)
async def has_a_bug(fail: bool) -> int:
    value = await double(21)
    if fail and len(failures) == 0:
        raise KeyError("a bug")
    return value


def test_a_defect_quarantines_with_the_last_good_record_and_release_does_not_run_the_step_again(
    parked: bool,
) -> None:
    actor = Actor(has_a_bug, double, parked=parked)
    actor.start(has_a_bug, True)
    assert (actor.status, actor.hold) == ("runnable", "quarantined")
    assert "KeyError" in actor.record.envelope.hold.reason
    assert "has_a_bug" in actor.record.envelope.hold.traceback
    failures.append("the bug is fixed")
    actor.deliver(actor.event("release", body={"by": "ops"}))
    assert (actor.status, actor.result, actor.executed) == ("completed", 42, ["double"])


@workflow(registry=R, on_defect="fail")
async def fails_on_defect() -> None:
    await sleep(1)
    raise KeyError("a bug")


def test_on_defect_fail_ends_the_workflow(parked: bool) -> None:
    actor = Actor(fails_on_defect, parked=parked)
    actor.start(fails_on_defect)
    actor.fire()
    assert (actor.status, actor.error.type) == ("failed", "builtins:KeyError")


@workflow(registry=R)
async def spins() -> None:
    while True:
        await sleep(0)


def test_a_loop_that_never_waits_is_stopped_and_named(parked: bool) -> None:
    actor = Actor(spins, parked=parked)
    actor.start(spins)
    assert "switches" in actor.record.envelope.hold.reason


@workflow(registry=R)
async def sleeps_too_long() -> str:
    try:
        await sleep("999999d")
    except Exception as error:
        return type(error).__name__
    return ""


def test_a_sleep_over_the_limit_fails_at_the_await(parked: bool) -> None:
    actor = Actor(sleeps_too_long, parked=parked)
    actor.start(sleeps_too_long)
    assert (actor.result, actor.armed) == ("LimitExceeded", {})


# starts


def test_the_same_start_request_again_has_no_effect_and_returns_the_same_run(parked: bool) -> None:
    actor = Actor(takes_two, parked=parked)
    actor.start(takes_two, request="r1")
    actor.deliver(actor.event("start", body={"workflow": "takes_two", "request": "r1"}, reply="_INBOX.x"))
    assert actor.replies[-1].body["ok"] is True
    assert actor.replies[-1].body["run"] == "run1"
    actor.deliver(actor.event("start", body={"workflow": "takes_two", "request": "r2"}, reply="_INBOX.x"))
    assert actor.replies[-1].body["error"] == "already started"


def test_a_cancel_before_the_start_leaves_a_record_that_the_late_start_finds() -> None:
    from sojourn.actors.events import Sender

    actor = Actor(takes_two)
    sender = Sender("p", "pr", 9)
    actor.deliver(actor.event("cancel", body={"spawn": 5}, sender=sender))
    assert (actor.status, actor.sent_kinds()) == ("cancelled", ["child-done"])
    actor.start(takes_two, sender=Sender("p", "pr", 5))
    assert (actor.status, actor.dead) == ("cancelled", ["no effect: started before"])


@step(registry=R, record="at_once")
async def charge(x: int) -> int:
    return x


@workflow(registry=R)
async def charges() -> int:
    return await charge(1) + await charge(2)


def test_a_result_that_is_recorded_at_once_costs_a_commit_of_its_own_before_the_code_goes_on(
    parked: bool,
) -> None:
    actor = Actor(charges, charge, parked=parked)
    actor.start(charges)
    assert (actor.result, actor.commits) == (3, 1 + 2 * 2)


# context variables

undeclared: ContextVar[str] = ContextVar("undeclared", default="")
declared: ContextVar[str] = ContextVar("declared", default="")


@workflow(registry=R)
async def counts_precisely() -> list[Any]:
    decimal.getcontext().prec = 50
    declared.set("kept")
    await sleep(1)
    return [len(str(decimal.Decimal(1) / 3)), declared.get()]


def test_declared_context_variables_and_the_decimal_precision_move_with_the_actor(parked: bool) -> None:
    declare_variable(declared)
    before = decimal.getcontext().prec
    actor = Actor(counts_precisely, parked=parked)
    actor.start(counts_precisely)
    actor.fire()
    assert actor.result == [52, "kept"]
    assert (decimal.getcontext().prec, declared.get()) == (before, "")


@workflow(registry=R)
async def sets_an_undeclared_variable() -> str:
    undeclared.set("lost")
    try:
        await sleep(1)
    except ContextNotDeclared as error:
        return error.variable
    return ""


def test_an_undeclared_context_variable_is_an_error_at_the_await_that_names_it(parked: bool) -> None:
    actor = Actor(sets_an_undeclared_variable, parked=parked)
    actor.start(sets_an_undeclared_variable)
    assert actor.result == "undeclared"


# async generators


async def ticks(n: int) -> AsyncIterator[int]:
    try:
        for number in range(n):
            await sleep(1)
            yield number
    finally:
        failures.append("generator closed")


@workflow(registry=R)
async def iterates() -> list[int]:
    seen = []
    async for number in ticks(5):
        seen.append(number)
        if number == 2:
            break
    await sleep(1)
    return seen


async def test_the_loop_of_the_node_adopts_no_async_generator_of_a_workflow(parked: bool) -> None:
    adopted: list[Any] = []
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=adopted.append, finalizer=adopted.append)
    try:
        actor = Actor(iterates, parked=parked)
        actor.start(iterates)
        while actor.status == "suspended":
            actor.fire()
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert actor.result == [0, 1, 2]
    assert adopted == []

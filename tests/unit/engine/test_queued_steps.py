"""Queued steps in the engine: what a call commits, which results count, and when the next attempt begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
import pytest
from sojourn.actors.errors import NoSuchQueue, Rejected, StepFailed, StepTimeout
from sojourn.actors.events import Verdict
from sojourn.actors.mapping import map
from sojourn.actors.outcomes import of_exception, of_value
from sojourn.actors.queued import LOST_AT
from sojourn.actors.registry import Registry
from sojourn.actors.retry import Retry
from sojourn.actors.scopes import timeout
from sojourn.actors.step import step
from sojourn.actors.verbs import gather, sleep
from sojourn.actors.workflow import workflow
from sojourn.codecs.record import Outcome, PendingCall, QueuedCall, Status

from tests.kits.engine_kit import Actor

R = Registry()


@dataclass
class Picture:
    name: str
    size: int


class Unlucky(Exception):
    pass


@step(queue="gpu", timeout="10s", queue_timeout="1m", retry=Retry(3, "2s"), raises=[Unlucky], registry=R)
async def resize(picture: Picture) -> Picture:
    raise AssertionError("workers run it")


@step(queue="gpu", timeout="10s", queue_timeout="1m", retry=Retry(2, "1m"), registry=R)
def slow(n: int) -> int:
    raise AssertionError("workers run it")


@step(registry=R)
def plain(n: int) -> int:
    return n


@step(values="pickle", registry=R)
def pickled(n: int) -> int:
    return n


@workflow(registry=R)
async def thumbnail(size: int) -> str:
    made = await resize(Picture("a", size))
    return f"{made.name}:{made.size}"


@workflow(registry=R)
async def caught() -> str:
    try:
        await resize(Picture("a", 1))
    except (Unlucky, StepFailed, StepTimeout, Rejected, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@workflow(registry=R)
async def slept() -> int:
    return await slow(1)


@workflow(registry=R)
async def two() -> int:
    return sum(await gather(slow(1), slow(2)))


@workflow(registry=R)
async def mapped(numbers: list[int]) -> list[int]:
    return await map(slow, numbers, limit=2)


@workflow(registry=R)
async def elsewhere(queue: str) -> str:
    try:
        return str(await plain.options(queue=queue)(3))
    except NoSuchQueue as error:
        return str(error)


@workflow(registry=R)
async def pickles() -> str:
    try:
        return str(await pickled.options(queue="gpu")(3))
    except Exception as error:
        return str(error)


@workflow(registry=R)
async def limited() -> str:
    try:
        async with timeout(5):
            await slow(1)
    except TimeoutError:
        return "out of time"
    return "?"


@workflow(registry=R)
async def mixed() -> int:
    a, b = await gather(slow(1), plain(2))
    await sleep(1)
    return a + b


def started(flow: Any, *args: Any) -> Actor:
    actor = Actor(*R)
    actor.start(flow, *args)
    return actor


def call(actor: Actor, at: int = 0) -> PendingCall:
    assert actor.record is not None
    return actor.record.envelope.calls[at]


def result(
    actor: Actor, outcome: Outcome, of: PendingCall | None = None, *, retryable: bool = True, **other: Any
) -> None:
    assert actor.record is not None
    made = of or call(actor)
    body: dict[str, Any] = {
        "run": actor.record.index.run,
        "op": made.op,
        "attempt": made.attempt,
        "token": made.token,
        "outcome": outcome,
        "size": len(outcome.value),
        "retryable": retryable,
        "retry_after": None,
        "worker": "w1",
    } | other
    actor.deliver(actor.event("done", body=body))


def tasks(actor: Actor) -> list[tuple[str, int | None]]:
    return [(entry.target, entry.op) for entry in actor.sent if entry.kind == "task"]


def test_a_queued_step_is_a_task_in_the_outbox_and_a_durable_time_out() -> None:
    actor = started(thumbnail, 64)

    made = call(actor)
    assert tasks(actor) == [("gpu", made.op)]
    assert actor.executed == []
    assert actor.armed == {made.deadline_timer: 1_000.0 + 60 + 10}
    assert (made.queue, made.attempt, made.runner) == ("gpu", 1, "")
    assert len(made.token) == 32
    assert actor.record is not None
    assert actor.record.index.queued == (QueuedCall(made.op, 1, "gpu", "resize", 1_000.0),)
    assert actor.record.index.wait == "step resize in queue gpu"
    assert actor.record.index.status is Status.SUSPENDED


def test_a_record_with_a_queued_step_is_clean_once_its_task_is_out() -> None:
    actor = started(thumbnail, 64)
    assert actor.record is not None
    everything = frozenset(entry.n for entry in actor.record.envelope.outbox)

    assert not actor.engine.is_clean(actor.record, frozenset())
    assert actor.engine.is_clean(actor.record, everything)
    assert actor.engine.pending_steps(actor.record, 1_000.0) == []


def test_its_result_is_of_the_declared_type_and_disarms_its_time_out() -> None:
    actor = started(thumbnail, 64)

    result(actor, of_value(b'{"name":"a","size":32}'))

    assert actor.result == "a:32"
    assert actor.armed == {}
    assert actor.record is not None
    assert actor.record.index.queued == ()
    assert [(o.kind, o.name, o.attempts, o.outcome) for o in actor.record.index.operations] == [
        ("step in queue gpu", "resize", 1, "ok")
    ]


def test_tokens_differ_from_call_to_call() -> None:
    actor = started(two)

    assert call(actor, 0).token != call(actor, 1).token


@pytest.mark.parametrize("wrong", [{"token": "0" * 32}, {"token": ""}])
def test_a_result_with_another_token_is_a_dead_letter(wrong: dict[str, str]) -> None:
    actor = started(thumbnail, 64)

    result(actor, of_value(b'{"name":"a","size":32}'), **wrong)

    assert actor.dead == ["dead: result of a queued step: its token is not this call's"]
    assert actor.status == "suspended"


def test_a_workers_result_of_a_step_that_is_not_queued_is_a_dead_letter() -> None:
    actor = started(thumbnail, 64)
    assert actor.record is not None
    local = msgspec.structs.replace(call(actor), queue="", deadline_timer=None)
    envelope = msgspec.structs.replace(actor.record.envelope, calls=(local,))
    record = msgspec.structs.replace(actor.record, envelope=envelope)
    event = actor.event("done", body={"run": record.index.run, "op": local.op, "token": local.token})

    assert actor.engine.decide(record, event).verdict is Verdict.DEAD


def test_a_result_of_a_node_is_none_of_a_queued_step() -> None:
    actor = started(thumbnail, 64)
    assert actor.record is not None
    body = {"run": actor.record.index.run, "op": call(actor).op, "attempt": 1, "outcome": b"{}"}

    actor.deliver(actor.event("done", body=body))

    assert actor.dead == ["dead: result of a queued step: it has no token"]


def test_a_result_that_comes_twice_counts_once() -> None:
    actor = started(two)
    first, second = call(actor, 0), call(actor, 1)

    result(actor, of_value(b"1"), first)
    result(actor, of_value(b"100"), first)
    result(actor, of_value(b"2"), second)

    assert actor.result == 3
    assert actor.dead == ["no effect: the operation is over"]


def test_a_result_of_another_run_has_no_effect() -> None:
    actor = started(thumbnail, 64)

    result(actor, of_value(b"1"), run="an earlier one")

    assert actor.dead == ["no effect: of another run"]


def test_a_failure_brings_the_next_attempt_after_a_durable_backoff() -> None:
    actor = started(thumbnail, 64)
    first = call(actor)

    result(actor, of_exception(ValueError("no")))

    second = call(actor)
    assert (second.attempt, second.token, second.queue) == (2, first.token, "gpu")
    assert list(actor.armed) == [second.retry_timer]
    assert tasks(actor) == [("gpu", first.op)]
    assert actor.record is not None
    assert actor.record.index.queued[0].attempt == 2

    actor.fire()

    again = call(actor)
    assert tasks(actor) == [("gpu", first.op)] * 2
    assert list(actor.armed) == [again.deadline_timer]
    result(actor, of_value(b'{"name":"b","size":1}'))
    assert actor.result == "b:1"
    assert actor.armed == {}


def test_retry_later_is_heard() -> None:
    actor = started(thumbnail, 64)

    result(actor, of_exception(ValueError("busy")), retry_after=30.0)

    assert list(actor.armed.values()) == [1_030.0]


def test_a_worker_can_put_a_step_off_no_longer_than_any_sleep() -> None:
    actor = started(thumbnail, 64)

    result(actor, of_exception(ValueError("busy")), retry_after=1e300)

    assert call(actor).retry_at == pytest.approx(1_000.0 + 3653 * 86_400)


def test_retry_later_of_nothing_queues_it_at_once() -> None:
    actor = started(thumbnail, 64)

    result(actor, of_exception(ValueError("busy")), retry_after=0.0)

    assert len(tasks(actor)) == 2
    assert list(actor.armed) == [call(actor).deadline_timer]


def test_the_last_failure_is_raised_at_the_await_with_its_class() -> None:
    actor = started(caught)

    for _ in range(2):
        result(actor, of_exception(Unlucky("bad card"), (Unlucky,)))
        actor.fire()
    result(actor, of_exception(Unlucky("bad card"), (Unlucky,)))

    assert actor.result == "Unlucky: bad card"
    assert len(tasks(actor)) == 3


def test_what_is_not_retryable_is_raised_at_once() -> None:
    actor = started(caught)

    result(actor, of_exception(Rejected("no such card")), retryable=False)

    assert actor.result == "Rejected: no such card"


def test_the_next_attempt_begins_when_the_time_out_fires() -> None:
    actor = started(slept)

    actor.fire()  # the time-out of attempt 1
    assert call(actor).attempt == 2
    actor.fire()  # the backoff
    assert len(tasks(actor)) == 2
    actor.fire()  # the time-out of attempt 2, the last

    assert actor.status == "failed"
    assert "StepTimeout" in actor.error.type


def test_an_older_attempts_result_counts_while_the_operation_is_pending() -> None:
    actor = started(slept)
    first = call(actor)
    actor.fire()
    actor.fire()

    result(actor, of_value(b"7"), first)

    assert actor.result == 7
    assert actor.armed == {}


def test_an_older_attempts_result_counts_while_the_next_one_waits_for_its_backoff() -> None:
    actor = started(slept)
    first = call(actor)
    actor.fire()

    result(actor, of_value(b"7"), first)

    assert actor.result == 7
    assert actor.armed == {}
    assert len(tasks(actor)) == 1


def test_an_older_attempts_failure_does_not_count() -> None:
    actor = started(slept)
    first = call(actor)
    actor.fire()
    actor.fire()

    result(actor, of_exception(ValueError("late")), first)

    assert call(actor).attempt == 2
    assert actor.dead == ["no effect: an earlier attempt failed, and the next one is under way"]
    assert actor.status == "suspended"


def test_an_older_attempts_rejection_counts() -> None:
    actor = started(slept)
    first = call(actor)
    actor.fire()
    actor.fire()

    result(actor, of_exception(Rejected("never")), first, retryable=False)

    assert actor.status == "rejected"


def test_a_result_that_does_not_decode_is_a_failure() -> None:
    actor = started(caught)

    result(actor, of_value(b'{"name":1,"size":"x"}'))

    assert actor.result.startswith("PayloadError: ")


def test_a_result_over_the_limit_is_a_failure() -> None:
    actor = started(caught)

    result(actor, of_value(b'"' + b"x" * 300_000 + b'"'))

    assert "at most 262,144 bytes" in actor.result


def test_an_unknown_queue_is_told_at_the_await_with_the_known_ones() -> None:
    actor = started(elsewhere, "gpus")

    assert actor.result == "no queue 'gpus' in step plain; did you mean 'gpu'?"
    assert tasks(actor) == []


def test_any_step_may_be_sent_to_a_known_queue() -> None:
    actor = started(elsewhere, "gpu")

    result(actor, of_value(b"4"))

    assert actor.result == "4"
    assert actor.executed == []


def test_a_step_that_pickles_cannot_be_queued() -> None:
    actor = started(pickles)

    assert "workers unpickle nothing" in actor.result


def test_cancelling_takes_the_call_and_its_timer_back() -> None:
    actor = started(slept)
    timer = call(actor).deadline_timer
    assert timer in actor.armed

    actor.cancel(reason="stop")

    assert actor.status == "cancelled"
    assert actor.armed == {}
    assert actor.record is not None
    assert actor.record.index.queued == ()


def test_a_time_limit_around_it_takes_it_back() -> None:
    actor = started(limited)

    actor.fire()

    assert actor.result == "out of time"
    assert actor.armed == {}


def test_a_late_result_of_a_cancelled_step_has_no_effect() -> None:
    actor = started(limited)
    made = call(actor)
    assert actor.record is not None
    run = actor.record.index.run
    actor.fire()

    result(actor, of_value(b"1"), made, run=run)

    assert actor.dead == ["no effect: the actor has ended"]


def test_local_and_queued_steps_may_run_side_by_side() -> None:
    actor = started(mixed)
    assert actor.executed == ["plain"]

    result(actor, of_value(b"1"))
    actor.fire()

    assert actor.result == 3


def test_a_held_actor_keeps_its_result_for_later() -> None:
    actor = started(slept)
    actor.deliver(actor.event("pause", body={"reason": "look"}))
    made = call(actor)

    result(actor, of_value(b"5"), made)
    assert actor.status == "suspended"
    actor.deliver(actor.event("resume"))

    assert actor.result == 5


def test_a_task_that_is_not_known_to_be_out_is_dropped_with_its_call() -> None:
    from sojourn.actors.draft import Draft
    from sojourn.actors.events import Facts
    from sojourn.actors.limits import Limits

    actor = started(two)
    assert actor.record is not None
    draft = Draft(actor.record, 1_001.0, Facts(1, "n", "v", "c9", frozenset()), Limits())

    draft.settle(call(actor, 0).op)

    assert [entry.op for entry in draft.outbox if entry.kind == "task"] == [call(actor, 1).op]
    assert draft._carried == 3
    assert [entry.kind for entry in draft.outbox[draft._carried :]] == ["disarm"]


def again(actor: Actor, of: PendingCall | None = None) -> None:
    assert actor.record is not None
    made = of or call(actor)
    body = {
        "run": actor.record.index.run,
        "op": made.op,
        "attempt": made.attempt,
        "token": made.token,
        "again": True,
    }
    actor.deliver(actor.event("done", body=body))


def test_a_step_whose_workers_are_lost_again_and_again_has_failed() -> None:
    actor = started(caught)
    for times in range(1, LOST_AT):
        again(actor)
        assert call(actor).lost == times
    assert actor.status == "suspended"

    again(actor)

    assert actor.result.startswith("StepFailed: step 'resize' failed after 1 attempt; the last one raised ")
    assert f"WorkersLost: step 'resize': {LOST_AT} workers began this attempt" in actor.result
    assert actor.armed == {}


def test_a_lost_worker_before_a_result_changes_nothing() -> None:
    actor = started(thumbnail, 64)
    again(actor)

    result(actor, of_value(b'{"name":"a","size":32}'))

    assert actor.result == "a:32"


def test_lost_workers_are_counted_for_each_attempt() -> None:
    actor = started(slept)
    first = call(actor)
    for _ in range(LOST_AT - 1):
        again(actor)
    actor.fire()
    actor.fire()

    again(actor, first)
    assert (call(actor).attempt, call(actor).lost) == (2, 0)
    again(actor)

    assert call(actor).lost == 1
    assert actor.status == "suspended"


def test_a_forged_word_of_lost_workers_is_a_dead_letter() -> None:
    actor = started(slept)

    again(actor, msgspec.structs.replace(call(actor), token="0" * 32))

    assert actor.dead == ["dead: result of a queued step: its token is not this call's"]
    assert call(actor).lost == 0


def test_a_map_queues_as_many_at_a_time_as_it_may() -> None:
    actor = started(mapped, [5, 6, 7])
    assert [orjson.loads(bytes(one.args)) for one in pending(actor)] == [[[5], {}], [[6], {}]]

    result(actor, of_value(b"50"))
    assert [orjson.loads(bytes(one.args)) for one in pending(actor)] == [[[6], {}], [[7], {}]]
    result(actor, of_value(b"60"))
    result(actor, of_value(b"70"))

    assert actor.result == [50, 60, 70]
    assert len(tasks(actor)) == 3


def pending(actor: Actor) -> tuple[PendingCall, ...]:
    assert actor.record is not None
    return actor.record.envelope.calls

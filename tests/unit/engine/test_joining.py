"""Events that are there together are taken in one turn, and it is as if each had been taken alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from engine_kit import Actor
from sojourn.actors.events import Event, Facts, GoesOn, LocalEvent
from sojourn.actors.joining import joins
from sojourn.actors.registry import Registry
from sojourn.actors.retry import Retry
from sojourn.actors.scopes import TaskGroup
from sojourn.actors.step import step
from sojourn.actors.verbs import checkpoint, gather, race, receive, sleep, spawn
from sojourn.actors.workflow import workflow

R = Registry()
order: list[str] = []


@pytest.fixture(autouse=True)
def empty() -> None:
    order.clear()


@step(registry=R)
async def double(x: int) -> int:
    return 2 * x


@step(registry=R, raises=(ValueError,), retry=Retry(1, "1s"))
async def refuse(x: int) -> int:
    raise ValueError(x)


@step(registry=R, record="at_once")
async def dear(x: int) -> int:
    return x


async def twice(x: int) -> int:
    first = await double(x)
    order.append(f"{x} went on")
    return await double(first)


@workflow(registry=R)
async def wide(n: int) -> list[int]:
    return await gather(*(twice(x) for x in range(n)))


@workflow(registry=R)
async def naps(n: int) -> int:
    await gather(*(sleep(10 + x) for x in range(n)))
    return n


@workflow(registry=R)
async def first_of_two() -> str:
    won, _ = await race(short=sleep(10), long=sleep(20))
    return won


@workflow(registry=R)
async def one_fails() -> str:
    try:
        async with TaskGroup() as group:
            group.create_task(refuse(1))
            group.create_task(double(2))
    except BaseExceptionGroup as failed:
        return f"{len(failed.exceptions)} failed"
    return "ok"


async def go_wrong() -> None:
    await double(1)
    raise KeyError("a defect")


@workflow(registry=R)
async def defective() -> None:
    await gather(double(3), go_wrong(), double(4))


@workflow(registry=R)
async def returns_early() -> int:
    return await race_of_steps()


async def race_of_steps() -> int:
    _, value = await race(a=double(1), b=double(2))
    return value


@workflow(registry=R)
async def child() -> int:
    return 1


@workflow(registry=R)
async def family(n: int) -> int:
    children = await gather(*(spawn(child(), id=f"c{x}") for x in range(n)))
    return sum(await gather(*children))


@workflow(registry=R)
async def mixed() -> str:
    await gather(dear(1), double(2), checkpoint(), receive("word"))
    return "done"


def started(made: Any, *args: Any) -> Actor:
    """An actor whose steps have been called, and not been run."""
    actor = Actor(
        wide,
        naps,
        first_of_two,
        one_fails,
        defective,
        returns_early,
        child,
        family,
        mixed,
        double,
        refuse,
        dear,
        parked=False,
    )
    actor._run_one_step = lambda: False  # type: ignore[method-assign]  # this test says when
    actor.start(made, *args)
    return actor


def together(actor: Actor, events: Sequence[Event | LocalEvent]) -> None:
    """One turn for all of them."""
    assert actor.record is not None
    assert all(actor.engine.joins(actor.record, event) for event in events)
    facts = actor_facts(actor)
    turn = actor.engine.turn(actor.record, actor.live, events[0], actor.now, facts, events[1:])
    actor._committed(turn)


def actor_facts(actor: Actor) -> Facts:
    return Facts(1, "n1/l1", "v1", f"together{actor.commits}", actor._flushed())


def ends(actor: Actor) -> list[LocalEvent]:
    """The ends of all steps that run."""
    runs, actor.running = actor.running, {}
    return [actor.attempt(run) for run in runs.values()]


def timers(actor: Actor) -> list[Event]:
    """All that are armed, fired at the same time."""
    assert actor.record is not None
    armed, actor.armed = actor.armed, {}
    actor.now = max(armed.values())
    run = actor.record.index.run
    return [actor.event("timer", "wake", body={"run": run, "n": n}) for n in armed]


def test_a_round_of_steps_of_many_branches_is_one_commit() -> None:
    actor = started(wide, 50)
    together(actor, ends(actor))
    assert order == [f"{x} went on" for x in range(50)]
    together(actor, ends(actor))
    assert actor.result == [4 * x for x in range(50)]
    assert actor.commits == 3


def test_what_is_taken_together_leaves_the_record_that_one_by_one_leaves() -> None:
    one_by_one, all_at_once = started(wide, 20), started(wide, 20)
    for event in ends(one_by_one):
        one_by_one._turn(event, True)
    together(all_at_once, ends(all_at_once))
    assert one_by_one.record is not None
    assert all_at_once.record is not None
    first, second = one_by_one.record.envelope, all_at_once.record.envelope
    assert (first.waits, first.calls, first.next_op) == (second.waits, second.calls, second.next_op)
    assert one_by_one.record.index.pin == all_at_once.record.index.pin
    assert one_by_one.record.index.steps == all_at_once.record.index.steps == 20


def test_timers_that_fired_together_are_all_consumed() -> None:
    actor = started(naps, 30)
    fired = timers(actor)
    together(actor, fired)
    assert actor.result == 30
    assert actor.record is not None
    assert {event.origin for event in fired} <= actor.record.envelope.consumed
    assert actor.record.envelope.lease == fired[-1].origin


def test_an_event_that_those_before_it_have_made_void_is_not_consumed() -> None:
    """The long sleep is cancelled when the short one has ended: its timer is for `decide` to judge."""
    actor = started(first_of_two)
    short, long = timers(actor)
    together(actor, [short, long])
    assert actor.result == "short"
    assert actor.record is not None
    assert short.origin in actor.record.envelope.consumed
    assert long.origin not in actor.record.envelope.consumed


def test_a_result_whose_branch_was_cancelled_by_one_before_it_is_dropped() -> None:
    actor = started(one_fails)
    together(actor, ends(actor))
    assert actor.result == "1 failed"


def test_what_comes_after_the_end_of_the_code_is_left() -> None:
    actor = started(returns_early)
    together(actor, ends(actor))
    assert actor.result == 2


def test_a_defect_keeps_the_results_of_all_steps_and_consumes_no_event() -> None:
    actor = started(defective)
    events = ends(actor)
    together(actor, events)
    assert actor.hold == "quarantined"
    assert actor.record is not None
    assert {event.op for event in events} == set(actor.record.envelope.results)
    assert not actor.record.envelope.calls


def test_spawns_and_ends_of_children_are_a_commit_each_round() -> None:
    actor = started(family, 40)
    before = actor.commits
    assert actor.record is not None
    assert len(actor.record.envelope.children) == 40
    run = actor.record.index.run
    body = {"run": run, "child_run": "c", "outcome": b'{"kind":"value","value":1}', "status": "completed"}
    done = [
        actor.event("child-done", "wake", body={**body, "child": each.id, "op": each.op})
        for each in actor.children()
    ]
    together(actor, done)
    assert actor.result == 40
    assert actor.commits == before + 1
    assert [entry.target for entry in actor.sent if entry.kind == "seal"] == [f"c{x}" for x in range(40)]


def test_mail_and_what_is_recorded_at_once_take_a_turn_each() -> None:
    actor = started(mixed)
    assert actor.record is not None
    runs = {run.call.step: run for run in actor.running.values()}
    assert not actor.engine.joins(actor.record, actor.attempt(runs["dear"]))
    assert actor.engine.joins(actor.record, actor.attempt(runs["double"]))
    assert not joins(actor.record, actor.event("mail", "mail", channel="word", payload=b"1"))
    assert not joins(actor.record, actor.event("cancel", body={}))


def test_a_start_is_not_joined_by_anything() -> None:
    actor = started(mixed)
    assert actor.record is not None
    admitted = actor.engine.admit(
        None, actor.event("start", body={"workflow": "mixed", "args": b"[[],{}]"}), 1.0, actor_facts(actor)
    )
    (op,) = (wait.op for wait in admitted.record.envelope.waits)
    assert not joins(admitted.record, GoesOn(op))


def test_branches_go_on_in_the_order_of_their_events() -> None:
    actor = started(wide, 3)
    together(actor, ends(actor)[::-1])
    assert order == ["2 went on", "1 went on", "0 went on"]

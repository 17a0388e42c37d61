"""Legal Python that nobody should write in a workflow: one actor is told or held for it, and nothing else suffers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_kit import Actor
from sojourn.actors.branches import Task
from sojourn.actors.errors import Deadlock, LimitExceeded, Rejected
from sojourn.actors.outcomes import of_exception, rejected
from sojourn.actors.registry import Registry
from sojourn.actors.scopes import Lock, TaskGroup, timeout
from sojourn.actors.step import step
from sojourn.actors.verbs import create_task, gather, race, receive, send, sleep, spawn, stage, tag, wait
from sojourn.actors.workflow import Workflow, workflow
from sojourn.codecs.errors import PinNotSatisfied
from sojourn.codecs.record import Outcome

R = Registry()


@pytest.fixture(params=[False, True], ids=["hot", "parked"])
def parked(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def begun(flow: Workflow[..., Any], parked: bool = True, fires: int = 0) -> Actor:
    actor = Actor(flow, child, echo, parked=parked)
    actor.start(flow)
    for _ in range(fires):
        actor.fire()
    return actor


@step(registry=R)
def echo(value: int) -> int:
    return value


@workflow(registry=R)
async def child() -> int:
    return 1


async def later(value: int, delay: int) -> int:
    await sleep(delay)
    return value


async def fails(delay: int) -> int:
    if delay:
        await sleep(delay)
    raise ValueError("no")


# branches


@workflow(registry=R)
async def second_gather() -> list[int]:
    with contextlib.suppress(ValueError):
        await gather(fails(0), fails(5))
    return await gather(later(1, 10), later(2, 10))


def test_a_branch_that_is_not_waited_for_any_more_does_not_end_another_wait(parked: bool) -> None:
    assert begun(second_gather, parked, 3).result == [1, 2]


@workflow(registry=R)
async def same_awaitable_twice() -> list[int]:
    coroutine, call = later(7, 1), echo(3)
    return [*await gather(coroutine, coroutine), *await gather(call, call)]


def test_one_awaitable_given_twice_runs_once(parked: bool) -> None:
    actor = begun(same_awaitable_twice, parked, 1)
    assert (actor.result, actor.executed) == ([7, 7, 3, 3], ["echo"])


@workflow(registry=R)
async def coroutine_of_two_tasks() -> str:
    coroutine = later(7, 5)
    first = create_task(coroutine)
    try:
        create_task(coroutine)
    except RuntimeError as refused:
        return f"{await first} {refused}"
    return "not refused"


@workflow(registry=R)
async def awaited_before_its_task() -> str:
    coroutine = later(7, 5)
    task = create_task(coroutine)
    value = await coroutine
    try:
        await task
    except RuntimeError as refused:
        return f"{value} {refused}"
    return "not refused"


@pytest.mark.parametrize("flow", [coroutine_of_two_tasks, awaited_before_its_task])
def test_a_coroutine_is_run_by_one_branch_only(flow: Workflow[[], str], parked: bool) -> None:
    words = "7 later is awaited elsewhere, or was before; call the function again for another run"
    assert begun(flow, parked, 1).result == words


@workflow(registry=R)
async def lock_as_a_branch() -> list[bool]:
    lock = Lock()
    return await gather(lock.acquire(), Lock().acquire())


def test_a_lock_that_is_free_can_be_taken_by_a_branch(parked: bool) -> None:
    assert begun(lock_as_a_branch, parked).result == [True, True]


class WithoutSend:
    def __await__(self) -> Iterator[int]:
        return iter([1])


class RaisesAtOnce:
    def __await__(self) -> Iterator[int]:
        raise KeyError("at once")


@workflow(registry=R)
async def forks_nonsense() -> list[str]:
    told = []
    for bad in (WithoutSend(), RaisesAtOnce(), 5):
        try:
            await gather(later(1, 1), bad)  # type: ignore[call-overload]  # nonsense on purpose
        except (TypeError, KeyError) as error:
            told.append(type(error).__name__)
    await sleep(1)
    return told


def test_what_cannot_be_forked_is_told_at_the_await_and_its_companions_never_begin(parked: bool) -> None:
    actor = begun(forks_nonsense, parked)
    assert len(actor.armed) == 1
    actor.fire()
    assert actor.result == ["TypeError", "KeyError", "TypeError"]


@workflow(registry=R)
async def cancelled_before_it_began() -> list[str]:
    ran: list[str] = []

    async def late() -> None:
        ran.append("began")
        await sleep(1)

    task = create_task(late())
    task.cancel()
    await wait(task)
    return [*ran, "cancelled" if task.cancelled() else "not"]


def test_a_task_that_is_cancelled_before_it_began_never_runs(parked: bool) -> None:
    assert begun(cancelled_before_it_began, parked).result == ["cancelled"]


@workflow(registry=R)
async def waits_again_and_again() -> int:
    task = create_task(later(1, 1_000))
    for _ in range(5):
        try:
            async with timeout(1):
                await wait(task)
        except TimeoutError:
            pass
    return len(task._waiters)


def test_waiting_for_one_task_many_times_leaves_nothing_behind(parked: bool) -> None:
    assert begun(waits_again_and_again, parked, 5).result <= 1


# groups


@workflow(registry=R)
async def group_after_its_end() -> str:
    async with TaskGroup() as group:
        pass
    try:
        group.create_task(fails(0))
    except RuntimeError as refused:
        await sleep(1)
        return str(refused)
    return "not refused"


@workflow(registry=R)
async def group_that_is_cancelled() -> str:
    told = ""
    try:
        async with TaskGroup() as group:
            group.create_task(fails(0))
            try:
                await sleep(10)
            finally:
                try:
                    group.create_task(later(1, 1_000))
                except RuntimeError as refused:
                    told = str(refused)
    except* ValueError:
        pass
    return told


def test_a_group_takes_no_task_once_it_is_over(parked: bool) -> None:
    assert begun(group_after_its_end, parked, 1).result.endswith("works inside its `async with` block")
    assert begun(group_that_is_cancelled, parked).result.endswith("takes no more tasks")


@workflow(registry=R)
async def long_lived_group() -> int:
    async with TaskGroup() as group:
        for number in range(5):
            task = group.create_task(later(number, 1))
            await wait(task)
        return len(group.tasks)


def test_a_group_keeps_no_task_that_has_ended(parked: bool) -> None:
    assert begun(long_lived_group, parked, 5).result == 0


# deadlocks


async def both(first: Lock, second: Lock) -> None:
    async with first:
        await sleep(1)
        async with second:
            pass


@workflow(registry=R)
async def two_locks() -> str:
    one, two = Lock(), Lock()
    try:
        await gather(both(one, two), both(two, one))
    except Deadlock as error:
        return ", ".join(error.places)
    return "no"


def test_branches_that_wait_for_each_others_lock_are_told_where(parked: bool) -> None:
    places = begun(two_locks, parked, 2).result.split(", ")
    assert [place.split(" line")[0] for place in places] == ["two_locks", "both", "both"]


@workflow(registry=R)
async def awaits_itself() -> str:
    box: list[Task[None]] = []

    async def me() -> None:
        await sleep(1)
        await box[0]

    box.append(create_task(me()))
    try:
        await box[0]
    except RuntimeError as error:
        return str(error)
    return "no"


@workflow(registry=R)
async def await_each_other() -> str:
    box: list[Task[None]] = []

    async def other(number: int) -> None:
        await sleep(1)
        await box[number]

    box += [create_task(other(1)), create_task(other(0))]
    try:
        await gather(*box)
    except Deadlock:
        return "told"
    return "no"


def test_tasks_that_await_each_other_are_told(parked: bool) -> None:
    assert begun(awaits_itself, parked, 1).result == "a task cannot await itself"
    assert begun(await_each_other, parked, 2).result == "told"


@workflow(registry=R)
async def circle_beside_a_sleep() -> None:
    box: list[Task[None]] = []

    async def other(number: int) -> None:
        await box[number]

    box += [create_task(other(1)), create_task(other(0))]
    await gather(*box, sleep(1_000))


def test_a_circle_of_tasks_can_be_cancelled(parked: bool) -> None:
    actor = begun(circle_beside_a_sleep, parked)
    actor.cancel()
    assert actor.status == "cancelled"


# what is refused leaves nothing behind


@workflow(registry=R, channels=["x"])
async def too_long() -> list[str]:
    told = []
    for wrong in (lambda: receive("x", timeout="2000w"), lambda: sleep("2000w"), lambda: enter("2000w")):
        try:
            await wrong()
        except LimitExceeded as error:
            told.append(error.limit)
    await sleep(1)
    return told


async def enter(limit: str) -> None:
    async with timeout(limit):
        pass


def test_a_wait_over_the_limit_leaves_no_wait_behind(parked: bool) -> None:
    actor = begun(too_long, parked)
    assert actor.record is not None
    assert [wait.kind for wait in actor.record.envelope.waits] == ["sleep"]
    actor.signal("x", 1)
    actor.fire()
    assert actor.result == ["sleep_seconds"] * 3


@workflow(registry=R)
async def bad_names() -> list[str]:
    told = []
    for wrong in (lambda: send("no such.actor", "x"), lambda: spawn(child(), id="a.b *>")):
        try:
            await wrong()
        except ValueError as error:
            told.append(type(error).__name__)
    return told


def test_a_name_that_no_subject_can_have_is_told_at_the_await(parked: bool) -> None:
    actor = begun(bad_names, parked)
    assert (actor.result, actor.sent) == (["InvalidName"] * 2, [])


@workflow(registry=R)
async def bad_labels() -> int:
    refused = 0
    for say in (stage, tag):
        try:
            say("\ud800")
        except ValueError:
            refused += 1
    return refused


def test_a_label_without_utf8_is_refused() -> None:
    assert begun(bad_labels).result == 2


# loops without end


@workflow(registry=R)
async def swallows_everything() -> None:
    while True:
        with contextlib.suppress(Exception):
            await sleep(0)


def test_a_turn_without_end_is_ended_although_the_code_swallows_being_told() -> None:
    actor = begun(swallows_everything)
    assert (actor.hold, "EndlessTurn" in actor.record.envelope.hold.reason) == ("quarantined", True)


# exceptions


class Nasty(Exception):
    """Raises in whatever is asked of it."""

    def __str__(self) -> str:
        raise SystemExit("in __str__")

    def with_traceback(self, traceback: Any) -> Any:
        raise RuntimeError("in with_traceback")


class Secretive(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt(name)


def noted(notes: Any) -> Exception:
    error = KeyError("k")
    error.__notes__ = notes
    return error


def nested(depth: int) -> Exception:
    error: Exception = ValueError("deep")
    for _ in range(depth):
        error = ExceptionGroup("g", [error])
    return error


RAISED: dict[str, Callable[[], BaseException]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": GeneratorExit,
    "asyncio": asyncio.CancelledError,
    "nasty": Nasty,
    "secretive": Secretive,
    "notes": lambda: noted(5),
    "note": lambda: noted([Nasty()]),
    "deep": lambda: nested(2_000),
}


@workflow(registry=R)
async def raises(which: str) -> None:
    raise RAISED[which]()


@workflow(registry=R, on_defect="fail")
async def raises_and_fails(which: str) -> None:
    raise RAISED[which]()


@pytest.mark.parametrize("which", RAISED)
def test_whatever_a_workflow_raises_only_that_actor_is_held(which: str) -> None:
    actor = Actor(raises)
    actor.start(raises, which)
    assert actor.hold == "quarantined"


@pytest.mark.parametrize("which", sorted(RAISED.keys() - {"secretive"}))
def test_whatever_a_workflow_raises_ends_it_when_it_says_so(which: str) -> None:
    actor = Actor(raises_and_fails)
    actor.start(raises_and_fails, which)
    assert actor.status == "failed"


class Quits:
    """Its state is asked for when the frame is stored."""

    def __init__(self, how: type[BaseException]) -> None:
        self.how = how

    def __getstate__(self) -> object:
        raise self.how("while it was stored")


class QuitsLater:
    def __getstate__(self) -> dict[str, int]:
        return {"x": 1}

    def __setstate__(self, state: object) -> None:
        raise SystemExit("while it was restored")


@workflow(registry=R)
async def holds(how: str) -> str:
    thing = Quits({"exit": SystemExit, "interrupt": KeyboardInterrupt}[how])
    await sleep(1)
    return repr(thing)


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_an_object_that_quits_while_it_is_stored_holds_its_actor_only(how: str) -> None:
    actor = Actor(holds)
    actor.start(holds, how)
    assert actor.hold == "quarantined"


@workflow(registry=R)
async def cleanup_cannot_be_stored() -> None:
    thing = []
    try:
        await sleep(10)
    finally:
        thing.append(Quits(SystemExit))
        await sleep(1)
        print(thing)


def test_a_cancel_ends_an_actor_whose_cleanup_breaks_the_engine() -> None:
    actor = begun(cleanup_cannot_be_stored)
    actor.cancel()
    assert (actor.status, "SystemExit" in actor.error.message) == ("terminated", True)


@workflow(registry=R)
async def holds_later() -> str:
    thing = QuitsLater()
    await sleep(1)
    return repr(thing)


def test_an_object_that_quits_while_it_is_restored_means_that_the_frame_cannot_be_resumed() -> None:
    actor = begun(holds_later)
    with pytest.raises(PinNotSatisfied, match="SystemExit"):
        actor.fire()


class Silent:
    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


@workflow(registry=R)
async def rejects_with_anything() -> None:
    raise Rejected("m" * 5_000_000, big="y" * 300_000, number=10**400, odd=Silent(), nan=float("nan"), ok=1)


def test_a_large_integer_among_the_facts_stays_itself() -> None:
    back = rejected(of_exception(Rejected("no", number=10**400)))
    assert back.number == 10**400


def test_the_facts_of_a_rejection_cross_as_far_as_they_can(parked: bool) -> None:
    actor = begun(rejects_with_anything, parked)
    assert actor.status == "rejected"
    facts = json.loads(bytes(actor.error.data))
    assert facts == {
        "big": "<too large: 300002 bytes>",
        "number": 10**400,
        "odd": "<Silent>",
        "nan": "nan",
        "ok": 1,
    }
    assert len(actor.error.message) <= 4_096


# children


@workflow(registry=R)
async def joins() -> str:
    task = await spawn(child(), id="c")
    try:
        return str(await task)
    except ValueError as error:
        return type(error).__name__


def test_a_childs_result_that_does_not_fit_is_told_at_the_join(parked: bool) -> None:
    actor = begun(joins, parked)
    actor.child_done("c", Outcome("value", b'"text"'))
    assert actor.result == "PayloadError"


@workflow(registry=R)
async def races() -> tuple[str, int]:
    coroutine = later(4, 1)
    return await race(a=coroutine, b=coroutine)


def test_one_awaitable_under_two_names_wins_under_the_first(parked: bool) -> None:
    assert begun(races, parked, 1).result == ["a", 4]


@workflow(registry=R)
async def misuses() -> list[str]:
    told = []
    coroutine = later(1, 1)
    for misuse in (lambda: Lock().release(), lambda: wait(coroutine)):
        try:
            misuse()
        except (RuntimeError, TypeError) as error:
            told.append(str(error).partition(":")[0])
    coroutine.close()
    return told


def test_a_lock_that_is_not_held_and_a_wait_for_no_task_are_refused() -> None:
    expected = ["release() of a lock that is not held", "wait() takes tasks"]
    assert begun(misuses).result == expected

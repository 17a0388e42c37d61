"""The testing kit: a virtual clock, fakes, moves and crashes at every suspension."""

from __future__ import annotations

import gc
import socket
from datetime import UTC, datetime
from typing import Any

import pytest

from sojourn import (
    Cancelled,
    Channel,
    ReceiveTimeout,
    Registry,
    Rejected,
    Retry,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowQuarantined,
    current,
    gather,
    publish_state,
    send,
    sleep,
    spawn,
    stage,
    step,
    timeout,
    workflow,
)
from sojourn.testing import World

R = Registry()
approval = Channel("approval", bool)
ran: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


@pytest.fixture(params=["moved", "hot", "crashing"])
def world(request: pytest.FixtureRequest) -> World:
    return World(R, move=request.param != "hot", crash=request.param == "crashing")


@step(registry=R, retry=Retry(3, "1m"))
async def check(user: str) -> bool:
    ran.append(user)
    return user != "mallory"


@step(registry=R)
def provision(user: str) -> str:
    return f"account of {user}"


@workflow(registry=R)
async def onboard(user: str) -> str:
    stage("checking")
    if not await check(user):
        raise Rejected("checks failed", user=user)
    publish_state({"checked": True})
    if not await approval.receive(timeout="3d"):
        raise Rejected("not approved")
    return await provision(user)


async def test_a_workflow_runs_waits_and_ends(world: World) -> None:
    ada = await world.start(onboard("ada"))
    assert (ada.status, ada.stage, ada.state()) == ("suspended", "checking", {"checked": True})
    assert ada.wait == "receive approval until 2026-01-04T00:00:00+00:00"
    await ada.signal(approval, True)
    assert ada.result() == "account of ada"


async def test_the_clock_passes_timers_in_order(world: World) -> None:
    ada = await world.start(onboard("ada"))
    await world.advance("2d")
    assert ada.status == "suspended"
    await world.advance("1d")
    assert world.now == datetime(2026, 1, 4, tzinfo=UTC)
    with pytest.raises(WorkflowFailed) as caught:
        ada.result()
    assert isinstance(caught.value, WorkflowFailed)
    assert ReceiveTimeout.__name__ in caught.value.type


async def test_a_rejection_is_raised_as_itself(world: World) -> None:
    mallory = await world.start(onboard("mallory"))
    with pytest.raises(Rejected, match="checks failed") as caught:
        mallory.result()
    assert caught.value.user == "mallory"


async def test_steps_can_be_replaced_and_are_retried_under_the_virtual_clock() -> None:
    answers = iter([OSError("not yet"), OSError("not yet"), True])

    async def fake(user: str) -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    world = World(R, steps={check: fake, "provision": lambda user: "fake"})
    ada = await world.start(onboard("ada"))
    assert len(ada.executed) == 1
    await world.advance("10m")
    assert [(e.step, e.attempt, e.outcome) for e in ada.executed] == [
        ("check", 1, "error"),
        ("check", 2, "error"),
        ("check", 3, "ok"),
    ]
    await ada.signal("approval", True)
    assert ada.result() == "fake"


async def test_crashes_repeat_steps_and_change_nothing_else() -> None:
    world = World(R, crash=True)
    ada = await world.start(onboard("ada"))
    assert ran == ["ada", "ada"]
    await ada.signal(approval, True)
    assert ada.result() == "account of ada"


@workflow(registry=R)
async def child(n: int) -> int:
    await sleep(n)
    return n


@workflow(registry=R)
async def parent() -> list[int]:
    first, second = await spawn(child(5), id="five"), await spawn(child(7))
    return [*await gather(first, second)]


async def test_children_run_in_the_same_world(world: World) -> None:
    rehearsal = await world.start(parent())
    assert [each.wait[:5] for each in rehearsal.children] == ["sleep", "sleep"]
    await world.advance(10)
    assert rehearsal.result() == [5, 7]
    assert world.rehearsal("five").result() == 5
    assert all(each.record.index.sealed for each in rehearsal.children)


async def test_cancelling_reaches_the_children(world: World) -> None:
    rehearsal = await world.start(parent())
    await rehearsal.cancel("enough")
    with pytest.raises(WorkflowCancelled):
        rehearsal.result()
    assert {each.status for each in rehearsal.children} == {"cancelled"}


@workflow(registry=R)
async def holds_a_socket() -> None:
    conn = socket.socket()
    try:
        await sleep(1)
    finally:
        conn.close()


async def test_a_value_that_cannot_be_stored_fails_with_the_error_of_a_node() -> None:
    rehearsal = await World(R).start(holds_a_socket())
    with pytest.raises(WorkflowQuarantined, match=r"local `conn` \(`socket.socket`\) in `holds_a_socket`"):
        rehearsal.result()


@workflow(registry=R)
async def cleans_up() -> None:
    try:
        async with timeout("1h"):
            await approval.receive()
    except Cancelled:
        await check("cleanup")
        raise


async def test_cleanup_runs_once_per_cancel() -> None:
    world = World(R)
    rehearsal = await world.start(cleans_up())
    await rehearsal.cancel()
    assert rehearsal.status == "cancelled"
    assert ran == ["cleanup"]


async def test_wrong_mail_is_a_dead_letter_that_says_why(world: World) -> None:
    ada = await world.start(onboard("ada"))
    await world.mail(ada.id, "aproval", b"true")
    await world.mail(ada.id, "approval", b"{")
    await world.mail(ada.id, "approval", b'"yes"')
    assert [reason.partition(":")[0] for reason in ada.dead] == ["no such channel", "payload", "payload"]
    assert ada.status == "suspended"


async def test_an_unknown_replaced_step_is_an_error_at_once() -> None:
    with pytest.raises(Exception, match="did you mean 'check'"):
        World(R, steps={"chek": lambda: None})


@workflow(registry=R)
async def tells_time() -> list[Any]:
    first = current.actor.now
    await sleep("1h")
    return [str(first), str(current.actor.now)]


async def test_the_workflows_clock_is_the_worlds() -> None:
    world = World(R)
    rehearsal = await world.start(tells_time())
    assert await world.advance_to_next()
    assert rehearsal.result() == ["2026-01-01 00:00:00+00:00", "2026-01-01 01:00:00+00:00"]
    assert not await world.advance_to_next()


@workflow(registry=R)
async def writes_to(other: str) -> str:
    await send(other, "no-such-channel", 1)
    await sleep("1d")
    return "done"


async def test_a_sender_is_told_of_mail_that_its_receiver_cannot_take(world: World) -> None:
    ada = await world.start(onboard("ada"), id="ada")
    writer = await world.start(writes_to("ada"))
    assert ada.dead[0].startswith("no such channel")
    assert writer.warnings == [
        "mail to ada on no-such-channel was not taken and is among the dead letters: " + ada.dead[0]
    ]
    await world.advance("2d")
    assert writer.result() == "done"


@step(registry=R)
async def add(a: int, b: int) -> int:
    return a + b


questions = Channel("questions", dict[str, int])


@workflow(registry=R)
async def mistaken(mistake: str) -> int:
    number: Any = "two"
    match mistake:
        case "argument":
            return await add(1, number)
        case "result":
            return number  # type: ignore[no-any-return]  # the mistake
        case "not awaited":
            return add(1, 2)  # type: ignore[return-value]  # the mistake
        case "mail":
            await send("another", questions, {"n": number})
    return 0


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("argument", "arguments of add: expected int, received str at $.args[1]"),
        ("result", "result of workflow mistaken: expected int, received str at $"),
        (
            "not awaited",
            "result of workflow mistaken: expected data, received an object of StepCall, which is to be awaited at $",
        ),
        ("mail", "mail on questions: expected int, received str at $[...]"),
    ],
)
@pytest.mark.filterwarnings("ignore::sojourn.NeverAwaited")
async def test_a_value_that_does_not_cross_is_told_with_the_call_it_was_meant_for(
    mistake: str, text: str
) -> None:
    held = await World(R).start(mistaken(mistake))
    with pytest.raises(WorkflowQuarantined) as told:
        held.result()
    assert told.value.message.endswith(text)
    gc.collect()  # the call that nobody awaited warns here, where it is expected


async def test_the_report_of_a_test_shows_the_line_of_a_defect() -> None:
    held = await World(R).start(mistaken("argument"))
    with pytest.raises(WorkflowQuarantined) as told:
        held.result()
    assert "return await add(1, number)" in "".join(told.value.__notes__)

"""PROTOCOL 9, the rows about the owner: it dies at a named point, another takes the partition over, nothing is lost or doubled."""

from __future__ import annotations

from collections import Counter

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.scopes import timeout
from sojourn.actors.step import step
from sojourn.actors.verbs import send, sleep, spawn
from sojourn.actors.workflow import workflow

from .conftest import Crash, MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)
report = Channel("report", int)
ran: Counter[str] = Counter()
"""How often each step was started, by argument; tests use ids of their own."""


@step(registry=REGISTRY)
async def double(actor: str, n: int) -> int:
    ran[f"double {actor}"] += 1
    return 2 * n


@step(registry=REGISTRY)
def triple(actor: str, n: int) -> int:
    ran[f"triple {actor}"] += 1
    return 3 * n


@workflow(registry=REGISTRY)
async def helper(parent: str, n: int) -> int:
    await send(parent, report, n)
    return await triple(f"{parent}-helper", n)


@workflow(registry=REGISTRY)
async def errand(me: str, n: int) -> list[int]:
    first = await double(me, n)
    child = await spawn(helper(me, first), id=f"{me}-helper")
    notes = [await note.receive(), await note.receive()]
    reported = await report.receive()
    await sleep(0.1)
    notes.append(await note.receive())
    async with timeout(60):  # its timer is disarmed by the terminal commit, which is no seal then
        return [first, reported, await child, *notes, await triple(me, 1)]


POINTS = [
    (point, count)
    for point, counts in {
        "before_commit": (1, 2, 4, 9),
        "after_commit": (1, 2, 4, 9),
        "before_flush": (1, 2, 3),
        "between_flushes": (1, 2, 3),
        "after_flush": (1, 2, 3),
        "before_ack": (1, 3, 5),
        "after_ack": (1, 3, 5),
        "after_terminal_commit": (1, 2),
        "before_seal": (1,),
        "after_seal": (1,),
        "in_step": (1, 2, 3),
        "step_result": (1, 2, 3),
    }.items()
    for count in counts
]


@pytest.mark.parametrize(("point", "count"), POINTS, ids=lambda value: str(value))
async def test_the_owner_dies_and_all_goes_on_elsewhere(owners: MakeOwner, point: str, count: int) -> None:
    me = f"errand-{point}-{count}"
    crash = Crash(point, count)
    first = await owners(fault=crash)
    for value in (1, 2, 3):
        await first.signal(me, "note", value)
    await first.start(me, "errand", me, 5)
    await crash.happened.wait()
    second = await owners(taken_over=True)
    assert completed(await second.until_ended(me)) == [10, 10, 30, 1, 2, 3, 3]
    await second.until_quiet()
    assert second.lost == []
    for name in (f"double {me}", f"triple {me}", f"triple {me}-helper"):
        assert 1 <= ran[name] <= 2
    assert sum(ran[name] for name in (f"double {me}", f"triple {me}", f"triple {me}-helper")) <= 4
    for actor in (me, f"{me}-helper"):
        record = await second.record(actor)
        assert record is not None
        assert record.index.sealed
    assert await second.messages("held") == 0
    assert await second.messages("dead") == 0

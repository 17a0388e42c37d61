"""Events short of a commit: moved to HELD, without effect, dead; and owners that come and go meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import orjson
import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import receive
from sojourn.actors.workflow import workflow
from sojourn.broker.seam import Publish
from sojourn.cluster.hosting.commits import Overtaken

from .conftest import Crash, MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)
other = Channel("other", int)
ran: Counter[str] = Counter()
gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
started: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@step(registry=REGISTRY)
async def wait_for_gate(name: str) -> str:
    ran[name] += 1
    started[name].set()
    await gates[name].wait()
    return name


@workflow(registry=REGISTRY)
async def collect(n: int) -> list[int]:
    return [await note.receive() for _ in range(n)]


@workflow(registry=REGISTRY)
async def either(n: int) -> list[int]:
    return [await receive(note, other) for _ in range(n)]


@workflow(registry=REGISTRY)
async def gated(name: str) -> str:
    return await wait_for_gate(name)


@workflow(registry=REGISTRY)
async def gated_then_collect(name: str, n: int) -> list[int]:
    await wait_for_gate(name)
    return [await note.receive() for _ in range(n)]


async def test_mail_of_a_paused_actor_moves_to_held_and_is_consumed_in_order_after_resume(
    owners: MakeOwner,
) -> None:
    owner = await owners()
    await owner.start("p1", "collect", 20)
    await owner.until_waiting("p1", "receive")
    await owner.control("p1", "pause", reason="look")
    await owner.until("p1", lambda record: record.index.hold == "paused")
    for n in range(20):
        await owner.signal("p1", "note", n)
    await owner.until_messages("held", 20)
    await owner.until_messages("mail", 0)
    await owner.control("p1", "resume")
    assert completed(await owner.until_ended("p1")) == list(range(20))
    await owner.until_quiet()
    await owner.until_messages("held", 0)


@pytest.mark.parametrize("point", ["before_move", "move_stored"])
async def test_the_owner_dies_while_it_moves_events(owners: MakeOwner, point: str) -> None:
    crash = Crash(point, 1)
    first = await owners(fault=crash)
    actor = f"m-{point}"
    await first.start(actor, "either", 6)
    await first.until_waiting(actor, "receive")
    await first.control(actor, "pause")
    await first.until(actor, lambda record: record.index.hold == "paused")
    for n in range(6):
        await first.signal(actor, ("note", "other")[n % 2], n)
    await crash.happened.wait()
    second = await owners(taken_over=True)
    await second.control(actor, "resume")
    assert completed(await second.until_ended(actor)) == list(range(6))
    await second.until_quiet()
    await second.until_messages("held", 0)
    assert await second.messages("dead") == 0


async def test_after_an_attach_held_mail_comes_before_newer_mail(owners: MakeOwner) -> None:
    first = await owners()
    await first.start("order", "either", 40)
    await first.until_waiting("order", "receive")
    await first.control("order", "pause")
    await first.until("order", lambda record: record.index.hold == "paused")
    for n in range(30):
        await first.signal("order", ("note", "other")[n % 2], n)
    await first.until_messages("held", 30)
    await first.until_quiet()
    first.die()
    await first.control("order", "resume")
    for n in range(30, 40):
        await first.signal("order", ("note", "other")[n % 2], n)
    second = await owners()
    assert completed(await second.until_ended("order")) == list(range(40))
    await second.until_quiet()
    await second.until_messages("held", 0)


async def test_a_dead_letter_tells_why(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("d1", "collect", 1)
    await owner.until_waiting("d1", "receive")
    await owner.signal("d1", "nosuch", 1)
    await owner.broker.publish(Publish(owner.subjects.mail("d1", "note"), b"{not json"))
    await owner.broker.publish(Publish(owner.subjects.mail("d1", "note"), b'"a string"'))
    await owner.broker.publish(Publish(f"sj.{owner.subjects.namespace}.mail.d1.b\x01d", b"1"))
    await owner.broker.publish(Publish(owner.subjects.ctl("d1", "explode"), b"{}"))
    await owner.until_messages("dead", 5)
    await owner.signal("d1", "note", 7)
    assert completed(await owner.until_ended("d1")) == [7]
    await owner.signal("d1", "note", 8)
    await owner.until_messages("dead", 6)
    await owner.until_quiet()
    letters = [(letter.reason, letter.subject) async for letter in owner.services.dead.list()]
    assert len({subject for _, subject in letters}) >= 4
    assert all(reason for reason, _ in letters)


async def test_mail_before_the_start_is_kept_and_consumed(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.signal("early", "note", 3)
    await owner.until_messages("mail", 1)
    await owner.start("early", "collect", 1)
    assert completed(await owner.until_ended("early")) == [3]


async def test_what_an_ending_actor_has_in_held_goes_to_the_dead_letters(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("sweep", "collect", 1)
    await owner.until_waiting("sweep", "receive")
    await owner.control("sweep", "pause")
    await owner.until("sweep", lambda record: record.index.hold == "paused")
    for n in range(100):
        await owner.signal("sweep", "note", n)
    await owner.until_messages("held", 100)
    await owner.control("sweep", "terminate", reason="enough")
    record = await owner.until_ended("sweep")
    assert record.index.status == "terminated"
    await owner.until_messages("held", 0)
    assert await owner.messages("dead") == 100
    await owner.until_quiet()


async def test_a_running_step_is_not_repeated_by_a_planned_move(owners: MakeOwner) -> None:
    first = await owners()
    await first.start("g1", "gated", "move")
    await started["move"].wait()
    await first.partition.release(first.services.monotonic() + 5)
    second = await owners()
    await second.until_waiting("g1", "call")
    gates["move"].set()
    await first.partition.wait_steps_finished()
    assert completed(await second.until_ended("g1")) == "move"
    await second.until_quiet()
    assert ran["move"] == 1


async def test_a_running_step_of_a_dead_owner_runs_again_elsewhere(owners: MakeOwner) -> None:
    first = await owners()
    await first.start("g2", "gated", "death")
    await started["death"].wait()
    first.die()
    gates["death"].set()
    second = await owners(taken_over=True)
    assert completed(await second.until_ended("g2")) == "death"
    await second.until_quiet()
    assert ran["death"] == 2
    record = await second.record("g2")
    assert record is not None
    assert record.envelope.attempts.count == 0


async def test_a_call_whose_runner_lives_is_taken_over_when_its_lease_ends(owners: MakeOwner) -> None:
    first = await owners()
    await first.start("g3", "gated", "late")
    await started["late"].wait()
    await first.partition.release(first.services.monotonic() + 5)
    second = await owners()
    await second.signal("g3", "note", 1)
    await second.until_messages("dead", 0)
    assert ran["late"] == 1
    runner = first.services.runner
    first.living.discard(runner)
    first.services.steps.abandon(first.services)
    gates["late"].set()
    second.partition.lease_ended(runner)
    assert completed(await second.until_ended("g3")) == "late"
    assert ran["late"] == 2


async def test_two_owners_that_both_believe_do_no_harm(owners: MakeOwner) -> None:
    first = await owners()
    for n in range(20):
        await first.start(f"two{n}", "collect", 5)
    await first.until_messages("ctl", 0)
    for k in range(3):
        for n in range(20):
            await first.signal(f"two{n}", "note", k)
    second = await owners()
    for k in range(3, 5):
        for n in range(20):
            await second.signal(f"two{n}", "note", k)
    for n in range(20):
        assert completed(await second.until_ended(f"two{n}")) == [0, 1, 2, 3, 4]
    await first.was_lost.wait()
    first.partition.drop()
    await second.until_quiet()
    assert second.lost == []


async def test_the_same_owner_attaches_anew_and_goes_on(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("r1", "gated_then_collect", "again", 3)
    await started["again"].wait()
    await owner.signal("r1", "note", 1)
    await owner.reattach(7)
    await owner.signal("r1", "note", 2)
    gates["again"].set()
    await owner.until("r1", lambda record: any(wait.kind == "receive" for wait in record.envelope.waits))
    await owner.reattach(8)
    owner.lost.clear()  # the attach itself broke the old pulls off
    await owner.signal("r1", "note", 3)
    assert completed(await owner.until_ended("r1")) == [1, 2, 3]
    await owner.until_quiet()
    assert ran["again"] == 1
    assert owner.lost == []


async def test_nothing_is_committed_while_the_gate_is_shut(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("shut", "collect", 1)
    await owner.until_waiting("shut", "receive")
    owner.services.gate.shut("in doubt")
    commits = owner.services.marks.commits
    await owner.signal("shut", "note", 4)
    await owner.until_messages("mail", 1)
    await asyncio.sleep(0.2)
    assert owner.services.marks.commits == commits
    owner.services.gate.open()
    assert completed(await owner.until_ended("shut")) == [4]


async def test_the_consumed_set_of_a_long_life_stays_small(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("long", "collect", 400)
    await owner.until_waiting("long", "receive")
    largest = 0
    for n in range(400):
        await owner.signal("long", "note", n)
        if n % 50 == 0:
            record = await owner.record("long")
            largest = max(largest, len(record.envelope.consumed))
    assert completed(await owner.until_ended("long")) == list(range(400))
    assert largest <= 300
    await owner.until_quiet()


async def test_an_actor_that_is_asked_for_its_result_answers(owners: MakeOwner) -> None:
    from sojourn.actors import answers

    owner = await owners()
    await owner.start("q1", "collect", 1)
    await owner.until_waiting("q1", "receive")

    async def ask(what: str, actor: str = "q1") -> answers.Answer:
        reply = await owner.broker.request(
            owner.subjects.query(0), orjson.dumps({"actor": actor, "what": what})
        )
        answer = answers.parse_answer(reply.payload)
        assert answer is not None
        return answer

    assert (await ask("result")).outcome is None
    described = await ask("describe")
    assert described.details is not None
    assert "receive note" in described.details.sentence
    assert (await ask("result", "nobody")).error == answers.NO_SUCH_ACTOR
    assert (await ask("result", "b*d")).error == "invalid id"
    await owner.signal("q1", "note", 9)
    await owner.until_ended("q1")
    outcome = (await ask("result")).outcome
    assert outcome is not None
    assert orjson.loads(bytes(outcome.value)) == [9]


async def test_mail_for_an_actor_that_is_never_started_is_kept_for_an_hour(owners: MakeOwner) -> None:
    hours = [0.0]
    owner = await owners(ahead=lambda: hours[0] * 3600)
    await owner.signal("nobody", "note", 1)
    await owner.until_messages("mail", 1)
    hours[0] = 0.9
    owner.partition._hosts["nobody"].wake()
    await owner.until_messages("held", 0)
    assert await owner.messages("dead") == 0
    hours[0] = 1.1
    owner.partition._hosts["nobody"].wake()
    await owner.until_messages("dead", 1)
    assert await owner.dead_reasons() == ["no such actor"]
    await owner.until_quiet()


async def test_held_mail_for_an_actor_that_is_never_started_expires(owners: MakeOwner) -> None:
    """As after an attach: what is held is known by reference, and its hour passes without any event."""
    hours = [0.0]
    first = await owners()
    await first.start("gone", "collect", 1)
    await first.until_waiting("gone", "receive")
    await first.control("gone", "pause")
    await first.until("gone", lambda record: record.index.hold == "paused")
    await first.signal("gone", "note", 1)
    await first.until_messages("held", 1)
    await first.until_quiet()
    first.die()
    await first.watcher.purge(first.subjects.frames_stream, first.subjects.frame("gone"))
    second = await owners(ahead=lambda: hours[0] * 3600)
    async with asyncio.timeout(10):
        while not second.partition.statistics().unknown:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)
    assert await second.messages("dead") == 0
    hours[0] = 1.1
    await second.until_messages("held", 0)
    assert await second.dead_reasons() == ["no such actor"]
    await second.until_quiet()


async def test_a_flood_of_mail_to_one_actor_stops_no_other(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("flooded", "gated_then_collect", "flood", 3)
    await owner.start("other", "collect", 1)
    await started["flood"].wait()
    await owner.until_waiting("other", "receive")

    async def flood(part: int) -> None:
        for n in range(250):
            await owner.signal("flooded", "note", part * 250 + n)

    floods = asyncio.gather(*(flood(part) for part in range(8)))
    await owner.control("other", "cancel")
    record = await owner.until_ended("other", seconds=5)
    assert record.index.status == "cancelled"
    await floods
    await owner.until_messages("held", 2000)
    await owner.until_messages("mail", 0)
    gates["flood"].set()
    assert len(completed(await owner.until_ended("flooded"))) == 3
    await owner.until_messages("held", 0, seconds=60)
    await owner.until_messages("dead", 1997)
    await owner.until_quiet()


async def test_an_outcome_in_hand_is_committed_after_a_reload_and_its_step_is_not_run_again(
    owners: MakeOwner,
) -> None:
    """The record is put in doubt between the end of a step and the commit of its outcome: it is loaded afresh."""
    reloads: list[str] = []

    def doubt(point: str, about: str = "") -> None:
        if point == "step_result" and not reloads:
            reloads.append(about)
            raise Overtaken(about)

    owner = await owners(fault=doubt)
    await owner.start("inhand", "gated", "inhand")
    await started["inhand"].wait()
    gates["inhand"].set()
    assert completed(await owner.until_ended("inhand")) == "inhand"
    assert (ran["inhand"], reloads) == (1, ["inhand"])


async def test_a_step_that_is_cut_off_by_the_end_of_its_node_has_no_outcome_and_runs_again(
    owners: MakeOwner,
) -> None:
    """A second signal: partitions are dropped, then the runner cancels what runs. That is not the step's failure."""
    owner = await owners()
    await owner.start("cutoff", "gated", "cutoff")
    await started["cutoff"].wait()
    started["cutoff"].clear()
    owner.partition.drop()
    owner.services.steps.abandon(owner.services)
    await owner.services.step_runner.close()
    owner.living.discard(owner.services.runner)
    second = await owners()
    await started["cutoff"].wait()
    gates["cutoff"].set()
    assert completed(await second.until_ended("cutoff")) == "cutoff"
    assert ran["cutoff"] == 2

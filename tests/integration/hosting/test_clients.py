"""Client and handle against a real owner on a real server: what callers get, whatever dies or is lost in
between.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sojourn.actors import requests
from sojourn.actors.channel import Channel
from sojourn.actors.client import Client
from sojourn.actors.errors import (
    AlreadyStarted,
    DeadLettered,
    MailboxFull,
    NoAnswer,
    NoSuchActor,
    NoSuchChannel,
    NoSuchWorkflow,
    Refused,
    Rejected,
    ResultTimeout,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowQuarantined,
    WorkflowTerminated,
)
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.verbs import publish_state, stage, tag
from sojourn.actors.workflow import workflow
from sojourn.broker.errors import InvalidName, OutcomeUnknown
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Ack, Publish
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects
from sojourn.broker.topology import Topology, apply
from sojourn.codecs.errors import PayloadError

from .conftest import SMALL, Crash, MakeOwner

pytestmark = pytest.mark.integration

REGISTRY = Registry()
_numbers = itertools.count(1)


@dataclass
class Order:
    item: str
    count: int = 1


@dataclass
class Receipt:
    order: Order
    note: str


class Broken(Exception):
    pass


notes = Channel("notes", str)
orders = Channel("orders", Order)


@step(registry=REGISTRY, retry=1)
async def breaks(how: str) -> None:
    if how == "builtin":
        raise ValueError("bad value")
    raise Broken("odd")


gate = threading.Event()


@step(registry=REGISTRY, retry=5)
def dwells() -> int:
    gate.wait(20)
    return 1


@workflow(registry=REGISTRY)
async def slow() -> int:
    return await dwells()


@workflow(registry=REGISTRY)
async def buy(order: Order) -> Receipt:
    stage("asked")
    publish_state({"item": order.item})
    return Receipt(order, await notes.receive())


@workflow(registry=REGISTRY)
async def refuses(age: int) -> None:
    raise Rejected("too young", age=age)


@workflow(registry=REGISTRY)
async def fails(how: str) -> None:
    await breaks(how)


@workflow(registry=REGISTRY)
async def defect() -> None:
    raise RuntimeError("a bug")


@workflow(registry=REGISTRY)
async def quick(n: int) -> int:
    tag("quick")
    return n + 1


@workflow(registry=REGISTRY)
async def collects() -> list[int]:
    return [(await orders.receive()).count, (await orders.receive()).count]


@pytest.fixture
def client(broker: NatsBroker, subjects: Subjects) -> Client:
    """A client of its own connection; the owner has another."""
    return Client(broker, subjects, by="tester")


@pytest.fixture
def name() -> str:
    return f"actor-{next(_numbers)}"


async def waiting(client: Client, name: str, words: str = "receive") -> None:
    """Until the actor waits for something with these words in it."""
    async with asyncio.timeout(20), client._requests.changes(client.handle(name).id) as changes:
        while True:
            index = await client._requests.index(client.handle(name).id)
            if index is not None and words in index.wait:
                return
            await changes.wait()


# starting and results


async def test_a_typed_start_gives_a_typed_result(owners: MakeOwner, client: Client, name: str) -> None:
    await owners()
    handle = await client.start(buy(Order("tea", 2)), id=name)
    await handle.signal(notes, "thanks")
    assert await handle.result(timeout=20) == Receipt(Order("tea", 2), "thanks")
    assert await client.handle(name, buy).result(timeout=20) == Receipt(Order("tea", 2), "thanks")
    assert await client.handle(name).result(timeout=20) == {
        "order": {"item": "tea", "count": 2},
        "note": "thanks",
    }


async def test_a_start_by_name_needs_none_of_the_code(owners: MakeOwner, client: Client) -> None:
    await owners()
    handle = await client.start("quick", args=[41])
    assert handle.id.startswith("quick-")
    assert handle.run
    assert await handle.result(timeout=20) == 42
    assert await (await client.start("quick", kwargs={"n": 1})).result(timeout=20) == 2


async def test_a_rejection_is_raised_as_itself(owners: MakeOwner, client: Client) -> None:
    await owners()
    handle = await client.start(refuses(12))
    with pytest.raises(Rejected, match="too young") as caught:
        await handle.result(timeout=20)
    assert caught.value.age == 12


@pytest.mark.parametrize(
    ("how", "type_name"), [("builtin", "builtins:ValueError"), ("own", "sojourn.actors.errors:StepFailed")]
)
async def test_a_failure_says_what_ended_it(
    owners: MakeOwner, client: Client, how: str, type_name: str
) -> None:
    await owners()
    handle = await client.start(fails(how))
    with pytest.raises(WorkflowFailed) as caught:
        await handle.result(timeout=20)
    error = caught.value
    assert (error.actor, error.workflow, error.run, error.type) == (handle.id, "fails", handle.run, type_name)
    assert isinstance(error.__cause__, ValueError) == (how == "builtin")


async def test_whoever_waits_is_told_of_a_quarantine_at_once(
    owners: MakeOwner, client: Client, name: str
) -> None:
    await owners()
    handle = await client.start(defect(), id=name)
    with pytest.raises(WorkflowQuarantined) as caught:
        await handle.result(timeout=20)
    assert "a bug" in caught.value.message
    assert "RuntimeError" in caught.value.traceback
    assert "sojourn release" in (await handle.describe()).sentence


async def test_a_result_that_is_not_there_in_time_can_be_waited_for_again(
    owners: MakeOwner, client: Client, name: str
) -> None:
    await owners()
    handle = await client.start(buy(Order("tea")), id=name)
    await waiting(client, name)
    with pytest.raises(ResultTimeout) as caught:
        await handle.result(timeout=0.1)
    assert caught.value.status == "suspended"
    await handle.signal("notes", "x")
    assert (await handle.result(timeout=20)).note == "x"


# if it exists


async def test_an_id_that_is_taken_is_refused_joined_or_restarted(
    owners: MakeOwner, client: Client, name: str
) -> None:
    await owners()
    first = await client.start(buy(Order("tea")), id=name)
    await waiting(client, name)
    with pytest.raises(AlreadyStarted) as caught:
        await client.start(buy(Order("milk")), id=name)
    assert (caught.value.run, caught.value.status, caught.value.workflow) == (first.run, "suspended", "buy")
    joined = await client.start(buy(Order("milk")), id=name, if_exists="join")
    assert joined.run == first.run
    second = await client.start(buy(Order("milk")), id=name, if_exists="restart")
    assert second.run != first.run
    await second.signal(notes, "new")
    assert (await second.result(timeout=20)).order.item == "milk"
    with pytest.raises(WorkflowTerminated, match=f"started again, as run {second.run}"):
        await first.result(timeout=20)
    assert await first.cancel() is False


async def test_the_same_request_again_is_the_same_workflow(
    owners: MakeOwner, client: Client, name: str
) -> None:
    await owners()
    first = await client.start(buy(Order("tea")), id=name, request="r-1")
    again = await client.start(buy(Order("tea")), id=name, request="r-1")
    assert again.run == first.run


async def test_a_start_without_a_node_is_kept_and_found_by_its_request(
    owners: MakeOwner, client: Client, name: str
) -> None:
    """PROTOCOL 6: a retry after a time-out returns the same handle."""
    with pytest.raises(NoAnswer, match="will be carried out when a node serves") as caught:
        await client.start(quick(1), id=name, timeout=0.2)
    await owners()
    handle = await client.start(quick(1), id=name, request=caught.value.request)
    assert await handle.result(timeout=20) == 2
    assert (await handle.describe()).index.run == handle.run


async def test_an_answer_that_died_with_its_owner_is_asked_for_again(
    owners: MakeOwner, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner commits the start and dies before it answers; the next owner answers the repeated request,
    and starts nothing.
    """
    monkeypatch.setattr(requests, "SEND_AGAIN", (0.5, 1.0))
    crash = Crash("after_commit", about=name)
    await owners(fault=crash)
    starting = asyncio.create_task(client.start(buy(Order("tea")), id=name))
    await asyncio.wait_for(crash.happened.wait(), 20)
    second = await owners(taken_over=True)
    handle = await starting
    record = await second.record(name)
    assert record is not None
    assert record.index.run == handle.run
    assert handle.run.startswith("run1x")


async def test_what_a_node_refuses_is_raised_here(owners: MakeOwner, client: Client, name: str) -> None:
    await owners()
    with pytest.raises(NoSuchWorkflow, match=r"did you mean 'quick'\?"):
        await client.start("quik", id=name)
    with pytest.raises(Refused) as caught:
        await client.start("quick", args=["one"], id=name)
    assert caught.value.code == "bad arguments"
    with pytest.raises(NoSuchActor):
        await client.handle(name).result(timeout=20)


async def test_mistakes_are_found_before_anything_is_sent(client: Client) -> None:
    untyped: Any = client
    with pytest.raises(TypeError, match=r"the arguments are missing; write start\(quick\(\.\.\.\)\)"):
        await untyped.start(quick)
    with pytest.raises(TypeError, match="the arguments are in the call already"):
        await untyped.start(quick(1), args=[1])
    with pytest.raises(TypeError, match=r"for one argument write args=\['ab'\]"):
        await untyped.start("quick", args="ab")
    with pytest.raises(PayloadError):
        await untyped.start(quick("one"))
    with pytest.raises(InvalidName):
        await client.start(quick(1), id="a.b")
    with pytest.raises(ValueError, match='expected "reject", "join" or "restart"'):
        await untyped.start(quick(1), if_exists="replace")
    with pytest.raises(ValueError, match="at most 64 texts"):
        await client.start("quick", args=[1], tags=[""])
    with pytest.raises(TypeError, match="expected a @workflow function"):
        untyped.handle("x", workflow="quick")


async def test_a_delayed_start_is_there_at_once_and_runs_later(
    owners: MakeOwner, client: Client, name: str
) -> None:
    await owners()
    handle = await client.start(quick(1), id=name, delay=0.4)
    assert (await handle.describe()).index.status == "suspended"
    assert await handle.result(timeout=20) == 2


# mail


async def test_mail_can_be_waited_for_until_it_is_taken(owners: MakeOwner, client: Client, name: str) -> None:
    await owners()
    handle = await client.start(collects(), id=name)
    await handle.signal(orders, Order("a", 1), wait="consumed", timeout=20)
    sending = asyncio.create_task(handle.signal(orders, Order("a", 2), wait="consumed", timeout=20))
    assert await handle.result(timeout=20) == [1, 2]
    await sending


async def test_mail_that_nobody_takes_is_not_called_consumed(
    owners: MakeOwner, client: Client, name: str
) -> None:
    await owners()
    handle = await client.start(buy(Order("tea")), id=name)
    await waiting(client, name)
    await handle.pause()
    with pytest.raises(NoAnswer, match="was not consumed in time, and may be later"):
        await handle.signal(notes, "later", wait="consumed", timeout=0.5)
    await handle.resume()
    assert (await handle.result(timeout=20)).note == "later"


async def test_mail_that_cannot_be_taken_is_told_to_whoever_waits(
    owners: MakeOwner, client: Client, name: str
) -> None:
    await owners()
    await client.start(buy(Order("tea")), id=name)
    stranger = client.handle(name)
    with pytest.raises(DeadLettered) as caught:
        await stranger.signal("typo", 1, wait="consumed", timeout=20)
    assert "no such channel" in str(caught.value)


async def test_mail_is_checked_against_a_known_workflow(client: Client) -> None:
    handle: Any = client.handle("nobody", buy)
    with pytest.raises(NoSuchChannel, match=r"no channel 'note' in workflow buy; did you mean 'notes'\?"):
        await handle.signal("note", "x")
    with pytest.raises(PayloadError):
        await handle.signal("notes", 3)
    with pytest.raises(PayloadError):
        await handle.signal(notes, 3)
    with pytest.raises(ValueError, match='expected "stored" or "consumed"'):
        await handle.signal(notes, "x", wait="read")


async def test_a_full_mailbox_is_told_to_the_sender(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sojourn.broker.errors import MailboxFull as StreamFull

    async def full(self: NatsBroker, message: Publish, *, timeout: float = 2.0) -> Ack:
        raise StreamFull(message.subject, "maximum messages per subject exceeded")

    monkeypatch.setattr(NatsBroker, "publish", full)
    with pytest.raises(MailboxFull, match=f"channel 'notes' of '{name}' is full"):
        await client.handle(name).signal("notes", "x")


async def test_a_signal_of_unknown_outcome_is_stored_once(
    client: Client, broker: NatsBroker, subjects: Subjects, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two answers are lost, though both messages arrive: the message id makes them one."""
    publish, lost = NatsBroker.publish, [1, 2]

    async def loses_answers(self: NatsBroker, message: Publish, *, timeout: float = 2.0) -> Ack:
        ack = await publish(self, message, timeout=timeout)
        if lost:
            lost.pop()
            raise OutcomeUnknown("publish", message.subject, "the answer was lost")
        return ack

    monkeypatch.setattr(NatsBroker, "publish", loses_answers)
    await client.handle(name).signal("notes", "once")
    found = await broker.subjects(subjects.mail_stream, ">")
    assert sum(found.values()) == 1


async def test_a_signal_may_come_before_its_start(owners: MakeOwner, client: Client, name: str) -> None:
    await owners()
    await client.handle(name).signal(notes, "early")
    handle = await client.start(buy(Order("tea")), id=name)
    assert (await handle.result(timeout=20)).note == "early"


# control


async def test_cancelling_ends_it_and_a_second_time_says_so(
    owners: MakeOwner, client: Client, name: str
) -> None:
    await owners()
    handle = await client.start(buy(Order("tea")), id=name)
    assert await handle.cancel(reason="changed my mind") is True
    with pytest.raises(WorkflowCancelled, match="changed my mind"):
        await handle.result(timeout=20)
    assert await handle.cancel() is False
    assert await handle.terminate() is False
    with pytest.raises(Refused, match="has ended"):
        await handle.pause()


async def test_terminating_ends_it_without_cleanup(owners: MakeOwner, client: Client, name: str) -> None:
    await owners()
    handle = await client.start(buy(Order("tea")), id=name)
    assert await handle.terminate(reason="enough") is True
    with pytest.raises(WorkflowTerminated):
        await handle.result(timeout=20)


async def test_pausing_holds_it_until_it_is_resumed(owners: MakeOwner, client: Client, name: str) -> None:
    await owners()
    handle = await client.start(buy(Order("tea")), id=name)
    await waiting(client, name)
    with pytest.raises(Refused, match="is not held"):
        await handle.resume()
    await handle.pause(reason="audit")
    assert "is paused" in (await handle.describe()).sentence
    assert [index.actor async for index in client.list(status="paused")] == [name]
    await handle.pause(timeout=20)  # again: nothing is left behind that would pause it after its resume
    with pytest.raises(Refused, match="paused, not quarantined"):
        await handle.release(timeout=20)
    await handle.signal(notes, "x")
    await handle.resume()
    assert (await handle.result(timeout=20)).note == "x"


async def test_a_quarantined_actor_is_not_paused_or_resumed(
    owners: MakeOwner, client: Client, name: str
) -> None:
    await owners()
    handle = await client.start(defect(), id=name)
    with pytest.raises(WorkflowQuarantined):
        await handle.result(timeout=20)
    for ask in (handle.pause, handle.resume):
        with pytest.raises(Refused, match="quarantined, not paused"):
            await ask(timeout=20)


async def test_an_actor_that_never_was_is_told_apart(owners: MakeOwner, client: Client, name: str) -> None:
    await owners()
    handle = client.handle(name)
    for ask in (
        handle.result,
        handle.describe,
        handle.state,
        handle.cancel,
        handle.terminate,
        handle.pause,
        handle.release,
    ):
        with pytest.raises(NoSuchActor):
            await ask()


# views


async def test_describe_and_state_tell_what_it_waits_for_and_published(
    owners: MakeOwner, client: Client, name: str
) -> None:
    await owners()
    handle = await client.start(buy(Order("tea")), id=name, tags=["a", "b"])
    await waiting(client, name)
    description = await handle.describe()
    assert description.sentence == f"{name} (buy) waits: receive notes."
    assert description.details is not None
    facts = dict(description.facts())
    assert (facts["stage"], facts["tags"], facts["waits for"]) == ("asked", ["a", "b"], "receive notes")
    document = description.document()
    assert (document["answered"], document["index"]["actor"]) == (True, name)
    assert await handle.state() == {"item": "tea"}


async def test_describe_tells_of_the_step_that_runs(owners: MakeOwner, client: Client, name: str) -> None:
    await owners()
    gate.clear()
    handle = await client.start(slow(), id=name)
    await waiting(client, name, "step dwells")
    try:
        details = (await handle.describe()).details
        assert details is not None
        (running,) = details.running
        assert (running.step, running.attempt, running.attempts) == ("dwells", 1, 5)
    finally:
        gate.set()
    assert await handle.result(timeout=20) == 1


async def test_without_a_node_describe_tells_what_the_index_says(
    owners: MakeOwner, client: Client, name: str
) -> None:
    owner = await owners()
    handle = await client.start(buy(Order("tea")), id=name)
    await waiting(client, name)
    await owner.partition.release(owner.services.monotonic() + 10)
    description = await handle.describe()
    assert description.details is None
    assert description.sentence.endswith(
        "waits: receive notes. No node answers for it now; it goes on when one does."
    )
    with pytest.raises(NoAnswer, match="no node serves its partition"):
        await handle.state(timeout=2.0)
    with pytest.raises(ResultTimeout) as caught:
        await handle.result(timeout=2.0)
    assert caught.value.status == "suspended"


async def test_a_result_is_waited_for_across_owners(owners: MakeOwner, client: Client, name: str) -> None:
    first = await owners()
    handle = await client.start(buy(Order("tea")), id=name)
    waiter = asyncio.create_task(handle.result(timeout=30))
    await waiting(client, name)
    first.die()
    await owners(taken_over=True)
    await handle.signal(notes, "on the second")
    assert (await waiter).note == "on the second"


async def test_lists_are_filtered(owners: MakeOwner, client: Client, name: str) -> None:
    await owners()
    await client.start(buy(Order("tea")), id=name)
    await waiting(client, name)
    done = await client.start(quick(1), tags=["t1"])
    await done.result(timeout=20)

    async def ids(**filters: Any) -> set[str]:
        return {index.actor async for index in client.list(**filters)}

    assert await ids() == {name, done.id}
    assert await ids(workflow="buy") == await ids(workflow=buy) == await ids(stage="asked") == {name}
    assert await ids(status="completed") == await ids(tag="quick") == await ids(tag="t1") == {done.id}
    assert await ids(status="failed") == set()


async def test_connecting_needs_a_namespace_that_was_set_up(
    nats_server: Any, connect: Callable[[], Awaitable[NatsBroker]], namespace: str, subjects: Subjects
) -> None:
    from sojourn.broker.errors import ConnectFailed, StreamNotFound

    async with Client.connect(nats_server.url, namespace=namespace) as client:
        assert repr(client) == f"<Client of {namespace}>"
        with pytest.raises(NoSuchActor):
            await client.handle("nobody").describe()
    with pytest.raises(StreamNotFound, match="sojourn topology apply"):
        async with Client.connect(nats_server.url, namespace="never-applied"):
            pass
    with pytest.raises(ConnectFailed):
        async with Client.connect(NatsOptions(servers="nats://127.0.0.1:1", connect_timeout=0.2)):
            pass


async def test_a_client_outlives_its_server(own_server: EmbeddedServer, namespace: str, name: str) -> None:
    """Requests made while the server is down are carried out once it is up, and once only."""
    broker = await NatsBroker.connect(NatsOptions(servers=own_server.url, reconnect_wait=0.05))
    topology = Topology(namespace=namespace, app="test", partitions=1, limits=SMALL)
    await apply(broker, topology)
    client = Client(broker, topology.subjects)
    await own_server.kill()
    signalling = asyncio.create_task(client.handle(name).signal("notes", "x", timeout=60))
    starting = asyncio.create_task(client.start(quick(1), id=name, timeout=60))
    asking = asyncio.create_task(client.handle(name).result(timeout=60))
    await asyncio.sleep(0)
    await own_server.start()
    await signalling
    with pytest.raises(NoSuchActor):
        await asking
    streams = [(topology.subjects.mail_stream, 1), (topology.subjects.ctl_stream, 1)]
    for stream, expected in streams:
        async with asyncio.timeout(20):
            while sum((await broker.subjects(stream, ">")).values()) != expected:  # noqa: ASYNC110  # another process counts
                await asyncio.sleep(0.02)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await client.close()
    await client.close()
    await broker.close()

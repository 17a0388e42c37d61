"""The worker's role against a real server: it takes its queue's tasks, and can do nothing else to anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from sojourn.actors.client import Client
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.workflow import workflow
from sojourn.broker.absence import ALL
from sojourn.broker.errors import Refused
from sojourn.broker.frames import FrameStore
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.roles import Role, User, api_prefix, inbox_prefix, server_config
from sojourn.broker.seam import Delivery, Publish
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects, actor_id, channel_name, token
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.node import Node, NodeOptions
from sojourn.cluster.steps.queues import consumer_of
from sojourn.cluster.worker import Worker, WorkerOptions
from sojourn.codecs.keyring import Keyring

pytestmark = pytest.mark.integration

TOPOLOGY = Topology(namespace="roles", app="app", partitions=2)
SUBJECTS = TOPOLOGY.subjects
GPU, CPU = token("gpu"), token("cpu")
VICTIM, BYSTANDER, CHANNEL = actor_id("victim"), actor_id("bystander"), channel_name("approval")
STEPS = SUBJECTS.steps_stream
Connect = Callable[[str], Awaitable[NatsBroker]]
USERS = {
    "admin": User("admin", "secret", Role.ADMIN),
    "node": User("node", "secret", Role.NODE),
    "gpu": User("gpu", "secret", Role.WORKER, queues=("gpu",)),
    "cpu": User("cpu", "secret", Role.WORKER, queues=("cpu",)),
}


def options(server: EmbeddedServer, name: str) -> NatsOptions:
    role = USERS[name].role
    return NatsOptions(
        servers=server.url,
        user=name,
        password="secret",
        inbox_prefix=inbox_prefix(role),
        api_prefix=api_prefix(role),
    )


@pytest.fixture(scope="module")
def guarded_server() -> object:
    """A server with two queues, a worker's user for each, and everything applied."""

    async def start(server: EmbeddedServer) -> None:
        await server.start()
        admin = await NatsBroker.connect(options(server, "admin"))
        await apply(admin, TOPOLOGY)
        await admin.close()
        node = await NatsBroker.connect(options(server, "node"))
        for queue in (GPU, CPU):
            await node.create_consumer(STEPS, consumer_of(SUBJECTS, queue))
        await node.close()

    with asyncio.Runner() as runner:
        server = EmbeddedServer(extra_config=server_config(USERS.values(), SUBJECTS))
        try:
            runner.run(start(server))
            yield server
        finally:
            runner.run(server.__aexit__(None, None, None))


@pytest.fixture
async def connect(guarded_server: EmbeddedServer) -> AsyncIterator[Connect]:
    brokers = []

    async def make(name: str) -> NatsBroker:
        brokers.append(await NatsBroker.connect(options(guarded_server, name)))
        return brokers[-1]

    yield make
    for broker in brokers:
        await broker.close()


async def denied(attempt: Awaitable[object]) -> None:
    with pytest.raises(Refused) as caught:
        await attempt
    assert caught.value.code == 403


async def take(worker: NatsBroker, queue: str) -> Delivery:
    delivery = await worker.fetch(STEPS, Subjects.step_consumer(token(queue)), wait=5.0)
    assert delivery is not None
    return delivery


async def test_a_worker_can_do_all_that_a_task_takes(connect: Connect) -> None:
    node, worker = await connect("node"), await connect("gpu")
    await node.publish(Publish(SUBJECTS.step(GPU), b"task"))
    await node.publish(Publish(SUBJECTS.frame(VICTIM), b"record"))

    delivery = await take(worker, "gpu")
    assert delivery.message.payload == b"task"
    assert await worker.in_progress(delivery)
    assert await worker.hand_back(delivery, 0.0)
    delivery = await take(worker, "gpu")
    assert delivery.deliveries == 2
    stored = await FrameStore(worker, SUBJECTS).read(VICTIM)
    assert stored is not None
    assert stored.data == b"record"
    assert await worker.read_next(SUBJECTS.frames_stream, ALL, stored.revision) is not None
    await worker.publish(Publish(SUBJECTS.done(VICTIM, token("1")), b"{}"))
    assert await worker.ack(delivery)
    assert await worker.fetch(STEPS, Subjects.step_consumer(GPU), wait=1.0) is None
    assert (await worker.stream_info(STEPS)).messages == 0


@pytest.mark.parametrize(
    "subject",
    [
        SUBJECTS.mail(VICTIM, CHANNEL),
        SUBJECTS.ctl(VICTIM, token("start")),
        SUBJECTS.ctl(VICTIM, token("cancel")),
        SUBJECTS.send(VICTIM, CHANNEL),
        SUBJECTS.wake(VICTIM, token("timer")),
        SUBJECTS.timer(VICTIM, token("r"), 1),
        SUBJECTS.held(VICTIM, token("mail"), CHANNEL),
        SUBJECTS.frame(VICTIM),
        SUBJECTS.cluster(token("owner"), 1),
        SUBJECTS.step(GPU),
        SUBJECTS.step(CPU),
        SUBJECTS.dead(token("mail"), 1, 1),
        f"sj.roles.in.0.done.{VICTIM}.1",
        f"$JS.ACK.{STEPS}.queue-cpu.1.1.1.1.1",
        f"$JS.ACK.{SUBJECTS.ctl_stream}.p0-e1.1.1.1.1.1",
        f"SJ.API.CONSUMER.MSG.NEXT.{STEPS}.queue-cpu",
        f"SJ.API.CONSUMER.CREATE.{STEPS}.mine",
        f"SJ.API.CONSUMER.DELETE.{STEPS}.queue-gpu",
        f"SJ.API.STREAM.MSG.GET.{STEPS}",
        f"SJ.API.STREAM.MSG.GET.{SUBJECTS.held_stream}",
        f"SJ.API.STREAM.PURGE.{STEPS}",
        f"$JS.API.STREAM.MSG.GET.{STEPS}",
        f"$JS.API.CONSUMER.MSG.NEXT.{STEPS}.queue-cpu",
    ],
)
async def test_a_worker_can_publish_nothing_else(connect: Connect, subject: str) -> None:
    worker = await connect("gpu")

    await denied(worker.request(subject, b"{}"))


async def test_another_queues_tasks_are_not_its_own(connect: Connect) -> None:
    node, gpu, cpu = await connect("node"), await connect("gpu"), await connect("cpu")
    await node.publish(Publish(SUBJECTS.step(CPU), b"theirs"))
    theirs = await take(cpu, "cpu")

    await denied(gpu.ack(theirs))
    await denied(gpu.fetch(STEPS, Subjects.step_consumer(CPU), wait=30.0))
    await denied(gpu.hand_back(theirs, 0.0))

    assert await cpu.ack(theirs)


REPLIES = [
    SUBJECTS.frame(BYSTANDER),
    SUBJECTS.ctl(VICTIM, token("cancel")),
    SUBJECTS.step(CPU),
    SUBJECTS.cluster(token("owner"), 1),
    f"$JS.API.STREAM.PURGE.{SUBJECTS.frames_stream}",
    f"$JS.API.STREAM.DELETE.{SUBJECTS.frames_stream}",
]


@pytest.mark.parametrize("reply", REPLIES)
async def test_a_workers_reply_address_makes_the_server_do_nothing(connect: Connect, reply: str) -> None:
    """The server answers to the reply subject that a sender gives, with its own authority; a task is such an answer too."""
    node, worker, admin = await connect("node"), await connect("gpu"), await connect("admin")
    await admin.publish(Publish(SUBJECTS.frame(BYSTANDER), b"record"))
    await node.publish(Publish(SUBJECTS.step(GPU), b"first"))
    await node.publish(Publish(SUBJECTS.step(GPU), b"second"))
    names = [one.name for one in TOPOLOGY.streams() if one.name not in (SUBJECTS.ctl_stream, STEPS)]
    before = [(await admin.stream_info(name)).last_seq for name in names]
    steps_before = (await admin.stream_info(STEPS)).last_seq
    ctl_before = (await admin.stream_info(SUBJECTS.ctl_stream)).last_seq
    delivery = await take(worker, "gpu")
    raw = worker._connection.client

    await raw.publish(SUBJECTS.done(VICTIM, token("1")), b"{}", reply=reply)
    await raw.publish(
        f"SJ.API.CONSUMER.MSG.NEXT.{STEPS}.queue-gpu", b'{"batch":1,"expires":100000000}', reply=reply
    )
    await raw.publish(f"SJ.API.STREAM.MSG.GET.{SUBJECTS.frames_stream}", b'{"seq":1}', reply=reply)
    await raw.publish(f"SJ.API.STREAM.INFO.{STEPS}", b"", reply=reply)
    await raw.publish(delivery.token, b"+WPI", reply=reply)
    await raw.publish(delivery.token, b"+NXT", reply=reply)
    await worker.publish(Publish(SUBJECTS.done(VICTIM, token("2")), b"{}"))  # behind all that

    assert [(await admin.stream_info(name)).last_seq for name in names] == before
    assert (await admin.stream_info(STEPS)).last_seq == steps_before
    assert (await admin.stream_info(SUBJECTS.ctl_stream)).last_seq == ctl_before + 2
    record = await admin.read_last(SUBJECTS.frames_stream, SUBJECTS.frame(BYSTANDER))
    assert record is not None
    assert record.payload == b"record"
    await admin.purge(STEPS, SUBJECTS.step(GPU))


R = Registry()


@step(queue="cpu", registry=R)
async def double(number: int) -> int:
    return 2 * number


@workflow(registry=R)
async def doubled(number: int) -> int:
    return await double(number)


async def test_a_worker_with_its_role_alone_serves_a_node_with_its_own(
    guarded_server: EmbeddedServer, connect: Connect
) -> None:
    node = Node(
        NodeOptions(
            app="none",
            nats=options(guarded_server, "node"),
            keyring=Keyring.ephemeral(lambda count: b"k" * count),
            namespace="roles",
            registry=R,
            health_port=None,
        )
    )
    worker = Worker(
        WorkerOptions(
            app="none",
            queues=("cpu",),
            nats=options(guarded_server, "cpu"),
            namespace="roles",
            registry=R,
            health_port=None,
        )
    )
    admin = await connect("admin")
    running = [asyncio.create_task(one.run()) for one in (node, worker)]
    try:
        async with asyncio.timeout(20):
            await node.wait_ready()
            await worker.wait_ready()
            client = Client(admin, SUBJECTS, inbox_prefix=inbox_prefix(Role.ADMIN))
            assert await (await client.start(doubled(21), id="answer")).result(10) == 42
            await client.close()
    finally:
        worker.drain()
        node.drain()
        await asyncio.gather(*running)

"""Roles against a real server: what each may do, and above all what it may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.errors import Refused
from sojourn.broker.frames import FrameStore
from sojourn.broker.held import HeldStore
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.roles import Role, User, api_prefix, inbox_prefix, permissions, server_config
from sojourn.broker.seam import ConsumerConfig, Delivery, Publish, Received
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects, actor_id, channel_name, token
from sojourn.broker.topology import Topology, apply, check_drift

pytestmark = pytest.mark.integration

TOPOLOGY = Topology(namespace="roles", app="app")
SUBJECTS = TOPOLOGY.subjects
VICTIM, CHANNEL = actor_id("victim"), channel_name("approval")
Connect = Callable[[Role], Awaitable[NatsBroker]]


@pytest.fixture(scope="module")
def guarded_server() -> object:
    """A server with one user per role, and everything applied by its admin."""
    users = [User(role.value, "secret", role) for role in Role]

    async def start(server: EmbeddedServer) -> None:
        await server.start()
        admin = await NatsBroker.connect(options(server, Role.ADMIN))
        await apply(admin, TOPOLOGY)
        await admin.close()

    with asyncio.Runner() as runner:
        server = EmbeddedServer(extra_config=server_config(users, SUBJECTS))
        try:
            runner.run(start(server))
            yield server
        finally:
            runner.run(server.__aexit__(None, None, None))


def options(server: EmbeddedServer, role: Role) -> NatsOptions:
    return NatsOptions(
        servers=server.url,
        user=role.value,
        password="secret",
        inbox_prefix=inbox_prefix(role),
        api_prefix=api_prefix(role),
    )


@pytest.fixture
async def connect(guarded_server: EmbeddedServer) -> AsyncIterator[Connect]:
    brokers = []

    async def make(role: Role) -> NatsBroker:
        brokers.append(await NatsBroker.connect(options(guarded_server, role)))
        return brokers[-1]

    yield make
    for broker in brokers:
        await broker.close()


async def standing(admin: NatsBroker) -> dict[str, tuple[int, int | None]]:
    """The last sequence and the number of messages of each stream; not the number of keys, some of which expire meanwhile."""
    infos = [await admin.stream_info(stream.name) for stream in TOPOLOGY.streams()]
    return {
        info.name: (info.last_seq, None if info.name == SUBJECTS.cluster_stream else info.messages)
        for info in infos
    }


async def denied(attempt: Awaitable[object]) -> None:
    """The server denies the publish: told at once, not by a time-out."""
    with pytest.raises(Refused) as caught:
        await attempt
    assert caught.value.code == 403


async def test_a_node_can_do_all_that_owning_a_partition_takes(connect: Connect) -> None:
    node = await connect(Role.NODE)
    assert await check_drift(node, TOPOLOGY.namespace) == TOPOLOGY
    p = SUBJECTS.partition_of(VICTIM)
    keys, frames, held = ClusterKeys(node, SUBJECTS), FrameStore(node, SUBJECTS), HeldStore(node, SUBJECTS)
    revision = await keys.put("owner", p, value=b"{}", expect=0, ttl=30)
    await keys.delete("owner", p, expect=revision)
    assert await frames.read(VICTIM) is None
    await frames.put(VICTIM, b"x", expect=0)
    await held.fence(p, 1)
    assert list(await held.list(p)) == []
    assert not await held.delete(12345)
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    for stream, pattern in (
        (SUBJECTS.mail_stream, SUBJECTS.in_filter(p)),
        (SUBJECTS.ctl_stream, SUBJECTS.in_filter(p)),
        (SUBJECTS.wake_stream, SUBJECTS.wake_filter(p)),
    ):
        await node.create_consumer(stream, ConsumerConfig(SUBJECTS.consumer(p, 1), (pattern,)))
        assert list(await node.consumers(stream)) == [SUBJECTS.consumer(p, 1)]
        await node.pull(stream, SUBJECTS.consumer(p, 1), deliveries.put_nowait, lambda reason: None)
    await node.publish(Publish(SUBJECTS.ctl(VICTIM, token("cancel"))))
    async with asyncio.timeout(5):
        assert await node.ack(await deliveries.get())
    for stream in (SUBJECTS.mail_stream, SUBJECTS.ctl_stream, SUBJECTS.wake_stream):
        assert await node.delete_consumer(stream, SUBJECTS.consumer(p, 1))


async def test_a_node_cannot_touch_the_topology(connect: Connect) -> None:
    node = await connect(Role.NODE)
    config = await node.stream_config(SUBJECTS.mail_stream)
    assert config is not None

    await denied(node.create_stream(config))
    await denied(node.update_stream(config))
    await denied(node.purge(SUBJECTS.held_stream, ">"))
    await denied(node.delete(SUBJECTS.frames_stream, 1))
    await denied(node.publish(Publish(SUBJECTS.mail(VICTIM, CHANNEL))))


async def test_a_signaller_can_signal(connect: Connect) -> None:
    signaller, admin = await connect(Role.SIGNALLER), await connect(Role.ADMIN)

    ack = await signaller.publish(Publish(SUBJECTS.mail(VICTIM, CHANNEL), b"{}"))

    stored = await admin.read(SUBJECTS.mail_stream, ack.seq)
    assert stored is not None
    assert stored.payload == b"{}"


def forbidden_subjects(subjects: Subjects) -> list[str]:
    p = subjects.partition_of(VICTIM)
    return [
        subjects.ctl(VICTIM, token("start")),
        subjects.ctl(VICTIM, token("cancel")),
        subjects.done(VICTIM, token("r-1")),
        subjects.send(VICTIM, CHANNEL),
        subjects.wake(VICTIM, token("timer")),
        subjects.timer(VICTIM, token("r"), 1),
        subjects.held(VICTIM, token("mail"), CHANNEL),
        subjects.held_fence(p),
        subjects.frame(VICTIM),
        subjects.cluster(token("owner"), p),
        subjects.step(token("q")),
        subjects.dead(token("mail"), 1, 1),
        f"sj.{subjects.namespace}.in.{p}.ctl.{VICTIM}.cancel",
        f"$JS.API.STREAM.PURGE.{subjects.frames_stream}",
        f"$JS.API.STREAM.DELETE.{subjects.frames_stream}",
        f"$JS.API.STREAM.MSG.GET.{subjects.frames_stream}",
        f"$JS.API.CONSUMER.DELETE.{subjects.mail_stream}.p0-e1",
        f"$JS.ACK.{subjects.mail_stream}.p0-e1.1.1.1.1.1",
    ]


@pytest.mark.parametrize("subject", forbidden_subjects(SUBJECTS))
async def test_a_signaller_can_publish_nothing_but_mail(connect: Connect, subject: str) -> None:
    signaller = await connect(Role.SIGNALLER)

    await denied(signaller.publish(Publish(subject)))


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "1s"},
        {
            "Nats-Schedule": "@at 2020-01-01T00:00:00Z",
            "Nats-Schedule-Target": SUBJECTS.wake(VICTIM, token("timer")),
        },
        {"Nats-Schedule-Next": "purge", "Nats-Scheduler": SUBJECTS.timer(VICTIM, token("r"), 1)},
        {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    ],
    ids=lambda headers: next(iter(headers)),
)
async def test_a_signallers_headers_act_on_nothing(connect: Connect, headers: dict[str, str]) -> None:
    signaller, admin = await connect(Role.SIGNALLER), await connect(Role.ADMIN)
    await signaller.publish(Publish(SUBJECTS.mail(VICTIM, CHANNEL), b"before"))
    before = await standing(admin)

    with pytest.raises(Refused):
        await signaller.publish(Publish(SUBJECTS.mail(VICTIM, CHANNEL), b"x", headers))

    after = await standing(admin)
    assert after == before


@pytest.mark.parametrize("role", [Role.SIGNALLER, Role.STARTER])
@pytest.mark.parametrize(
    "reply",
    [
        SUBJECTS.frame(actor_id("bystander")),
        SUBJECTS.ctl(VICTIM, token("cancel")),
        SUBJECTS.ctl(VICTIM, token("start")),
        SUBJECTS.wake(VICTIM, token("timer")),
        SUBJECTS.held_fence(1),
        f"$JS.API.STREAM.PURGE.{SUBJECTS.frames_stream}",
        f"$JS.API.STREAM.DELETE.{SUBJECTS.frames_stream}",
    ],
)
async def test_an_outsiders_reply_address_makes_the_server_do_nothing(
    connect: Connect, role: Role, reply: str
) -> None:
    """The server answers a stored mail to its reply subject, with its own authority.

    In one account with the streams this overwrites a record or cancels an actor, whatever the sender's
    permissions.
    """
    outsider, admin = await connect(role), await connect(Role.ADMIN)
    await admin.publish(Publish(SUBJECTS.frame(actor_id("bystander")), b"record"))
    names = [stream.name for stream in TOPOLOGY.streams() if stream.name != SUBJECTS.mail_stream]
    before = [(await admin.stream_info(name)).last_seq for name in names]

    await outsider._connection.client.publish(SUBJECTS.mail(VICTIM, CHANNEL), b"x", reply=reply)
    await outsider.publish(Publish(SUBJECTS.mail(VICTIM, CHANNEL), b"behind it"))

    await admin.stream_info(SUBJECTS.mail_stream)
    assert [(await admin.stream_info(name)).last_seq for name in names] == before
    record = await admin.read_last(SUBJECTS.frames_stream, SUBJECTS.frame(actor_id("bystander")))
    assert record is not None
    assert record.payload == b"record"


async def test_a_signaller_reads_nothing_of_others(connect: Connect) -> None:
    signaller = await connect(Role.SIGNALLER)

    await denied(signaller.read_last(SUBJECTS.frames_stream, SUBJECTS.frame(VICTIM)))
    await denied(anext(signaller.scan(SUBJECTS.frames_stream, ">")))  # type: ignore[arg-type]  # a coroutine in fact


async def test_an_operator_sends_its_verbs_and_no_others(connect: Connect) -> None:
    operator = await connect(Role.OPERATOR)

    await operator.publish(Publish(SUBJECTS.ctl(VICTIM, token("cancel"))))
    await denied(operator.publish(Publish(SUBJECTS.ctl(VICTIM, token("start")))))
    await denied(operator.publish(Publish(SUBJECTS.mail(VICTIM, CHANNEL))))
    await denied(operator.publish(Publish(SUBJECTS.frame(VICTIM))))


async def test_a_starter_starts_signals_and_reads_but_cancels_nothing(connect: Connect) -> None:
    starter = await connect(Role.STARTER)

    await starter.publish(Publish(SUBJECTS.ctl(VICTIM, token("start"))))
    await starter.publish(Publish(SUBJECTS.mail(VICTIM, CHANNEL)))
    await starter.read_last(SUBJECTS.frames_stream, SUBJECTS.frame(VICTIM))
    await denied(starter.publish(Publish(SUBJECTS.ctl(VICTIM, token("cancel")))))
    await denied(starter.publish(Publish(SUBJECTS.frame(VICTIM))))


async def test_a_waiter_outside_learns_of_changes(connect: Connect) -> None:
    starter, admin = await connect(Role.STARTER), await connect(Role.ADMIN)
    changed: asyncio.Queue[Received] = asyncio.Queue()

    async def take(message: Received) -> None:
        changed.put_nowait(message)

    await starter.subscribe(SUBJECTS.changed(VICTIM), take)
    await starter.read_last(SUBJECTS.frames_stream, SUBJECTS.frame(VICTIM))  # the subscription is in
    await admin.publish(Publish(SUBJECTS.frame(VICTIM), b"secret", {"Sj-Index": "actor=victim"}))

    async with asyncio.timeout(5):
        message = await changed.get()
    assert (message.payload, message.headers["Sj-Index"]) == (b"", "actor=victim")


async def test_a_reader_reads_and_writes_nothing(connect: Connect) -> None:
    reader = await connect(Role.READER)

    async for _ in FrameStore(reader, SUBJECTS).scan_indexes():
        pass
    await ClusterKeys(reader, SUBJECTS).list()
    await denied(reader.publish(Publish(SUBJECTS.mail(VICTIM, CHANNEL))))
    await denied(reader.publish(Publish(SUBJECTS.cluster(token("owner"), 1))))
    await denied(reader.read_last(SUBJECTS.held_stream, SUBJECTS.held_fence(1)))


@pytest.mark.parametrize("role", [Role.READER, Role.OPERATOR])
async def test_who_looks_sees_what_the_queues_of_steps_have_to_do_and_takes_none_of_it(
    connect: Connect, role: Role
) -> None:
    node, looker = await connect(Role.NODE), await connect(role)
    stream, queue = SUBJECTS.steps_stream, SUBJECTS.step_consumer(token("mail"))
    await node.create_consumer(stream, ConsumerConfig(queue, (SUBJECTS.step(token("mail")),)))

    assert queue in await looker.consumers(stream)
    state = await looker.consumer_state(stream, queue)
    assert state is not None
    assert state.unacknowledged == 0
    await denied(looker.consumer_state(SUBJECTS.mail_stream, "any"))
    await denied(looker.delete_consumer(stream, queue))
    with pytest.raises(Refused):
        await looker.fetch(stream, queue, wait=1.0)


def test_only_admin_may_change_streams() -> None:
    for role in Role:
        changing = [
            subject
            for subject in permissions(role, SUBJECTS).publish
            if any(
                verb in subject
                for verb in ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.PURGE", "STREAM.DELETE")
            )
        ]
        assert bool(changing) == (role is Role.ADMIN)


def test_a_users_password_is_not_shown() -> None:
    assert "secret" not in repr(User("a", "secret", Role.NODE))

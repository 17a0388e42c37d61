"""A real server, a real wire, and everything that can happen to both: nothing acknowledged is lost, nothing
doubled.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable

import pytest
from sojourn.broker.errors import ConnectFailed, OutcomeUnknown, Refused, WrongLastSequence
from sojourn.broker.frames import FrameStore, Settlement
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import ConsumerConfig, Delivery, Publish, Received
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects, actor_id, channel_name
from sojourn.broker.topology import Limits, Topology, apply

from .proxy import Proxy, proxied

pytestmark = pytest.mark.integration

ACTOR = actor_id("a")


@pytest.fixture
async def proxy(nats_server: EmbeddedServer) -> AsyncIterator[Proxy]:
    async with proxied(nats_server.url) as proxy:
        yield proxy


@pytest.fixture
async def behind(proxy: Proxy) -> AsyncIterator[NatsBroker]:
    """A connection through the proxy."""
    broker = await NatsBroker.connect(
        NatsOptions(servers=proxy.url, name="behind", reconnect_wait=0.05, heartbeat=0.25)
    )
    yield broker
    await broker.close()


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a count that many tasks drive and none announces."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  # see above
            await asyncio.sleep(0.005)


class Connection:
    """Ups and downs of a connection, and waiting for them."""

    def __init__(self, broker: NatsBroker) -> None:
        self.seen: list[bool] = []
        self._changed = asyncio.Event()
        broker.on_connection(self._note)

    def _note(self, up: bool) -> None:
        self.seen.append(up)
        self._changed.set()

    async def until(self, holds: Callable[[list[bool]], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds(self.seen):
                self._changed.clear()
                await self._changed.wait()


class Collected:
    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.lost: list[str] = []
        self._changed = asyncio.Event()

    def on_message(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self._changed.set()

    def on_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self._changed.set()

    async def until(self, holds: Callable[[Collected], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds(self):
                self._changed.clear()
                await self._changed.wait()


class Writer:
    """Commits numbers 1, 2, 3, ... to one record by the protocol's rule for unknown outcomes."""

    def __init__(self, frames: FrameStore, name: str) -> None:
        self._frames = frames
        self.actor = actor_id(name)
        self.revision = 0
        self.committed = 0
        self.unknown = 0

    async def commit(self) -> None:
        data = b"%d" % (self.committed + 1)
        while True:
            try:
                self.revision = await self._frames.put(self.actor, data, expect=self.revision, timeout=1.0)
            except (OutcomeUnknown, WrongLastSequence):
                self.unknown += 1
                if not await self._settled(data):
                    continue
            self.committed += 1
            return

    async def _settled(self, data: bytes) -> bool:
        while True:
            try:
                settled = await self._frames.settle(
                    self.actor, expect=self.revision, is_mine=lambda found: found == data
                )
            except OutcomeUnknown:
                await asyncio.sleep(0.02)
                continue
            assert settled.settlement is not Settlement.OTHERS
            if settled.settlement is Settlement.OLD:
                return False
            self.revision = settled.revision
            return True


async def commit_until(writer: Writer, done: asyncio.Event) -> None:
    while not done.is_set():
        await writer.commit()


async def more_commits(writers: list[Writer], count: int) -> None:
    """Wait until so many more commits were acknowledged."""
    wanted = sum(writer.committed for writer in writers) + count
    await until(lambda: sum(writer.committed for writer in writers) >= wanted)


async def check_exactly_once(broker: NatsBroker, subjects: Subjects, writers: list[Writer]) -> None:
    """Each record holds the number of its commits, and each number was stored exactly once."""
    frames = FrameStore(broker, subjects)
    for writer in writers:
        record = await frames.read(writer.actor)
        assert record is not None
        assert int(record.data) == writer.committed
    info = await broker.stream_info(subjects.frames_stream)
    assert info.last_seq == sum(writer.committed for writer in writers)


async def test_a_request_under_way_fails_at_once_when_the_connection_is_cut(
    proxy: Proxy, behind: NatsBroker, subjects: Subjects
) -> None:
    proxy.hold_up()
    attempt = asyncio.create_task(behind.publish(Publish(subjects.frame(ACTOR)), timeout=60))
    await asyncio.sleep(0)
    proxy.cut()

    async with asyncio.timeout(5):
        with pytest.raises(OutcomeUnknown) as caught:
            await attempt
    assert "cut" in caught.value.reason
    proxy.release()


async def test_a_publish_while_disconnected_is_refused_and_not_sent_later(
    proxy: Proxy, behind: NatsBroker, broker: NatsBroker, subjects: Subjects
) -> None:
    connection = Connection(behind)
    proxy.refuse()
    await connection.until(lambda seen: seen == [False])
    assert not behind.connected

    with pytest.raises(OutcomeUnknown) as caught:
        await behind.publish(Publish(subjects.frame(ACTOR), b"lingering"))
    with pytest.raises(OutcomeUnknown):
        await behind.send("a.plain.message")
    assert "nothing was sent" in caught.value.reason

    await proxy.listen()
    await connection.until(lambda seen: seen == [False, True])
    await behind.publish(Publish(subjects.frame(actor_id("b")), b"after"))
    assert await broker.read_last(subjects.frames_stream, subjects.frame(ACTOR)) is None


async def test_a_write_that_arrives_after_its_sender_gave_up_is_refused_by_its_expectation(
    proxy: Proxy, behind: NatsBroker, broker: NatsBroker, subjects: Subjects
) -> None:
    """The old owner's commit is stuck on the wire; the new owner commits; then the old one's arrives."""
    old, new = FrameStore(behind, subjects), FrameStore(broker, subjects)
    first = await old.put(ACTOR, b"1", expect=0)
    proxy.hold_up()
    with pytest.raises(OutcomeUnknown):
        await old.put(ACTOR, b"stale", expect=first, timeout=0.1)
    second = await new.put(ACTOR, b"new", expect=first)
    sent = proxy.forwarded_up

    proxy.release()
    settled = await old.settle(ACTOR, expect=first, is_mine=lambda data: data == b"stale")

    assert proxy.forwarded_up > sent
    assert (settled.settlement, settled.revision) == (Settlement.OTHERS, second)


async def test_a_stored_commit_whose_answer_was_cut_off_settles_as_stored(
    proxy: Proxy, behind: NatsBroker, broker: NatsBroker, subjects: Subjects
) -> None:
    connection, frames = Connection(behind), FrameStore(behind, subjects)
    first = await frames.put(ACTOR, b"1", expect=0)
    proxy.hold_down()
    attempt = asyncio.create_task(frames.put(ACTOR, b"2", expect=first, timeout=60))
    async with asyncio.timeout(5):
        while (await broker.stream_info(subjects.frames_stream)).last_seq == first:  # noqa: ASYNC110  # looks at the server
            await asyncio.sleep(0.005)
    proxy.cut()
    proxy.release()
    with pytest.raises(OutcomeUnknown):
        await attempt
    await connection.until(lambda seen: seen[-1:] == [True])

    settled = await frames.settle(ACTOR, expect=first, is_mine=lambda data: data == b"2")

    assert settled.settlement is Settlement.STORED


async def test_cuts_in_the_middle_of_commits_lose_and_double_nothing(
    proxy: Proxy, behind: NatsBroker, broker: NatsBroker, subjects: Subjects
) -> None:
    connection, done = Connection(behind), asyncio.Event()
    frames = FrameStore(behind, subjects)
    writers = [Writer(frames, f"w{n}") for n in range(20)]
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(commit_until(writer, done))
        for cuts in range(1, 6):
            await more_commits(writers, 200)
            proxy.cut()
            await connection.until(lambda seen, cuts=cuts: seen.count(True) == cuts)  # type: ignore[misc]  # a default argument
        done.set()

    assert sum(writer.unknown for writer in writers) > 0
    await check_exactly_once(broker, subjects, writers)


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
async def test_a_restarted_server_loses_and_doubles_no_commit(own_server: EmbeddedServer, kill: bool) -> None:
    broker = await NatsBroker.connect(NatsOptions(servers=own_server.url, reconnect_wait=0.05))
    topology = Topology(namespace="n", app="app")
    await apply(broker, topology)
    done, frames = asyncio.Event(), FrameStore(broker, topology.subjects)
    writers = [Writer(frames, f"w{n}") for n in range(50)]
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(commit_until(writer, done))
        for _ in range(2):
            await more_commits(writers, 1000)
            await own_server.restart(kill=kill)
        await more_commits(writers, 500)
        done.set()

    assert sum(writer.unknown for writer in writers) > 0
    await check_exactly_once(broker, topology.subjects, writers)
    await broker.close()


async def test_streams_timers_and_leases_survive_a_kill(own_server: EmbeddedServer) -> None:
    broker = await NatsBroker.connect(NatsOptions(servers=own_server.url, reconnect_wait=0.05))
    topology = Topology(namespace="n", app="app")
    await apply(broker, topology)
    subjects, connection = topology.subjects, Connection(broker)
    await broker.publish(Publish(subjects.cluster("node", "x"), b"{}", ttl=3600))  # type: ignore[arg-type]  # Token
    info = await broker.stream_info(subjects.wake_stream)
    await broker.publish(
        Publish(
            subjects.timer(ACTOR, "r", 1),  # type: ignore[arg-type]  # Token
            schedule_at=info.now + 0.5,
            schedule_target=subjects.wake(ACTOR, "timer"),  # type: ignore[arg-type]  # Token
        )
    )

    await own_server.restart(kill=True)
    await connection.until(lambda seen: seen[-1:] == [True])
    collected, p = Collected(), subjects.partition_of(ACTOR)
    await broker.create_consumer(
        subjects.wake_stream, ConsumerConfig(subjects.consumer(p, 1), (subjects.wake_filter(p),))
    )
    await broker.pull(subjects.wake_stream, subjects.consumer(p, 1), collected.on_message, collected.on_lost)
    await collected.until(lambda self: len(self.deliveries) == 1)

    assert await broker.read_last(subjects.cluster_stream, subjects.cluster("node", "x")) is not None  # type: ignore[arg-type]  # Token
    assert (await broker.stream_info(subjects.wake_stream)).created == info.created
    await broker.close()


async def test_a_pull_tells_a_cut_once_and_the_next_owner_gets_everything_in_order(
    proxy: Proxy, behind: NatsBroker, broker: NatsBroker, subjects: Subjects
) -> None:
    """300 mails, cut in the middle of their delivery; the re-attach finds every one that was not
    acknowledged.
    """
    p, connection = subjects.partition_of(ACTOR), Connection(behind)
    mail = subjects.mail(ACTOR, channel_name("c"))
    old, new = Collected(), Collected()
    config = ConsumerConfig(subjects.consumer(p, 1), (subjects.in_filter(p),))
    await behind.create_consumer(subjects.mail_stream, config)
    await behind.pull(subjects.mail_stream, config.name, old.on_message, old.on_lost)
    for n in range(300):
        await broker.publish(Publish(mail, b"%d" % n))
        if n == 150:
            await old.until(lambda self: len(self.deliveries) >= 100)
            assert await behind.ack(old.deliveries[0])
            assert await behind.ack(old.deliveries[1])
            proxy.cut()
    await old.until(lambda self: bool(self.lost))
    await connection.until(lambda seen: seen[-1:] == [True])

    assert await behind.delete_consumer(subjects.mail_stream, config.name)
    config = ConsumerConfig(subjects.consumer(p, 2), config.filters)
    await behind.create_consumer(subjects.mail_stream, config)
    await behind.pull(subjects.mail_stream, config.name, new.on_message, new.on_lost)
    await new.until(lambda self: len(self.deliveries) == 298)

    assert old.lost == ["the connection was cut"]
    assert [int(d.message.payload) for d in new.deliveries] == list(range(2, 300))
    assert not new.lost


async def test_a_message_another_reader_took_shows_as_a_gap(
    behind: NatsBroker, broker: NatsBroker, subjects: Subjects
) -> None:
    """What a dead connection of our own swallowed looks the same: a consumer sequence is missing."""
    p, mine, theirs = subjects.partition_of(ACTOR), Collected(), Collected()
    config = ConsumerConfig(subjects.consumer(p, 1), (subjects.in_filter(p),))
    await behind.create_consumer(subjects.mail_stream, config)
    await behind.pull(subjects.mail_stream, config.name, mine.on_message, mine.on_lost)
    await broker.pull(subjects.mail_stream, config.name, theirs.on_message, theirs.on_lost)

    for n in range(20):
        await broker.publish(Publish(subjects.mail(ACTOR, channel_name("c")), b"%d" % n))

    await mine.until(lambda self: bool(self.lost))
    assert mine.lost[0].startswith("gap: expected consumer sequence")


async def test_a_heartbeat_shows_messages_that_never_came(
    behind: NatsBroker, broker: NatsBroker, subjects: Subjects
) -> None:
    """All messages go to the other reader and nothing follows them: only the idle heartbeat tells."""
    p, mine, theirs = subjects.partition_of(ACTOR), Collected(), Collected()
    config = ConsumerConfig(subjects.consumer(p, 1), (subjects.in_filter(p),))
    await behind.create_consumer(subjects.mail_stream, config)
    await broker.pull(subjects.mail_stream, config.name, theirs.on_message, theirs.on_lost)
    await behind.pull(subjects.mail_stream, config.name, mine.on_message, mine.on_lost)
    await broker.publish(Publish(subjects.mail(ACTOR, channel_name("c"))))
    await theirs.until(lambda self: len(self.deliveries) == 1)

    await mine.until(lambda self: bool(self.lost))

    assert not mine.deliveries
    assert mine.lost[0].startswith("gap: the broker sent up to consumer sequence 1")


async def test_missing_heartbeats_end_a_pull(proxy: Proxy, behind: NatsBroker, subjects: Subjects) -> None:
    p, collected = subjects.partition_of(ACTOR), Collected()
    config = ConsumerConfig(subjects.consumer(p, 1), (subjects.in_filter(p),))
    await behind.create_consumer(subjects.mail_stream, config)
    await behind.pull(subjects.mail_stream, config.name, collected.on_message, collected.on_lost)

    proxy.hold_down()
    await collected.until(lambda self: bool(self.lost))

    assert "heartbeat" in collected.lost[0]
    proxy.release()


async def test_an_idle_pull_goes_on_by_its_heartbeats(behind: NatsBroker, subjects: Subjects) -> None:
    """More than ten heartbeats of quiet, then a message: no loss was told."""
    p, collected = subjects.partition_of(ACTOR), Collected()
    config = ConsumerConfig(subjects.consumer(p, 1), (subjects.in_filter(p),))
    await behind.create_consumer(subjects.mail_stream, config)
    await behind.pull(subjects.mail_stream, config.name, collected.on_message, collected.on_lost)
    await behind.publish(
        Publish(
            subjects.timer(ACTOR, "r", 1),  # type: ignore[arg-type]  # Token
            schedule_at=(await behind.stream_info(subjects.wake_stream)).now + 2.5,
            schedule_target=subjects.wake(ACTOR, "timer"),  # type: ignore[arg-type]  # Token
        )
    )
    woken = Collected()
    await behind.create_consumer(
        subjects.wake_stream, ConsumerConfig(subjects.consumer(p, 1), (subjects.wake_filter(p),))
    )
    await behind.pull(subjects.wake_stream, subjects.consumer(p, 1), woken.on_message, woken.on_lost)
    await woken.until(lambda self: len(self.deliveries) == 1)
    await behind.publish(Publish(subjects.mail(ACTOR, channel_name("c"))))
    await collected.until(lambda self: len(self.deliveries) == 1)

    assert not collected.lost
    assert not woken.lost


async def test_an_outage_of_all_servers_is_logged_when_it_begins_and_with_its_length_when_it_is_over(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = "nats://127.0.0.1:1"  # answers with another error than the proxy that hangs up
    options = NatsOptions(servers=(proxy.url, nowhere), name="behind two", reconnect_wait=0.05)
    broker = await NatsBroker.connect(options)
    connection = Connection(broker)
    with caplog.at_level(logging.INFO):
        proxy.refuse()
        await until(lambda: broker.failed_attempts >= 10)
        await proxy.listen()
        await connection.until(lambda seen: seen[-1:] == [True])
    await broker.close()

    said = [record.getMessage() for record in caplog.records if record.name == "sojourn.broker"]
    assert len(said) == 2, said
    assert said[0].startswith("behind two: the connection to the broker is lost (")
    assert said[0].endswith(f"; trying {proxy.url} and {nowhere} again")
    assert re.fullmatch(r"behind two: connected again after \d+\.\d s, \d+ attempts failed", said[1])
    assert not any(record.exc_info for record in caplog.records)


async def test_subscriptions_survive_a_cut(proxy: Proxy, behind: NatsBroker, broker: NatsBroker) -> None:
    connection = Connection(behind)

    async def answer(message: Received) -> None:
        await behind.reply(message, b"here")

    await behind.subscribe("probe.survives", answer)
    proxy.cut()
    await connection.until(lambda seen: seen[-1:] == [True])

    assert (await broker.request("probe.survives")).payload == b"here"


async def test_a_connection_the_server_ends_for_good_is_made_anew(
    proxy: Proxy, behind: NatsBroker, broker: NatsBroker, subjects: Subjects
) -> None:
    """The client library gives up after such an error; a node must not."""
    connection = Connection(behind)

    async def answer(message: Received) -> None:
        await behind.reply(message, b"here")

    await behind.subscribe("probe.anew", answer)
    proxy.inject(b"-ERR 'User Authentication Expired'\r\n")
    await connection.until(lambda seen: seen[-1:] == [True])

    await behind.publish(Publish(subjects.frame(ACTOR), b"x", expect_last=0))
    assert (await broker.request("probe.anew")).payload == b"here"
    assert proxy.connections == 2


async def test_no_server_is_a_clear_error_within_the_time_given() -> None:
    options = NatsOptions(servers="nats://127.0.0.1:1", connect_timeout=0.3)

    with pytest.raises(ConnectFailed) as caught:
        await NatsBroker.connect(options)

    assert "127.0.0.1:1" in str(caught.value)


async def test_a_message_over_the_servers_limit_is_refused_and_the_connection_stays(
    broker: NatsBroker, subjects: Subjects
) -> None:
    """The server would end the connection for it, and the client library does not count headers."""
    connection = Connection(broker)
    almost = bytes(8 * 1024 * 1024 - 20)

    with pytest.raises(Refused) as caught:
        await broker.publish(Publish(subjects.frame(ACTOR), almost, {"Sj-X": "1"}))
    with pytest.raises(Refused):
        await broker.send("plain", almost, {"Sj-X": "1"})
    await broker.publish(Publish(subjects.frame(ACTOR)))

    assert "max_payload" in str(caught.value)
    assert connection.seen == []


async def test_a_full_disk_is_waited_out() -> None:
    """Not stored, but not refused for good either: the outcome is unknown, and the same commit passes later."""
    async with EmbeddedServer(max_store_bytes=2_000_000) as small:
        broker = await NatsBroker.connect(NatsOptions(servers=small.url))
        limits = Limits(mail_bytes=100_000, held_bytes=100_000, dead_bytes=100_000)
        topology = Topology(namespace="n", app="app", limits=limits)
        await apply(broker, topology)
        frames, written = FrameStore(broker, topology.subjects), 0

        async def fill() -> None:
            nonlocal written
            while written < 100:
                await frames.put(actor_id(f"a{written}"), bytes(100_000), expect=0)
                written += 1

        with pytest.raises(OutcomeUnknown):
            await fill()
        settled = await frames.settle(actor_id(f"a{written}"), expect=0, is_mine=lambda data: True)
        assert settled.settlement is Settlement.OLD

        await broker.purge(topology.subjects.frames_stream, topology.subjects.frame(actor_id("a0")))
        await frames.put(actor_id(f"a{written}"), bytes(50_000), expect=0)
        await broker.close()

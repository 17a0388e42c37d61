"""A partition without membership: whoever asks owns it, on one connection each, by the steps of an attach that concern HELD and consumers.

`owners` makes any number of owners of the one partition of a namespace; a higher epoch takes over from a lower one as a new node would.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import orjson
import pytest
from sojourn.actors.engine import Engine
from sojourn.actors.execution import StepRunner
from sojourn.actors.limits import Limits
from sojourn.actors.registry import Registry
from sojourn.broker.clock import BrokerClock
from sojourn.broker.dead import DeadLetters
from sojourn.broker.frames import FrameStore
from sojourn.broker.held import HeldEvent, HeldStore
from sojourn.broker.nats import NatsBroker
from sojourn.broker.seam import ConsumerConfig, Publish
from sojourn.broker.subjects import Subjects, Token, actor_id, channel_name
from sojourn.broker.topology import Limits as StreamLimits
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.hosting import slow_code
from sojourn.cluster.hosting.hot_cache import HotCache
from sojourn.cluster.hosting.partition import Partition
from sojourn.cluster.hosting.services import Fault, PartitionServices, no_fault
from sojourn.cluster.metrics import Metrics
from sojourn.cluster.tenure.gate import Gate
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Record, Status
from sojourn.codecs.seal import open_record

KEY = b"k" * 32
MIB = 1024 * 1024
SMALL = StreamLimits(mail_bytes=16 * MIB, held_bytes=16 * MIB, dead_bytes=4 * MIB)
"""A module's namespaces share one server: none may reserve much of it."""
_ids = itertools.count(1)


class Marks:
    """Counts commits."""

    def __init__(self) -> None:
        self.commits = 0

    def committed(self, p: int, actor: str, revision: int, transition: int) -> None:
        self.commits += 1


@dataclass(eq=False)
class Owner:
    """One owner of partition 0: its services and its `Partition`."""

    broker: NatsBroker
    subjects: Subjects
    services: PartitionServices
    epoch: int
    living: set[str]
    watcher: NatsBroker
    """Another connection, for what the test itself asks: the owner's requests can then be counted."""
    lost: list[str] = field(default_factory=list)
    was_lost: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.partition = Partition(0, self.epoch, self.services, on_lost=self._on_lost)

    def _on_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self.was_lost.set()

    async def _attach(self) -> tuple[Sequence[HeldEvent], dict[str, str]]:
        streams = {
            "mail": (self.subjects.mail_stream, self.subjects.in_filter(0)),
            "ctl": (self.subjects.ctl_stream, self.subjects.in_filter(0)),
            "wake": (self.subjects.wake_stream, self.subjects.wake_filter(0)),
        }
        consumers = {}
        for short, (stream, pattern) in streams.items():
            for name in await self.broker.consumers(stream):
                await self.broker.delete_consumer(stream, name)
            consumers[short] = Subjects.consumer(0, self.epoch)
            await self.broker.create_consumer(stream, ConsumerConfig(consumers[short], (pattern,)))
        await self.services.held.fence(0, self.epoch)
        return await self.services.held.list(0), consumers

    async def attach(self, *, taken_over: bool = False) -> None:
        held, consumers = await self._attach()
        await self.partition.start(held, consumers, taken_over=taken_over)

    async def reattach(self, epoch: int) -> None:
        self.epoch = epoch
        held, consumers = await self._attach()
        await self.partition.reattached(self.epoch, held, consumers)

    def die(self) -> None:
        """As a killed process: nothing more is done, and its lease is over."""
        self.living.discard(self.services.runner)
        self.services.steps.abandon(self.services)
        self.partition.drop()

    async def record(self, actor: str) -> Record | None:
        stored = await FrameStore(self.watcher, self.subjects).read(actor_id(actor))
        if stored is None or not stored.data:
            return None
        return open_record(stored.data, self.services.keyring, namespace=self.subjects.namespace, actor=actor)

    async def until(self, actor: str, wanted: Callable[[Record], bool], *, seconds: float = 20.0) -> Record:
        """The first record seen that fits; watches the republished headers, reads from the leader."""
        changed = asyncio.Event()

        async def on_change(message: object) -> None:
            changed.set()

        subscription = await self.watcher.subscribe(self.subjects.changed(actor_id(actor)), on_change)
        record = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    changed.clear()
                    record = await self.record(actor)
                    if record is not None and wanted(record):
                        return record
                    await changed.wait()
        except TimeoutError:
            raise AssertionError(
                f"not seen in {seconds} s; {record}; {self.partition.statistics()}; lost {self.lost}"
            ) from None
        finally:
            await subscription.stop()

    async def until_ended(self, actor: str, *, seconds: float = 20.0) -> Record:
        return await self.until(actor, lambda record: record.index.status.ended, seconds=seconds)

    async def until_waiting(self, actor: str, kind: str, *, seconds: float = 20.0) -> Record:
        return await self.until(
            actor, lambda record: any(wait.kind == kind for wait in record.envelope.waits), seconds=seconds
        )

    async def until_quiet(self, *, seconds: float = 20.0) -> None:
        """Nothing of the partition is left in the ingress streams or in its memory."""
        async with asyncio.timeout(seconds):
            while True:
                statistics = self.partition.statistics()
                busy = statistics.unacknowledged or statistics.waiting or statistics.hosts
                if not busy and not any([await self.messages(short) for short in ("mail", "ctl", "wake")]):
                    return
                await asyncio.sleep(0.02)

    async def until_messages(self, short: str, count: int, *, seconds: float = 20.0) -> None:
        found = -1
        try:
            async with asyncio.timeout(seconds):
                while (found := await self.messages(short)) != count:  # noqa: ASYNC110 - the broker tells nobody
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(
                f"expected {count} messages in {short}, found {found}; {self.partition.statistics()}, lost {self.lost}"
            ) from None

    async def messages(self, short: str) -> int:
        """Messages under the partition's filter; fences and schedules are none."""
        stream, pattern = {
            "mail": (self.subjects.mail_stream, self.subjects.in_filter(0)),
            "ctl": (self.subjects.ctl_stream, self.subjects.in_filter(0)),
            "wake": (self.subjects.wake_stream, self.subjects.wake_filter(0)),
            "held": (self.subjects.held_stream, self.subjects.held_filter(0)),
            "dead": (self.subjects.dead_stream, self.subjects.dead_filter),
        }[short]
        found = await self.watcher.subjects(stream, pattern)
        return sum(count for subject, count in found.items() if not subject.endswith(".fence"))

    async def dead_reasons(self) -> list[str]:
        return [letter.reason async for letter in self.services.dead.list()]

    # what clients do

    async def start(self, actor: str, workflow: str, *args: object, **more: object) -> None:
        body = {"request": f"r{next(_ids)}", "workflow": workflow, "args": [list(args), {}], **more}
        await self.watcher.publish(
            Publish(self.subjects.ctl(actor_id(actor), Token("start")), orjson.dumps(body))
        )

    async def control(self, actor: str, verb: str, **body: object) -> None:
        await self.watcher.publish(
            Publish(self.subjects.ctl(actor_id(actor), Token(verb)), orjson.dumps({"by": "test", **body}))
        )

    async def signal(self, actor: str, channel: str, value: object) -> None:
        await self.watcher.publish(
            Publish(self.subjects.mail(actor_id(actor), channel_name(channel)), orjson.dumps(value))
        )


class Crash:
    """A fault that kills its owner the `count`th time it passes `point`."""

    def __init__(self, point: str, count: int = 1, about: str = "") -> None:
        self.point = point
        self.count = count
        self.about = about
        self.owner: Owner | None = None
        self.happened = asyncio.Event()

    def __call__(self, point: str, about: str = "") -> None:
        if point != self.point or (self.about and about != self.about) or self.happened.is_set():
            return
        self.count -= 1
        if self.count == 0:
            assert self.owner is not None
            self.happened.set()
            self.owner.die()
            raise asyncio.CancelledError


MakeOwner = Callable[..., Awaitable[Owner]]


@pytest.fixture
async def topology(broker: NatsBroker, namespace: str, request: pytest.FixtureRequest) -> Topology:
    """One partition, so that one owner has every actor. A test's module may set the streams' bounds (`STREAMS`)."""
    limits = getattr(request.module, "STREAMS", SMALL)
    wanted = Topology(namespace=namespace, app="test", partitions=1, limits=limits)
    await apply(broker, wanted)
    return wanted


@pytest.fixture
async def owners(
    connect: Callable[[], Awaitable[NatsBroker]],
    broker: NatsBroker,
    subjects: Subjects,
    request: pytest.FixtureRequest,
) -> AsyncIterator[MakeOwner]:
    """Makes owners of the namespace's partition; the test's module says which definitions they know (`REGISTRY`)."""
    made: list[Owner] = []
    epochs = itertools.count(1)
    living: set[str] = set()
    watcher = broker

    async def make(
        *,
        registry: Registry | None = None,
        fault: Fault = no_fault,
        attach: bool = True,
        taken_over: bool = False,
        limits: Limits | None = None,
        broker: NatsBroker | None = None,
        hot_actors: int = 1_000,
        ahead: Callable[[], float] = lambda: 0.0,
        patience: float = 0.0,
    ) -> Owner:
        # With one server nothing lags, so nothing is waited for; a test whose connection pretends that it does says how long.
        broker = broker or await connect()
        number = len(made) + 1
        gate = Gate(now=time.monotonic)
        gate.extend(time.monotonic() + 3600)
        gate.open()
        synced = False
        clock = BrokerClock(
            broker,
            subjects.wake_stream,
            monotonic=lambda: time.monotonic() + (ahead() if synced else 0.0),
        )
        await clock.sync()
        synced = True
        known: Registry = registry or request.module.REGISTRY
        bounds = limits or Limits()
        runs = itertools.count(1)
        streams = {
            "mail": subjects.mail_stream,
            "ctl": subjects.ctl_stream,
            "wake": subjects.wake_stream,
            "held": subjects.held_stream,
        }
        services = PartitionServices(
            broker=broker,
            subjects=subjects,
            frames=FrameStore(broker, subjects),
            held=HeldStore(broker, subjects, node=f"n{number}"),
            dead=DeadLetters(broker, subjects),
            clock=clock,
            keyring=Keyring([KEY]),
            engine=Engine(known, limits=bounds, ids=lambda: f"run{number}x{next(runs)}"),
            registry=known,
            step_runner=StepRunner(known, clock=clock.now, limits=bounds),
            hot_cache=HotCache(max_entries=hot_actors, max_bytes=64 * 1024 * 1024),
            limits=bounds,
            node_id=f"n{number}",
            lease_id=f"l{number}",
            deployment="test",
            stream_created={
                short: (await broker.stream_info(stream)).created for short, stream in streams.items()
            },
            inbox_prefix="_INBOX",
            gate=gate,
            lives=lambda runner: runner in living,
            marks=Marks(),
            meter=Metrics({}),
            random=random.Random(1),
            ids=lambda: f"c{number}x{next(_ids)}",
            monotonic=time.monotonic,
            fault=fault,
            patience=patience,
            log=logging.getLogger("sojourn.cluster"),
        )
        living.add(services.runner)
        owner = Owner(broker, subjects, services, next(epochs), living, watcher)
        if isinstance(fault, Crash):
            fault.owner = owner
        made.append(owner)
        if attach:
            await owner.attach(taken_over=taken_over)
        return owner

    yield make
    for owner in made:
        owner.partition.drop()
        await owner.services.step_runner.close()
    await asyncio.sleep(0)


@pytest.fixture
def quick_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine makes of a workflow's code is no slow code (4.9), for tests that count commits."""
    monkeypatch.setattr(slow_code, "SLOW_SECONDS", 3600.0)


def completed(record: Record) -> object:
    """The value a workflow returned."""
    assert record.index.status is Status.COMPLETED, record.index
    assert record.envelope.outcome is not None
    return orjson.loads(bytes(record.envelope.outcome.value))

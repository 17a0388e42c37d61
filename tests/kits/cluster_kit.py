"""A cluster of real node processes on a real nats-server, with a client and the journal of effects."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sojourn.actors.client import Client
from sojourn.actors.errors import Rejected
from sojourn.broker.frames import FrameStore
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects, actor_id, channel_name
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.tenure.directory import Directory
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Index
from sojourn.codecs.seal import read_index

from sojourn.processes import NodeProcess

KITS = Path(__file__).parent
NAMESPACE = "accept"


@dataclass(frozen=True)
class Effect:
    """One line of the journal: an attempt of a step began or ended."""

    what: str
    key: str
    name: str
    pid: int


@dataclass
class Cluster:
    """What a test holds."""

    place: Path
    server: EmbeddedServer
    broker: NatsBroker
    subjects: Subjects
    client: Client
    keyring: Keyring
    nodes: dict[str, NodeProcess] = field(default_factory=dict)
    workers: dict[str, NodeProcess] = field(default_factory=dict)

    # nodes

    async def add(
        self,
        *names: str,
        url: str | None = None,
        app: str = "acceptance_app",
        env: Mapping[str, str] | None = None,
        path: Path = KITS,
        deployment: str | None = None,
    ) -> None:
        """Start node processes and wait until they own all partitions among them."""
        for name in names:
            node = NodeProcess(
                name,
                [
                    app,
                    "--server", url or self.server.url,
                    "--namespace", NAMESPACE,
                    "--node-id", name,
                    "--key-file", str(self.place / "key"),
                    "--log", "warning",
                    *(("--deployment", deployment) if deployment else ()),
                ],
                log=self.place / f"{name}.log",
                environment={
                    "ACCEPTANCE_JOURNAL": str(self.place / "journal"),
                    "PYTHONPATH": str(path),
                    **(env or {}),
                },
            )  # fmt: skip
            self.nodes[name] = node
            await node.start()
        await self.owned_by(*(name for name, node in self.nodes.items() if node.running))

    async def add_worker(
        self, *names: str, url: str | None = None, concurrency: int = 1, env: Mapping[str, str] | None = None
    ) -> None:
        """Start worker processes and wait until each says that it takes tasks."""
        for name in names:
            worker = NodeProcess(
                name,
                [
                    "acceptance_app",
                    "--server", url or self.server.url,
                    "--namespace", NAMESPACE,
                    "--worker-id", name,
                    "--concurrency", str(concurrency),
                    "--log", "info",
                ],
                log=self.place / f"{name}.log",
                environment={
                    "ACCEPTANCE_JOURNAL": str(self.place / "journal"),
                    "PYTHONPATH": str(KITS),
                    **(env or {}),
                },
                command="worker",
            )  # fmt: skip
            self.workers[name] = worker
            await worker.start()

            async def takes_tasks(worker: NodeProcess = worker) -> bool:
                return "takes tasks" in worker.last_words()

            await until(takes_tasks, self.logs, 30)

    async def owned_by(self, *names: str, seconds: float = 30.0) -> None:
        """Wait until every partition is held by one of these nodes, and each of them holds its fair share."""
        fair = self.subjects.partitions // (len(names) + 1)

        async def settled() -> bool:
            owners = await self.owners()
            return all(owner in names for owner in owners) and all(
                owners.count(name) >= min(fair, 1) for name in names
            )

        await until(settled, f"partitions owned by {names}: {self.logs()}", seconds)

    async def owners(self) -> list[str]:
        """Per partition, the node that holds it ("" for none)."""
        view = await Directory(self.broker, self.subjects).poll(self.subjects.partitions)
        return [holder.node if (holder := view.holder(p)) else "" for p in range(view.partitions)]

    def logs(self) -> str:
        """The end of every node's log, for failures."""
        return "\n".join(
            f"--- {name}\n{node.last_words()}" for name, node in (self.nodes | self.workers).items()
        )

    # actors

    async def start_many(self, workflow: str, arguments: Sequence[Sequence[Any]], prefix: str) -> list[str]:
        """Start workflows side by side; their ids."""
        gate = asyncio.Semaphore(50)

        async def one(number: int, args: Sequence[Any]) -> str:
            async with gate:
                handle = await self.client.start(workflow, args=args, id=f"{prefix}{number}", timeout=60)
                return handle.id

        return list(await asyncio.gather(*(one(number, args) for number, args in enumerate(arguments))))

    async def signal_many(self, actors: Sequence[str], channel: str, payload: bytes = b"1") -> None:
        """Mail as any NATS client sends it, not through the SDK."""
        from sojourn.broker.seam import Publish

        for actor in actors:
            await self.broker.publish(
                Publish(self.subjects.mail(actor_id(actor), channel_name(channel)), payload), timeout=10.0
            )

    async def results(self, actors: Sequence[str], seconds: float = 60.0) -> list[Any]:
        """Results in order; a rejection counts as "rejected"."""

        async def one(actor: str) -> Any:
            try:
                return await self.client.handle(actor).result(timeout=seconds)
            except Rejected:
                return "rejected"

        return list(await asyncio.gather(*(one(actor) for actor in actors)))

    async def index(self, actor: str) -> Index | None:
        """The public facts of an actor, from its record."""
        stored = await FrameStore(self.broker, self.subjects).read(actor_id(actor))
        return read_index(stored.data) if stored is not None else None

    async def indexes(self) -> dict[str, Index]:
        """The public facts of all actors."""
        frames = FrameStore(self.broker, self.subjects)
        return {actor: read_index(record.data) async for actor, record in frames.scan()}

    async def until_index(
        self, actor: str, condition: Callable[[Index], bool], seconds: float = 30.0
    ) -> Index:
        """Wait until an actor's index fulfils a condition."""
        seen: list[Index | None] = [None]

        async def fulfilled() -> bool:
            seen[0] = await self.index(actor)
            return seen[0] is not None and condition(seen[0])

        await until(fulfilled, lambda: f"{actor}: {seen[0]}\n{self.logs()}", seconds)
        assert seen[0] is not None
        return seen[0]

    async def until_all(
        self, actors: Sequence[str], condition: Callable[[Index], bool], seconds: float = 60.0
    ) -> None:
        """Wait until the indexes of all these actors fulfil a condition."""
        left: list[str] = []

        async def fulfilled() -> bool:
            indexes = await self.indexes()
            left[:] = [a for a in actors if a not in indexes or not condition(indexes[a])]
            return not left

        await until(fulfilled, lambda: f"{len(left)} left, such as {left[:3]}\n{self.logs()}", seconds)

    # the journal

    def effects(self) -> list[Effect]:
        """The journal so far."""
        journal = self.place / "journal"
        if not journal.exists():
            return []
        lines = [line.split() for line in journal.read_text().splitlines()]
        return [Effect(words[0], words[1], " ".join(words[2:-1]), int(words[-1])) for words in lines]

    def repeated(self) -> dict[str, int]:
        """Operations that began more than once, with how often."""
        counts = Counter(effect.key for effect in self.effects() if effect.what == "begin")
        return {key: count for key, count in counts.items() if count > 1}

    def in_flight(self, pid: int | None = None) -> set[str]:
        """Operations that began and have not ended."""
        ended = {(effect.key, effect.pid) for effect in self.effects() if effect.what == "end"}
        return {
            effect.key
            for effect in self.effects()
            if effect.what == "begin" and (effect.key, effect.pid) not in ended and pid in (None, effect.pid)
        }


@asynccontextmanager
async def cluster(place: Path, *, partitions: int = 16) -> AsyncIterator[Cluster]:
    """A server with an applied topology and a client; nodes are added by the test and ended here."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer(place / "jetstream"))
        keyring = Keyring.generate(place / "key")
        broker = await NatsBroker.connect(NatsOptions(servers=server.url, name="test"))
        stack.push_async_callback(broker.close)
        topology = Topology(namespace=NAMESPACE, app="acceptance", partitions=partitions)
        await apply(broker, topology)
        client = Client(broker, topology.subjects, by="test")
        stack.push_async_callback(client.close)
        made = Cluster(place, server, broker, topology.subjects, client, keyring)
        try:
            yield made
        finally:
            await asyncio.gather(*(node.stop(seconds=10.0) for node in (made.nodes | made.workers).values()))


class TcpProxy:
    """Passes bytes on to a port of this host until it is told to cut every connection, whatever is on the wire."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._connected = asyncio.Event()

    async def start(self) -> None:
        """Listen on a free port of the loopback interface."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        """Where to connect to."""
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Abort every connection; new ones are accepted."""
        self._connected.clear()
        for writer in self._writers:
            writer.transport.abort()

    async def reconnected(self) -> None:
        """Return when a connection was made since the last cut."""
        await self._connected.wait()

    async def stop(self) -> None:
        """Cut and listen no more."""
        assert self._server is not None
        self.cut()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, forth}
        self._connected.set()
        try:
            await asyncio.gather(_pass_on(reader, forth), _pass_on(back, writer))
        finally:
            self._writers -= {writer, forth}


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def tcp_proxy(target: int) -> AsyncIterator[TcpProxy]:
    """A proxy in front of a port."""
    proxy = TcpProxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


async def until(
    condition: Callable[[], Awaitable[bool]], what: str | Callable[[], str], seconds: float
) -> None:
    """Poll a condition of the outside world (records, other processes); fail with `what` after `seconds`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not await condition():
        if loop.time() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}")
        await asyncio.sleep(0.05)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process (Linux)."""
    if sys.platform != "linux":
        raise RuntimeError("reads /proc")
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096

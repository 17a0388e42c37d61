"""Three nats-servers as one cluster on loopback, for tests of R3."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from sojourn.broker.errors import OutcomeUnknown, Refused, StreamNotFound
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import StreamConfig
from sojourn.broker.server import EmbeddedServer

T = TypeVar("T")


class Cluster:
    """The servers by name, and which of them leads a stream."""

    def __init__(self, servers: dict[str, EmbeddedServer]) -> None:
        self.servers = servers

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(server.url for server in self.servers.values())

    async def leader(self, broker: NatsBroker, stream: str) -> str:
        """Name of the stream's leader."""
        answer = await broker._stream_api("leader", f"STREAM.INFO.{stream}", None, stream)
        return str(answer["cluster"]["leader"])


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


async def _wait_for_room(server: EmbeddedServer, size: int) -> None:
    """A fresh cluster is healthy a moment before it can place a stream ("no suitable peers", 10005; "unavailable", 10008)."""
    broker = await NatsBroker.connect(NatsOptions(servers=(server.url,)))
    try:
        while True:
            try:
                await broker.create_stream(StreamConfig("ROOM", ("room",), replicas=size))
                await broker._stream_api("delete", "STREAM.DELETE.ROOM", None, "ROOM")
            except (OutcomeUnknown, Refused):
                await asyncio.sleep(0.1)
            except StreamNotFound:
                return
            else:
                return
    finally:
        await broker.close()


@asynccontextmanager
async def cluster(size: int = 3) -> AsyncIterator[Cluster]:
    """Start the servers and wait until all of them are healthy and a stream can be placed on all."""
    routes = _free_ports(size)
    peers = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in routes)
    servers = {
        f"s{n}": EmbeddedServer(
            name=f"s{n}",
            extra_config=(
                f'cluster {{ name: "test", listen: "127.0.0.1:{port}", routes: [{peers}], no_advertise: true }}'
            ),
        )
        for n, port in enumerate(routes, 1)
    }
    try:
        await asyncio.gather(*(server.start(wait_healthy=False) for server in servers.values()))
        async with asyncio.timeout(30):
            await asyncio.gather(*(server.wait_healthy() for server in servers.values()))
            await _wait_for_room(next(iter(servers.values())), size)
        yield Cluster(servers)
    finally:
        await asyncio.gather(*(server.kill() for server in servers.values()))
        for server in servers.values():
            await server.__aexit__(None, None, None)


async def until_known(work: Callable[[], Awaitable[T]]) -> T:
    """What it returns, once its outcome is known: there may be no leader just now, or the server asked is silent."""
    async with asyncio.timeout(40):
        while True:
            try:
                return await work()
            except OutcomeUnknown:
                await asyncio.sleep(0.1)


@contextmanager
def silent(*servers: EmbeddedServer) -> Iterator[None]:
    """These processes do nothing meanwhile; their sockets stay open."""
    pids = [server.pid for server in servers if server.pid is not None]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:  # until it is so: on a busy machine one may answer for a moment yet
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

"""A TCP proxy between a client and its server, for faults on the wire: cut, hold back, inject."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Proxy:
    """Forwards both ways. Faults concern all its connections."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: set[asyncio.Task[object]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._upward = asyncio.Event()
        self._downward = asyncio.Event()
        self._upward.set()
        self._downward.set()
        self._port = 0
        self.connections = 0
        self.forwarded_up = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    async def listen(self) -> None:
        """Accept connections, always on the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Cut everything and accept nothing until `listen`."""
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Reset every connection; what is under way in either direction is lost."""
        for writer in list(self._writers):
            writer.transport.abort()

    def hold_up(self) -> None:
        """Keep back what clients send, until `release`: it arrives late."""
        self._upward.clear()

    def hold_down(self) -> None:
        """Keep back what the server sends, until `release`."""
        self._downward.clear()

    def release(self) -> None:
        self._upward.set()
        self._downward.set()

    def inject(self, data: bytes) -> None:
        """Send bytes to the clients as if the server had."""
        for writer in self._clients:
            writer.write(data)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, server_writer}
        self._clients.add(writer)
        up = asyncio.create_task(self._forward(reader, server_writer, self._upward, up=True))
        down = asyncio.create_task(self._forward(server_reader, writer, self._downward, up=False))
        self._tasks |= {up, down}
        try:
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            for end in (writer, server_writer):
                end.transport.abort()
            self._writers -= {writer, server_writer}
            self._clients.discard(writer)
            self._tasks -= {up, down}

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event, *, up: bool
    ) -> None:
        try:
            while data := await reader.read(65536):
                await gate.wait()
                writer.write(data)
                await writer.drain()
                if up:
                    self.forwarded_up += len(data)
        except OSError:
            return

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await self._server.wait_closed()
        if self._handlers:
            await asyncio.wait(self._handlers)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the server at `url`."""
    port = urlsplit(url).port
    assert port is not None
    proxy = Proxy(port)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()

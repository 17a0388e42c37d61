"""A TCP proxy between one node and one server, with the faults that a network has.

Both connections of a node, of its engine and of its guard, run through it; the name in the client's CONNECT line tells which is which, so
that a fault can concern one of them. Holding a direction keeps its bytes until it is released: they arrive late, not never. `abandon` is
the worst of it: the client sees its connection cut and connects anew, while what it had sent lies in the proxy and reaches the server
seconds later, as a write that arrives after its sender gave up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

MOST_HELD: Final = 4 * 1024 * 1024
"""Bytes held in one direction before the sender is not read any more."""
_NAME = re.compile(rb'"name":\s*"[^"]*-(engine|guard)"')
BOTH: Final = frozenset(("engine", "guard"))


class _End(asyncio.Protocol):
    """One end of a link: passes on what it receives, unless its direction is held."""

    def __init__(self, link: _Link, *, client: bool) -> None:
        self._link = link
        self._client = client
        self.transport: asyncio.Transport | None = None
        self.peer: _End | None = None
        self.held = bytearray()
        self.holding = False
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._client:
            self._link.sniff(data)
        if self.holding or self.peer is None:
            self.held += data
            if len(self.held) > MOST_HELD and self.transport is not None:
                self.transport.pause_reading()
        else:
            self.peer.write(data)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None and not self.peer.holding:
            with suppress(RuntimeError):
                self.peer.transport.resume_reading()

    def release(self) -> None:
        """Let through what was held, in order."""
        self.holding = False
        if self.held and self.peer is not None:
            data, self.held = bytes(self.held), bytearray()
            self.peer.write(data)
        if self.transport is not None and not self.transport.is_closing():
            with suppress(RuntimeError):
                self.transport.resume_reading()
        if self.closed:
            self._link.end_lost(self)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if not (self.holding and self.held):  # what is held still has to arrive
            self._link.end_lost(self)


class _Link:
    """A client's connection and the one made for it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.role = ""
        self.client = _End(self, client=True)
        self.server = _End(self, client=False)

    def sniff(self, data: bytes) -> None:
        if not self.role and (found := _NAME.search(data)) is not None:
            self.role = found[1].decode()
            self.proxy.apply(self)

    def end_lost(self, end: _End) -> None:
        other = self.server if end is self.client else self.client
        if other.transport is not None and not other.transport.is_closing():
            other.transport.close()  # after what was written to it
        if self.client.closed and self.server.closed:
            self.proxy.links.discard(self)

    def abort(self) -> None:
        for end in (self.client, self.server):
            end.holding = False
            end.held.clear()
            end.abort()


class Proxy:
    """See the module. Listens on one free port of 127.0.0.1 for its whole life."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing: frozenset[str] = frozenset()
        self._holding: dict[str, frozenset[str]] = {"up": frozenset(), "down": frozenset()}
        self.links: set[_Link] = set()
        self.port = 0

    async def listen(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """Where the node connects to."""
        return f"nats://127.0.0.1:{self.port}"

    def _accept(self) -> asyncio.Protocol:
        link = _Link(self)
        task = asyncio.get_running_loop().create_task(self._connect(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return link.client

    async def _connect(self, link: _Link) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: link.server, "127.0.0.1", self._target)
        except OSError:
            link.client.abort()
            return
        self.links.add(link)
        link.client.peer, link.server.peer = link.server, link.client
        for end in (link.client, link.server):
            if not end.holding:
                end.release()
        if link.client.closed:
            link.server.abort()

    # faults

    def apply(self, link: _Link) -> None:
        """What is in force for connections of its role."""
        if link.role in self._refusing:
            link.abort()
        link.client.holding = link.client.holding or link.role in self._holding["up"]
        link.server.holding = link.server.holding or link.role in self._holding["down"]

    def cut(self, roles: Iterable[str] = BOTH, *, refuse: bool) -> None:
        """Reset the connections; with `refuse`, new ones too, until `heal`."""
        roles = frozenset(roles)
        if refuse:
            self._refusing |= roles
        for link in tuple(self.links):
            if link.role in roles or (not link.role and roles == BOTH):
                link.abort()

    def hold(self, direction: str, roles: Iterable[str] = BOTH) -> None:
        """Keep back what goes "up" to the server, or "down" from it, of present and new connections, until `heal`."""
        self._holding[direction] |= frozenset(roles)
        for link in tuple(self.links):
            self.apply(link)

    async def abandon(self, held_for: float, late_by: float) -> None:
        """Hold what clients send for a moment, cut them off, and let it reach the server `late_by` seconds after that."""
        links = tuple(self.links)
        for link in links:
            link.client.holding = True
        await asyncio.sleep(held_for)
        for link in links:
            link.client.abort()
        await asyncio.sleep(late_by)
        for link in links:
            link.client.release()

    def heal(self) -> None:
        """No fault is in force any more; what was held arrives."""
        self._refusing = frozenset()
        self._holding = {"up": frozenset(), "down": frozenset()}
        for link in tuple(self.links):
            link.client.release()
            link.server.release()

    async def close(self) -> None:
        """End everything."""
        if self._server is not None:
            self._server.close()
        for link in tuple(self.links):
            link.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

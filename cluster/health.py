"""`/livez`, `/readyz`, `/metrics` over HTTP, on a port of their own, on the guard's loop.

On the guard's loop, so that a stuck engine is answered about rather than timing out; in sixty lines over
asyncio's streams, since three read-only pages do not need a web framework in the core (starlette is an extra,
and its server would want the engine's loop or a third thread). Loopback by default. A request is bounded in
time and size, connections in number; what is not a plain GET of one of the three pages is answered and
closed. One connection too many ends the *oldest*: an honest probe is answered at once, so that silent ones cannot keep
it out and have the node restarted.

- `/livez`: 200 while the engine's loop runs; 503 with the line at which it is stuck. Restarting cures what it
reports. - `/readyz`: 200 while this node has joined, may act, and is not draining.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

MAX_CONNECTIONS = 64
REQUEST_SECONDS = 5.0
MAX_REQUEST_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether all is well, and a sentence for whoever looks."""

    ok: bool
    text: str


class HealthServer:
    """Serves the pages. `start` and `stop` on the loop that is to serve (the guard's)."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        live: Callable[[], Verdict],
        ready: Callable[[], Verdict],
        metrics: Callable[[], str],
    ) -> None:
        """`port` 0 takes a free one. The three callables are asked on the serving thread, and only read."""
        self._host = host
        self._port = port
        self._live = live
        self._ready = ready
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}
        """Oldest first."""

    def __repr__(self) -> str:
        """Its address."""
        return f"<HealthServer {self.address or 'stopped'} connections={len(self._open)}>"

    @property
    def address(self) -> str:
        """`http://host:port`; empty while it does not listen."""
        if self._server is None or not self._server.sockets:
            return ""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Listen. Raises `OSError` when the port is taken."""
        self._server = await asyncio.start_server(
            self._serve, self._host, self._port, limit=MAX_REQUEST_BYTES
        )

    async def stop(self) -> None:
        """Stop listening and close what is open. Stopping twice is fine."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in tuple(self._open):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                writer.write(await self._respond(reader))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            # Whoever asked is gone, or too slow. Closing would wait until it has read what it never reads.
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _respond(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "expected a plain GET\n")
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _page(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET\n")
        status, text = self._look_up(path)
        return _page(status, text, body=method == b"GET")

    def _look_up(self, path: bytes) -> tuple[HTTPStatus, str]:
        if path == b"/metrics":
            return HTTPStatus.OK, self._metrics()
        ask = {b"/livez": self._live, b"/readyz": self._ready}.get(path)
        if ask is None:
            return HTTPStatus.NOT_FOUND, "expected /livez, /readyz or /metrics\n"
        verdict = ask()
        return HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE, verdict.text + "\n"


def _page(status: HTTPStatus, text: str, *, body: bool = True) -> bytes:
    content = text.encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(content)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (content if body else b"")

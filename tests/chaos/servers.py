"""One nats-server, or three as a cluster, on loopback: killed, restarted, slowed, filled up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

from sojourn.broker.errors import BrokerError, OutcomeUnknown, Refused
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Publish
from sojourn.broker.server import EmbeddedServer, ServerFailed
from sojourn.broker.topology import MIB, Limits

FILLER: Final = "CHAOS_FILLER"
FILLER_BYTES: Final = 4 * MIB
LIMITS: Final = Limits(mail_bytes=24 * MIB, held_bytes=24 * MIB, dead_bytes=8 * MIB)
HEALTHY_SECONDS: Final = 40.0
MEND_SECONDS: Final = 8.0


def store_bytes(workflows: int) -> int:
    """What the servers may store: enough for the run, little enough to be filled in a moment."""
    return 128 * MIB + workflows * 64 * 1024


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _health(monitor: str) -> str:
    try:
        with urlopen(f"{monitor}/healthz", timeout=3.0) as answer:
            return str(answer.read(400), "utf-8", "replace")
    except HTTPError as refused:
        return str(refused.read(400), "utf-8", "replace")
    except OSError as error:
        return str(error)


def _clustered(name: str, port: int, routes: str) -> str:
    """Configuration of one server of a cluster; its tag is its name, so that a stream can be placed on it."""
    return (
        f'server_tags: ["{name}"]\n'
        f'cluster {{ name: "chaos", listen: "127.0.0.1:{port}", routes: [{routes}], no_advertise: true }}'
    )


def _subject(which: int) -> str:
    return f"chaos.filler.{which}"


class Servers:
    """The broker of a run."""

    def __init__(self, place: Path, replicas: int, max_bytes: int) -> None:
        self.replicas = replicas
        self._max_bytes = max_bytes
        names = [f"s{n}" for n in range(1, replicas + 1)]
        ports = _free_ports(replicas)
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
        self.all: list[EmbeddedServer] = [
            EmbeddedServer(
                place / name,
                name=name,
                max_store_bytes=max_bytes,
                extra_config=_clustered(name, port, routes) if replicas > 1 else "",
            )
            for name, port in zip(names, ports, strict=True)
        ]
        self._filler: NatsBroker | None = None
        self.mended = 0
        """Servers that had to be restarted after a full disk."""

    @property
    def urls(self) -> tuple[str, ...]:
        """For clients that have no proxy."""
        return tuple(server.url for server in self.all)

    async def start(self) -> None:
        """Start all and wait until they are healthy together."""
        await asyncio.gather(*(server.start(wait_healthy=False) for server in self.all))
        await self.wait_healthy()

    async def wait_healthy(self, seconds: float = HEALTHY_SECONDS) -> None:
        """Return when every server says that it is healthy. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(server.wait_healthy() for server in self.all))

    async def kill(self, which: int, *, down: float) -> None:
        """SIGKILL, and start it again after a while."""
        await self.all[which].kill()
        await asyncio.sleep(down)
        await self._start_again(self.all[which])

    async def restart(self, which: int, *, down: float) -> None:
        """SIGTERM, and start it again after a while."""
        await self.all[which].stop()
        await asyncio.sleep(down)
        await self._start_again(self.all[which])

    async def slow(self, which: int, *, seconds: float) -> None:
        """Stop and continue the process in short bursts: it answers, but late."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        pid = self.all[which].pid
        while pid is not None and loop.time() < until:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(0.4)
            finally:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(0.15)

    async def fill(self, which: int, *, seconds: float) -> bool:
        """Fill one server's store until it refuses, leave it so for a while, free it. Whether it was ever full."""
        full = False
        try:
            broker = await self._connection()
            await self._create_filler(broker, which)
            for _ in range(2 + self._max_bytes // FILLER_BYTES):
                try:
                    await broker.publish(Publish(_subject(which), bytes(FILLER_BYTES)), timeout=10.0)
                except (Refused, OutcomeUnknown) as error:
                    full = "resources" in str(error) or "maximum" in str(error)
                    break
            await asyncio.sleep(seconds)
        except BrokerError:
            full = False
        finally:
            await self._free(which)
            await self._mend(which)
        return full

    async def _create_filler(self, broker: NatsBroker, which: int) -> None:
        """A stream of one replica on that very server."""
        name = f"{FILLER}_{which}"
        config = {
            "name": name,
            "subjects": [_subject(which)],
            "storage": "file",
            "num_replicas": 1,
            **({"placement": {"tags": [self.all[which]._name]}} if self.replicas > 1 else {}),
        }
        await broker.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode(), timeout=5.0)

    async def _free(self, which: int) -> None:
        """Give back what `fill` took; tried until it works, within a bound."""
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                while True:
                    try:
                        broker = await self._connection()
                        await broker.purge(f"{FILLER}_{which}", _subject(which))
                        return
                    except Refused:
                        return
                    except BrokerError:
                        await asyncio.sleep(0.5)

    async def _mend(self, which: int) -> None:
        """What an operator does after a full disk: restart the server if it does not get well by itself.

        A replica that could not write stays `group node unhealthy` although there is room again (tried, nats-server 2.15.1).
        """
        server = self.all[which]
        try:
            async with asyncio.timeout(MEND_SECONDS):
                await server.wait_healthy()
        except (TimeoutError, ServerFailed):
            self.mended += 1
            await server.stop()
            await self._start_again(server)

    async def _connection(self) -> NatsBroker:
        if self._filler is None:
            self._filler = await NatsBroker.connect(NatsOptions(servers=self.urls, name="filler"))
        return self._filler

    async def _start_again(self, server: EmbeddedServer) -> None:
        for _ in range(5):
            try:
                await server.start(wait_healthy=False)
                return
            except ServerFailed:
                await asyncio.sleep(0.5)
        await server.start(wait_healthy=False)

    async def heal(self) -> None:
        """Every server runs and is healthy."""
        for server in self.all:
            if server.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(server.pid, signal.SIGCONT)
            await self._start_again(server)
        try:
            await self.wait_healthy()
        except TimeoutError:
            raise RuntimeError(
                f"not healthy {HEALTHY_SECONDS:.0f} s after the last fault: {await self.complaints()}"
            ) from None

    async def complaints(self) -> str:
        """What each server says of its own health."""
        said = await asyncio.gather(*(asyncio.to_thread(_health, server.monitor_url) for server in self.all))
        return "; ".join(f"{server!r}: {words}" for server, words in zip(self.all, said, strict=True))

    async def close(self) -> None:
        """End them all."""
        if self._filler is not None:
            await self._filler.close()
        for server in self.all:
            await server.kill()
            await server.__aexit__(None, None, None)

    def logs(self) -> Sequence[str]:
        """The end of each server's log."""
        return [server._log_end() for server in self.all]

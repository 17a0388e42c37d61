"""The pages for probes stay reachable whatever else is connected to their port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sojourn.cluster.health import MAX_CONNECTIONS, HealthServer, Verdict

pytestmark = pytest.mark.integration
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def health() -> AsyncIterator[HealthServer]:
    server = HealthServer(
        "127.0.0.1",
        0,
        live=lambda: Verdict(True, "well"),
        ready=lambda: Verdict(False, "draining"),
        metrics=lambda: "",
    )
    await server.start()
    yield server
    await server.stop()


async def connect(health: HealthServer) -> Connection:
    return await asyncio.open_connection("127.0.0.1", int(health.address.rpartition(":")[2]))


async def asked(health: HealthServer, request: bytes) -> bytes:
    reader, writer = await connect(health)
    writer.write(request)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /livez HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /readyz HTTP/1.1\r\n\r\n", b"503"),
        (b"GET //livez HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /livez HTTP/1.1\r\n\r\n", b"405"),
        (b"\x00\xff\r\n\r\n", b"405"),
        (b"GET /livez HTTP/1.1\r\nX: " + b"a" * 100_000, b"431"),
    ],
)
async def test_a_request_is_answered_or_refused(
    health: HealthServer, request_bytes: bytes, status: bytes
) -> None:
    assert (await asked(health, request_bytes)).split()[1] == status


async def test_silent_connections_do_not_keep_a_probe_out(health: HealthServer) -> None:
    silent = [await connect(health) for _ in range(MAX_CONNECTIONS + 5)]
    assert (await asked(health, b"GET /livez HTTP/1.1\r\n\r\n")).split()[1] == b"200"
    async with asyncio.timeout(20):
        assert await silent[0][0].read() == b""  # the oldest had to go
    for _, writer in silent:
        writer.close()

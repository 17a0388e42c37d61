"""The embedded server: starts on a free port, keeps port and store over restarts, ends with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from sojourn.broker.errors import ConnectFailed
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Publish, StreamConfig
from sojourn.broker.server import EmbeddedServer, ServerFailed, ServerNotFound, find_server

pytestmark = pytest.mark.integration


async def test_two_servers_run_side_by_side() -> None:
    async with EmbeddedServer() as first, EmbeddedServer() as second:
        assert first.port != second.port
        for server in (first, second):
            broker = await NatsBroker.connect(NatsOptions(servers=server.url))
            assert (await broker.account_limits()).bytes == 0
            await broker.close()


async def test_an_address_that_is_none_is_a_failed_connection() -> None:
    with pytest.raises(ConnectFailed, match="invalid connect url"):
        await NatsBroker.connect(NatsOptions(servers="nats://127.0.0.1:4222,garbage:::"))


async def test_a_restart_keeps_port_and_streams(own_server: EmbeddedServer) -> None:
    url, pid = own_server.url, own_server.pid
    broker = await NatsBroker.connect(NatsOptions(servers=url))
    await broker.create_stream(StreamConfig("S", ("S.>",)))
    await broker.publish(Publish("S.a", b"x"))
    await broker.close()

    await own_server.restart()

    assert own_server.url == url
    assert own_server.pid != pid
    broker = await NatsBroker.connect(NatsOptions(servers=url))
    stored = await broker.read_last("S", "S.a")
    assert stored is not None
    assert stored.payload == b"x"
    await broker.close()


async def test_a_given_store_outlives_the_server(tmp_path: Path) -> None:
    for expected in (0, 1):
        async with EmbeddedServer(tmp_path) as server:
            broker = await NatsBroker.connect(NatsOptions(servers=server.url))
            if expected == 0:
                await broker.create_stream(StreamConfig("S", ("S.>",)))
                await broker.publish(Publish("S.a"))
            else:
                assert (await broker.stream_info("S")).messages == expected
            await broker.close()


async def test_starting_and_stopping_twice_is_fine() -> None:
    server = EmbeddedServer()
    await server.stop()
    await server.start()
    pid = server.pid
    await server.start()
    assert server.pid == pid
    await server.stop()
    await server.stop()
    assert server.pid is None
    await server.__aexit__(None, None, None)


async def test_it_listens_on_loopback_only(own_server: EmbeddedServer) -> None:
    assert own_server.url.startswith("nats://127.0.0.1:")
    assert own_server.monitor_url.startswith("http://127.0.0.1:")


async def test_a_broken_configuration_fails_with_its_log() -> None:
    server = EmbeddedServer(extra_config="jetstream_typo { }")
    with pytest.raises(ServerFailed) as caught:
        await server.start()
    assert not server.running
    assert "ended with code" in str(caught.value)
    await server.__aexit__(None, None, None)


def test_a_missing_binary_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with pytest.raises(ServerNotFound) as caught:
        find_server()

    assert "sojourn[dev]" in str(caught.value)


PARENT = """
import asyncio
from sojourn.broker.server import EmbeddedServer

async def main():
    server = EmbeddedServer()
    await server.start()
    print(server.pid, server.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the parent's death signal is Linux's")
async def test_a_killed_parent_takes_its_server_with_it(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # nobody is left to remove its folder
    )
    assert parent.stdout is not None
    async with asyncio.timeout(20):
        _, port = (int(word) for word in (await parent.stdout.readline()).split())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readline()

    os.kill(parent.pid, signal.SIGKILL)
    await parent.wait()

    async with asyncio.timeout(20):
        await reader.read()  # the server ends: so does the connection
    writer.close()
